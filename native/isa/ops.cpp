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

// The same as records of integers.
template <class F>
static void write_records(int width, uint8_t* records, ActKind kind, F f) {
  const auto block = [&](int begin, float* x) {  // zeros beyond the row
    for (int i = 0; i < BLOCK; i += LANES) {
      const int left = width - begin - i;
      vstore(x + i, vset(0.0f));
      if (left > 0) vstore_n(x + i, f(begin + i, left < LANES ? left : LANES), left < LANES ? left : LANES);
    }
  };
  float x[BLOCK];
  uint32_t top = 0;
  if (act_row_scale(kind)) {
    for (int begin = 0; begin < width; begin += BLOCK) block(begin, x), top = top_bits(x, BLOCK, top);
  }
  for (int begin = 0; begin < width; begin += BLOCK, records += record_bytes(kind)) {
    block(begin, x);
    quantize_block(kind, x, act_row_scale(kind) ? top : top_bits(x, BLOCK, 0), records);
  }
}

OCTAVO_INLINE vf load_some(const float* p, int n) { return n == LANES ? vload(p) : vload_n(p, n); }

static void norm(const NormArgs& a, int row_begin, int row_end) {
  const int stride = a.groups * a.width;
  const vf one = vset(a.weight_plus_one ? 1.0f : 0.0f);
  for (int row = row_begin; row < row_end; ++row) {
    for (int g = 0; g < a.groups; ++g) {
      const float* x = a.x + static_cast<size_t>(row) * stride + g * a.width;
      vf sum0 = vset(0.0f), sum1 = sum0;
      int i = 0;
      for (; i + 2 * LANES <= a.width; i += 2 * LANES) {
        const vf x0 = vload(x + i), x1 = vload(x + i + LANES);
        sum0 = vfma(x0, x0, sum0), sum1 = vfma(x1, x1, sum1);
      }
      for (; i < a.width; i += LANES) {
        const vf x0 = load_some(x + i, a.width - i < LANES ? a.width - i : LANES);
        sum0 = vfma(x0, x0, sum0);
      }
      const float mean = vsum(vadd(sum0, sum1)) / static_cast<float>(a.width);
      const vf r = vset(1.0f / __builtin_sqrtf(mean + a.eps));
      float* out = a.out ? a.out + static_cast<size_t>(row) * stride + g * a.width : nullptr;
      uint16_t* out16 = a.out16 ? a.out16 + static_cast<size_t>(row) * a.ldo + g * a.width : nullptr;
      const int ldo = g + 1 == a.groups ? a.ldo - g * a.width : a.width;
      const auto write = [&](auto f) {
        if (a.records) write_records(a.width, a.records + static_cast<size_t>(row) * a.ldo, a.kind, f);
        else write_row(a.width, out, out16, ldo, f);
      };
      if (a.weight_plus_one) {
        write([&](int at, int n) { return vmul(vmul(load_some(x + at, n), r), vadd(one, load_some(a.weight + at, n))); });
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

static void glu(const ElementArgs& e, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row) {
    const float *a = e.a + static_cast<size_t>(row) * e.width, *b = e.b + static_cast<size_t>(row) * e.width;
    float* out = e.out ? e.out + static_cast<size_t>(row) * e.width : nullptr;
    uint16_t* out16 = e.out16 ? e.out16 + static_cast<size_t>(row) * e.ldo : nullptr;
    write_row(e.width, out, out16, e.ldo, [&](int at, int n) {
      const vf gate = load_some(a + at, n);
      return vmul(e.activation == 0 ? silu(gate) : gelu_tanh(gate), load_some(b + at, n));
    });
  }
}

const OpKernels OPS = {norm, rope_angles, rope, add, glu, scale, quantize, kv_write, attention};

}  // namespace octavo::OCTAVO_ISA_NAME
