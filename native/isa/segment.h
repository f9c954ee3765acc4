// Softmax over the keys of one segment, and how it joins that of earlier ones; shared by every kind of attention.
#pragma once
#include "isa/lanes.h"

namespace octavo::OCTAVO_ISA_NAME {

// Of `count` vectors: o [count, width], each vector's weighted values; m: its largest logit; l: its sum of weights, 0
// where it has seen nothing.
struct Softmax {
  float *o, *m, *l;
};

static inline void start_segment(const Softmax& s, int count, int width) {
  __builtin_memset(s.o, 0, static_cast<size_t>(count) * width * 4);
  for (int i = 0; i < count; ++i) s.m[i] = LOWEST, s.l[i] = 0.0f;
}

// Adds the segment to the earlier ones. A vector that saw nothing in it is left as it was. width: a multiple of LANES.
static inline void merge_segment(const Softmax& earlier, const Softmax& segment, int count, int width) {
  for (int i = 0; i < count; ++i) {
    float &m = earlier.m[i], &l = earlier.l[i];
    const float more_m = segment.m[i], more_l = segment.l[i];
    if (more_l == 0.0f) continue;
    float* all = earlier.o + static_cast<size_t>(i) * width;
    const float* o = segment.o + static_cast<size_t>(i) * width;
    if (l == 0.0f) {
      __builtin_memcpy(all, o, static_cast<size_t>(width) * 4);
      m = more_m, l = more_l;
      continue;
    }
    const float top = m > more_m ? m : more_m;
    float lanes[LANES] = {m - top, more_m - top};
    vstore(lanes, vexp2(vload(lanes)));
    const vf old = vset(lanes[0]), add = vset(lanes[1]);
    for (int j = 0; j < width; j += LANES) vstore(all + j, vadd(vmul(vload(all + j), old), vmul(vload(o + j), add)));
    m = top;
    l = l * lanes[0] + more_l * lanes[1];
  }
}

}  // namespace octavo::OCTAVO_ISA_NAME
