// Row operators of one instruction-set class: norm, rope, element-wise, quantize. See ops.h.
#include "ops.h"

#include "isa/lanes.h"
#include "isa/quantize.h"

namespace octavo::OCTAVO_ISA_NAME {

extern void kv_write(const KVWriteArgs&, int row_begin, int row_end);
extern void attention(const AttentionArgs&, Task task, Task next, uint8_t* scratch);
extern const OpKernels OPS;

// ---- one row at a time

// f(i) gives lanes [i, i + 16) of the row; the last may be short.
template <class F>
static void write_row(int width, float* out, uint16_t* out16, int ldo, F f) {
  int i = 0;
  for (; i + LANES <= width; i += LANES) {
    const vf y = f(i, LANES);
    if (out) vstore(out + i, y);
    else vstore_bf16(out16 + i, y);
  }
  if (i < width) {
    const vf y = f(i, width - i);
    float lanes[LANES];
    vstore(lanes, y);
    for (int j = 0; i + j < width; ++j) {
      if (out) out[i + j] = lanes[j];
      else out16[i + j] = to_bf16(lanes[j]);
    }
  }
  if (out16) {
    for (i = width; i < ldo; ++i) out16[i] = 0;
  }
}

OCTAVO_INLINE void set_half(BlockFloats& to, int half, vf x) {
#if defined(__AVX512BW__)
  to.half[half] = x;
#else
  vstore(to.x + half * LANES, x);
#endif
}

// Records of I15Q. block(begin) gives the floats of a block.
template <class F>
static void write_stretches(int width, uint8_t* records, F block) {
  uint32_t tops[STRETCH];
  for (int begin = 0; begin < width; begin += STRETCH * BLOCK) {
    const int left = (width - begin + BLOCK - 1) / BLOCK, count = left < STRETCH ? left : STRETCH;
    for (int i = 0; i < count; ++i) {
      TopBits top;
      top.take(block(begin + i * BLOCK));
      tops[i] = top.found();
    }
    const uint32_t heavy = reached_by(tops, count, (count + HEAVY_OF - 1) / HEAVY_OF);
    for (int i = 0; i < count; ++i, records += record_bytes(ActKind::I15Q)) {
      const RecordScale scale = tops[i] >= heavy ? scale_of(ActKind::I15Q, tops[i]) : light_scale(tops[i]);
      quantize_block(ActKind::I15Q, block(begin + i * BLOCK), scale, records);
    }
  }
}

// The same as records of integers.
template <class F>
static void write_records(int width, uint8_t* records, ActKind kind, F f) {
  const auto block = [&](int begin) {  // zeros beyond the row
    BlockFloats x;
    for (int half = 0; half < 2; ++half) {
      const int at = begin + half * LANES, left = width - at;
      set_half(x, half, left >= LANES ? f(at, LANES) : left > 0 ? vkeep(f(at, left), 0, left, vset(0.0f)) : vset(0.0f));
    }
    return x;
  };
  RecordScale scale;
  if (act_row_scale(kind)) {
    TopBits top, below;
    for (int begin = 0; begin < width; begin += BLOCK) {
      const BlockFloats x = block(begin);
      top.take(x);
      if (kind == ActKind::I8X) below.take_below(x, OUTLIER);
    }
    scale = scale_of(kind, top.found(), below.found());
  }
  if (kind == ActKind::I15Q) return write_stretches(width, records, block);
  for (int begin = 0; begin < width; begin += BLOCK, records += record_bytes(kind)) {
    const BlockFloats x = block(begin);
    quantize_block(kind, x, act_row_scale(kind) ? scale : scale_of(kind, x), records);
  }
}

OCTAVO_INLINE vf load_some(const float* p, int n) { return n == LANES ? vload(p) : vload_n(p, n); }

// Sums of two chains of lanes, even vectors and odd ones.
template <class F>
OCTAVO_INLINE float sum_row(const float* x, int width, F f) {
  vf sum0 = vset(0.0f), sum1 = sum0;
  int i = 0;
  for (; i + 2 * LANES <= width; i += 2 * LANES) sum0 = f(vload(x + i), LANES, sum0), sum1 = f(vload(x + i + LANES), LANES, sum1);
  for (; i < width; i += LANES) {
    const int n = width - i < LANES ? width - i : LANES;
    sum0 = f(load_some(x + i, n), n, sum0);
  }
  return vsum(vadd(sum0, sum1));
}

static void norm(const NormArgs& a, int row_begin, int row_end) {
  const int stride = a.groups * a.width;
  for (int row = row_begin; row < row_end; ++row) {
    for (int g = 0; g < a.groups; ++g) {
      const float* x = a.x + static_cast<size_t>(row) * stride + g * a.width;
      const auto squares = [&](vf v, int, vf sum) { return vfma(v, v, sum); };
      const float count = a.rule == NormRule::L2 ? 1.0f : static_cast<float>(a.width);
      float middle = 0.0f, square;
      if (a.rule == NormRule::LAYER) {
        middle = sum_row(x, a.width, [](vf v, int, vf sum) { return vadd(sum, v); }) / count;
        square = sum_row(x, a.width, [&](vf v, int n, vf sum) {
          const vf y = vkeep(vsub(v, vset(middle)), 0, n, vset(0.0f));
          return vfma(y, y, sum);
        });
      } else {
        square = sum_row(x, a.width, squares);
      }
      const vf r = vset(1.0f / __builtin_sqrtf(square / count + a.eps)), center = vset(middle);
      float* out = a.out ? a.out + static_cast<size_t>(row) * stride + g * a.width : nullptr;
      uint16_t* out16 = a.out16 ? a.out16 + static_cast<size_t>(row) * a.ldo + g * a.width : nullptr;
      const int ldo = g + 1 == a.groups ? a.ldo - g * a.width : a.width;
      const auto write = [&](auto f) {
        if (a.records) write_records(a.width, a.records + static_cast<size_t>(row) * a.ldo, a.kind, f);
        else write_row(a.width, out, out16, ldo, f);
      };
      if (a.weight_plus_one) {
        const vf one = vset(1.0f);
        write([&](int at, int n) { return vmul(vmul(load_some(x + at, n), r), vadd(one, load_some(a.weight + at, n))); });
      } else if (a.rule == NormRule::L2) {
        write([&](int at, int n) { return vmul(load_some(x + at, n), r); });
      } else if (a.rule == NormRule::LAYER) {
        write([&](int at, int n) {
          const vf y = vmul(vmul(vsub(load_some(x + at, n), center), r), load_some(a.weight + at, n));
          return a.bias ? vadd(y, load_some(a.bias + at, n)) : y;
        });
      } else {
        write([&](int at, int n) { return vmul(vmul(load_some(x + at, n), r), load_some(a.weight + at, n)); });
      }
    }
  }
}

// Sine and cosine of a >= 0 in double, good to float precision for |a| < 2^25: pi/2 in three parts, the first two
// with few enough bits that k times them is exact, then Taylor series on [-pi/4, pi/4].
static void sin_cos(double a, float factor, float* sine, float* cosine) {
  const double magic = 6755399441055744.0;
  const double k = (a * 0.63661977236758134308 + magic) - magic;
  double r = a - k * 0x1.921fb544p+0;
  r = r - k * 0x1.0b4611a6p-34;
  r = r - k * 2.02226624879595063154e-21;
  const double r2 = r * r;
  double s = -1.0 / 39916800.0;
  s = s * r2 + 1.0 / 362880.0;
  s = s * r2 - 1.0 / 5040.0;
  s = s * r2 + 1.0 / 120.0;
  s = s * r2 - 1.0 / 6.0;
  s = s * r2 * r + r;
  double c = 1.0 / 479001600.0;
  c = c * r2 - 1.0 / 3628800.0;
  c = c * r2 + 1.0 / 40320.0;
  c = c * r2 - 1.0 / 720.0;
  c = c * r2 + 1.0 / 24.0;
  c = c * r2 - 0.5;
  c = c * r2 + 1.0;
  const int quadrant = static_cast<int>(static_cast<int64_t>(k) & 3);
  const float sin_r = static_cast<float>(s), cos_r = static_cast<float>(c);
  const float sines[4] = {sin_r, cos_r, -sin_r, -cos_r};
  *sine = sines[quadrant] * factor;
  *cosine = sines[(quadrant + 1) & 3] * factor;
}

static void rope_angles(const RopeAnglesArgs& a, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row) {
    float* out = a.out + static_cast<size_t>(row) * 2 * a.half;
    const float position = static_cast<float>(a.position[row]);
    for (int i = 0; i < a.half; ++i) {
      const float angle = position * a.inv_freq[i];
      sin_cos(angle, a.factor, out + a.half + i, out + i);
    }
  }
}

static void rope(const RopeArgs& a, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row) {
    const float *cosines = a.angles + static_cast<size_t>(row) * 2 * a.half, *sines = cosines + a.half;
    for (int h = 0; h < a.heads; ++h) {
      const size_t at = (static_cast<size_t>(row) * a.heads + h) * a.d;
      const float* x = a.x + at;
      float* out = a.out + at;
      for (int i = 0; i < a.half; i += LANES) {
        const int n = a.half - i < LANES ? a.half - i : LANES;
        const vf c = load_some(cosines + i, n), s = load_some(sines + i, n);
        const vf x0 = load_some(x + i, n), x1 = load_some(x + a.half + i, n);
        vstore_n(out + i, vsub(vmul(x0, c), vmul(x1, s)), n);
        vstore_n(out + a.half + i, vadd(vmul(x1, c), vmul(x0, s)), n);
      }
      if (out != x) {
        for (int i = 2 * a.half; i < a.d; ++i) out[i] = x[i];
      }
    }
  }
}

static void add(const ElementArgs& e, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row) {
    const float *a = e.a + static_cast<size_t>(row) * e.width, *b = e.b + static_cast<size_t>(row) * e.width;
    float* out = e.out + static_cast<size_t>(row) * e.width;
    for (int i = 0; i < e.width; ++i) out[i] = a[i] + b[i];
  }
}

static void scale(const ElementArgs& e, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row) {
    const float* a = e.a + static_cast<size_t>(row) * e.width;
    float* out = e.out + static_cast<size_t>(row) * e.width;
    for (int i = 0; i < e.width; ++i) out[i] = a[i] * e.scale;
  }
}

static void quantize(const ElementArgs& e, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row) {
    const float* a = e.a + static_cast<size_t>(row) * e.width;
    const size_t to = static_cast<size_t>(row) * e.ldo;
    const auto f = [&](int at, int n) { return load_some(a + at, n); };
    if (e.records) write_records(e.width, e.records + to, e.kind, f);
    else write_row(e.width, nullptr, e.out16 + to, e.ldo, f);
  }
}

// x / (1 + exp(-x))
OCTAVO_INLINE vf silu(vf x) { return vdiv(x, vadd(vset(1.0f), vexp2(vmul(x, vset(-LOG2E))))); }

// x / (1 + exp(-2 sqrt(2 / pi) (x + 0.044715 x^3))), which is x (1 + tanh(...)) / 2
OCTAVO_INLINE vf gelu_tanh(vf x) {
  const vf inner = vmul(x, vfma(vset(0.044715f), vmul(x, x), vset(1.0f)));
  return vdiv(x, vadd(vset(1.0f), vexp2(vmul(inner, vset(-2.0f * 0.7978845608f * LOG2E)))));
}

OCTAVO_INLINE vf clamped(const ElementArgs& e, vf gate, vf up) {
  const vf most = vset(e.limit), one = vset(1.0f), g = vmin(most, gate), u = vmin(most, vmax(vset(-e.limit), up));
  return vmul(vadd(u, one), vdiv(g, vadd(one, vexp2(vmul(g, vset(-e.alpha * LOG2E))))));
}

static void glu(const ElementArgs& e, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row) {
    const float *a = e.a + static_cast<size_t>(row) * e.width, *b = e.b + static_cast<size_t>(row) * e.width;
    float* out = e.out ? e.out + static_cast<size_t>(row) * e.width : nullptr;
    uint16_t* out16 = e.out16 ? e.out16 + static_cast<size_t>(row) * e.ldo : nullptr;
    write_row(e.width, out, out16, e.ldo, [&](int at, int n) {
      const vf gate = load_some(a + at, n), up = load_some(b + at, n);
      if (e.activation == CLAMPED) return clamped(e, gate, up);
      return vmul(e.activation == SILU ? silu(gate) : gelu_tanh(gate), up);
    });
  }
}

// x (1 + erf(x / sqrt 2)) / 2; erf by Abramowitz and Stegun 7.1.26, to 1.5e-7.
OCTAVO_INLINE vf gelu(vf x) {
  const vf size = vmax(vsub(vset(0.0f), x), x), z = vmul(size, vset(0.70710678f));
  const vf t = vdiv(vset(1.0f), vfma(z, vset(0.3275911f), vset(1.0f)));
  vf p = vfma(vset(1.061405429f), t, vset(-1.453152027f));
  p = vfma(p, t, vset(1.421413741f));
  p = vfma(p, t, vset(-0.284496736f));
  p = vmul(vfma(p, t, vset(0.254829592f)), t);
  const vf tail = vmul(p, vexp2(vmul(vmul(z, z), vset(-LOG2E))));
  return vsub(vmax(vset(0.0f), x), vmul(vmul(size, vset(0.5f)), tail));
}

// f of each element, in the form that the output has.
template <class F>
static void act_rows(const ElementArgs& e, int row_begin, int row_end, F f) {
  for (int row = row_begin; row < row_end; ++row) {
    const float* a = e.a + static_cast<size_t>(row) * e.width;
    const size_t to = static_cast<size_t>(row) * (e.out ? e.width : e.ldo);
    const auto lanes = [&](int at, int n) { return f(load_some(a + at, n)); };
    if (e.records) write_records(e.width, e.records + to, e.kind, lanes);
    else write_row(e.width, e.out ? e.out + to : nullptr, e.out16 ? e.out16 + to : nullptr, e.ldo, lanes);
  }
}

static void act(const ElementArgs& e, int row_begin, int row_end) {
  const vf top = vset(e.scale), inverse = vset(e.activation == CAP ? 1.0f / e.scale : 1.0f);
  switch (e.activation) {
    case SILU: return act_rows(e, row_begin, row_end, [](vf x) { return silu(x); });
    case GELU_TANH: return act_rows(e, row_begin, row_end, [](vf x) { return gelu_tanh(x); });
    case GELU: return act_rows(e, row_begin, row_end, [](vf x) { return gelu(x); });
    default: return act_rows(e, row_begin, row_end, [&](vf x) { return vmul(vtanh(vmul(x, inverse)), top); });
  }
}

static void pool(const PoolArgs& p, int row_begin, int row_end) {
  for (int request = row_begin; request < row_end; ++request) {
    float* out = p.out + static_cast<size_t>(request) * p.width;
    const int begin = p.row_begin[request], end = p.row_begin[request + 1];
    const int only = p.mode == PoolArgs::LAST ? end - 1 : begin, first = p.mode == PoolArgs::MEAN ? begin : only;
    const int last = p.mode == PoolArgs::MEAN ? end : only + 1;
    const vf share = vset(1.0f / static_cast<float>(last - first));
    for (int i = 0; i < p.width; i += LANES) {
      const int n = p.width - i < LANES ? p.width - i : LANES;
      vf sum = vset(0.0f);
      for (int row = first; row < last; ++row) sum = vadd(sum, load_some(p.x + static_cast<size_t>(row) * p.width + i, n));
      vstore_n(out + i, vmul(sum, share), n);
    }
  }
}

const OpKernels OPS = {norm, rope_angles, rope, add, glu, act, scale, quantize, pool, kv_write, attention};

}  // namespace octavo::OCTAVO_ISA_NAME
