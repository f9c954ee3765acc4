// Kernels of mixtures of experts of one instruction-set class: the choice, its sum, float32 products, gates.
// See experts.h.
#include "experts.h"

#include "isa/lanes.h"

namespace octavo::OCTAVO_ISA_NAME {

extern const ExpertKernels EXPERTS;

namespace {

constexpr float OUT = -__builtin_inff();  // of scores: not eligible, or chosen already

vf sigmoid(vf x) { return vdiv(vset(1.0f), vadd(vset(1.0f), vexp2(vmul(x, vset(-LOG2E))))); }

// Lanes [i, i + 16) of n floats, `other` beyond them.
OCTAVO_INLINE vf load_padded(const float* x, int i, int n, float other) {
  if (i + LANES <= n) return vload(x + i);
  return vkeep(vload_n(x + i, n - i), 0, n - i, vset(other));
}

// Where the largest of n floats stands first.
int first_largest(const float* x, int n) {
  vf top = load_padded(x, 0, n, OUT);
  for (int i = LANES; i < n; i += LANES) top = vmax(top, load_padded(x, i, n, OUT));
  const float most = vmaximum(top);
  for (int i = 0; i < n; i += LANES) {
    if (vmaximum(load_padded(x, i, n, OUT)) < most) continue;
    for (int at = i; at < n; ++at) {
      if (x[at] == most) return at;
    }
  }
  return 0;
}

float group_score(const float* x, int n, bool pairs) {
  const int first = first_largest(x, n);
  if (!pairs) return x[first];
  float second = OUT;
  for (int i = 0; i < n; ++i) {
    if (i != first && x[i] > second) second = x[i];
  }
  return n > 1 ? x[first] + second : x[first];
}

void exclude_groups(const RouteArgs& a, float* choice) {
  float scores[MAX_EXPERTS];
  bool in[MAX_EXPERTS] = {};
  const int size = a.experts / a.groups;
  for (int g = 0; g < a.groups; ++g) scores[g] = group_score(choice + g * size, size, a.group_pairs != 0);
  for (int i = 0; i < a.top_groups; ++i) {
    const int best = first_largest(scores, a.groups);
    in[best] = true, scores[best] = OUT;
  }
  for (int i = 0; i < a.experts; ++i) {
    if (!in[i / size]) choice[i] = OUT;
  }
}

// The scores of one row: probabilities or sigmoids; for softmax with normalized shares exp(l - max), which the caller
// divides by the sum over the chosen ones alone. What chooses is `choice`: sigmoids with the bias, else the logits.
void score_row(const RouteArgs& a, const float* logits, float* score, float* choice) {
  vf top = load_padded(logits, 0, a.experts, OUT);
  for (int i = LANES; i < a.experts; i += LANES) top = vmax(top, load_padded(logits, i, a.experts, OUT));
  const vf most = vset(vmaximum(top));
  vf sum = vset(0.0f);
  for (int i = 0; i < a.experts; i += LANES) {
    const int n = a.experts - i < LANES ? a.experts - i : LANES;
    const vf x = load_padded(logits, i, a.experts, OUT);
    const vf s = a.sigmoid ? sigmoid(x) : vkeep(vexp2(vmul(vsub(x, most), vset(LOG2E))), 0, n, vset(0.0f));
    vf c = a.sigmoid ? s : x;
    if (a.bias) c = vadd(c, load_padded(a.bias, i, a.experts, 0.0f));
    sum = vadd(sum, s);
    vstore_n(score + i, s, n);
    vstore_n(choice + i, vmax(c, vset(LOWEST)), n);  // of NaN, too
  }
  if (a.sigmoid || a.normalize) return;
  const vf whole = vset(vsum(sum));
  for (int i = 0; i < a.experts; i += LANES) {
    const int n = a.experts - i < LANES ? a.experts - i : LANES;
    vstore_n(score + i, vdiv(load_padded(score, i, a.experts, 0.0f), whole), n);
  }
}

void route(const RouteArgs& a, int row_begin, int row_end) {
  float score[MAX_EXPERTS], choice[MAX_EXPERTS];
  for (int row = row_begin; row < row_end; ++row) {
    score_row(a, a.logits + static_cast<size_t>(row) * a.experts, score, choice);
    if (a.top_groups < a.groups) exclude_groups(a, choice);
    int32_t* ids = a.ids + static_cast<size_t>(row) * a.k;
    float* shares = a.shares + static_cast<size_t>(row) * a.k;
    for (int j = 0; j < a.k; ++j) {
      const int best = first_largest(choice, a.experts);
      choice[best] = OUT;
      int at = j;
      for (; at > 0 && ids[at - 1] > best; --at) ids[at] = ids[at - 1];
      ids[at] = best;
    }
    float sum = 1e-20f;
    for (int j = 0; j < a.k; ++j) shares[j] = score[ids[j]], sum += shares[j];
    for (int j = 0; j < a.k; ++j) shares[j] = (a.normalize ? shares[j] / sum : shares[j]) * a.scale;
  }
}

// The answers of the chosen experts in ascending order of their ids.
void combine(const CombineArgs& a, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row) {
    const float* shares = a.shares + static_cast<size_t>(row) * a.k;
    const int32_t* place = a.place + static_cast<size_t>(row) * a.k;
    float* out = a.out + static_cast<size_t>(row) * a.width;
    for (int i = 0; i < a.width; i += LANES) {
      const int n = a.width - i < LANES ? a.width - i : LANES;
      vf sum = vset(0.0f);
      for (int j = 0; j < a.k; ++j) {
        const float* y = a.y + static_cast<size_t>(place[j]) * a.width + i;
        sum = vfma(vset(shares[j]), n == LANES ? vload(y) : vload_n(y, n), sum);
      }
      if (n == LANES) vstore(out + i, sum);
      else vstore_n(out + i, sum, n);
    }
  }
}

// Lane l of a sum takes the columns l, l + 16, ... in ascending order, whichever tile it stands in.
template <int ROWS, int OUTPUTS>
void dot_tile(const DotArgs& a, int row, int first) {
  vf sum[ROWS][OUTPUTS];
  const float *x[ROWS], *w[OUTPUTS];
  for (int r = 0; r < ROWS; ++r) {
    x[r] = a.x + static_cast<size_t>(row + r) * a.n;
    for (int o = 0; o < OUTPUTS; ++o) sum[r][o] = vset(0.0f);
  }
  for (int o = 0; o < OUTPUTS; ++o) w[o] = a.w + static_cast<size_t>(first + o) * a.n;
  int i = 0;
  for (; i + LANES <= a.n; i += LANES) {
#pragma GCC unroll 2
    for (int r = 0; r < ROWS; ++r) {
      const vf v = vload(x[r] + i);
#pragma GCC unroll 4
      for (int o = 0; o < OUTPUTS; ++o) sum[r][o] = vfma(v, vload(w[o] + i), sum[r][o]);
    }
  }
  if (i < a.n) {
    for (int r = 0; r < ROWS; ++r) {
      const vf v = vload_n(x[r] + i, a.n - i);
      for (int o = 0; o < OUTPUTS; ++o) sum[r][o] = vfma(v, vload_n(w[o] + i, a.n - i), sum[r][o]);
    }
  }
  for (int r = 0; r < ROWS; ++r) {
    for (int o = 0; o < OUTPUTS; ++o) {
      const float y = vsum(sum[r][o]);
      a.out[static_cast<size_t>(row + r) * a.m + first + o] = a.bias ? y + a.bias[first + o] : y;
    }
  }
}

void dot(const DotArgs& a, int row_begin, int row_end, int begin, int end) {
  int row = row_begin;
  for (; row + 2 <= row_end; row += 2) {
    int o = begin;
    for (; o + 4 <= end; o += 4) dot_tile<2, 4>(a, row, o);
    for (; o < end; ++o) dot_tile<2, 1>(a, row, o);
  }
  if (row == row_end) return;
  int o = begin;
  for (; o + 4 <= end; o += 4) dot_tile<1, 4>(a, row, o);
  for (; o < end; ++o) dot_tile<1, 1>(a, row, o);
}

void gate(const GateArgs& a, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row) {
    const float *x = a.x + static_cast<size_t>(row) * a.width, *g = a.gate + static_cast<size_t>(row) * a.gates;
    float* out = a.out + static_cast<size_t>(row) * a.width;
    for (int i = 0; i < a.width; i += LANES) {
      const int n = a.width - i < LANES ? a.width - i : LANES;
      const vf open = sigmoid(a.gates == 1 ? vset(g[0]) : vload_n(g + i, n));
      vstore_n(out + i, vmul(vload_n(x + i, n), open), n);
    }
  }
}

}  // namespace

const ExpertKernels EXPERTS = {route, combine, dot, gate};

}  // namespace octavo::OCTAVO_ISA_NAME
