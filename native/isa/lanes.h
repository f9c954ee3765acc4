// Sixteen float lanes, spelled for each instruction-set class: what the kernels in this folder are written in.
//
// vf: 16 floats. vp: 16 lanes of two bf16 (the lower address in the low half). Included only by isa/*.cpp; everything
// has internal linkage, so that no class's code can stand in for another's.
// dp(acc, x, y) adds x.low * y.low + x.high * y.high to each lane; its rounding is the class's own.
// vi: 16 int32. evens and odds: the bytes 0 and 2, 1 and 3 of each lane as two int16; idot(acc, x, y): dp of two int16,
// exact. vstore_i16: to nearest whole numbers, ties to even.
#pragma once
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define OCTAVO_INLINE static inline __attribute__((always_inline))

namespace octavo::OCTAVO_ISA_NAME {

constexpr int LANES = 16;
constexpr float LOG2E = 1.44269504f;
constexpr float LOWEST = -3.0e38f;  // stands for minus infinity where two of them may be subtracted

OCTAVO_INLINE uint32_t float_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
OCTAVO_INLINE float bits_float(uint32_t x) { return __builtin_bit_cast(float, x); }
// Nearest even; NaN stays NaN.
OCTAVO_INLINE uint16_t to_bf16(float x) {
  const uint32_t u = float_bits(x);
  if ((u & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((u >> 16) | 0x40);
  return static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

#if defined(__AVX512F__)

using vf = __m512;
using vp = __m512i;
OCTAVO_INLINE vf vload(const float* p) { return _mm512_loadu_ps(p); }
OCTAVO_INLINE vf vload_n(const float* p, int n) { return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p); }
OCTAVO_INLINE void vstore(float* p, vf x) { _mm512_storeu_ps(p, x); }
OCTAVO_INLINE void vstore_n(float* p, vf x, int n) { _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), x); }
OCTAVO_INLINE vf vset(float x) { return _mm512_set1_ps(x); }
OCTAVO_INLINE vf vadd(vf a, vf b) { return _mm512_add_ps(a, b); }
OCTAVO_INLINE vf vsub(vf a, vf b) { return _mm512_sub_ps(a, b); }
OCTAVO_INLINE vf vmul(vf a, vf b) { return _mm512_mul_ps(a, b); }
OCTAVO_INLINE vf vdiv(vf a, vf b) { return _mm512_div_ps(a, b); }
OCTAVO_INLINE vf vfma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
OCTAVO_INLINE vf vmax(vf a, vf b) { return _mm512_max_ps(a, b); }
OCTAVO_INLINE vf vmin(vf a, vf b) { return _mm512_min_ps(a, b); }
OCTAVO_INLINE float vsum(vf x) { return _mm512_reduce_add_ps(x); }
OCTAVO_INLINE float vmaximum(vf x) { return _mm512_reduce_max_ps(x); }
// Lanes [first, last) of x, `other` elsewhere; the bounds may lie outside [0, 16].
OCTAVO_INLINE vf vkeep(vf x, int first, int last, vf other) {
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __mmask16 in = _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(first)) &
                       _mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(last));
  return _mm512_mask_mov_ps(other, in, x);
}
OCTAVO_INLINE vf vround(vf x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
OCTAVO_INLINE vf vscale(vf x, vf n) { return _mm512_scalef_ps(x, n); }  // x * 2^n, n whole
OCTAVO_INLINE vp pload(const void* p) { return _mm512_loadu_si512(p); }
OCTAVO_INLINE vp pset(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
OCTAVO_INLINE vf dp(vf acc, vp x, vp y) { return _mm512_dpbf16_ps(acc, (__m512bh)x, (__m512bh)y); }
OCTAVO_INLINE void vstore_bf16(void* p, vf x) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(x));
}
using vi = __m512i;
OCTAVO_INLINE vi izero() { return _mm512_setzero_si512(); }
OCTAVO_INLINE vp evens(vp x) { return _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8); }
OCTAVO_INLINE vp odds(vp x) { return _mm512_srai_epi16(x, 8); }
OCTAVO_INLINE vi idot(vi acc, vp x, vp y) { return _mm512_dpwssd_epi32(acc, x, y); }
OCTAVO_INLINE vf vfloat(vi x) { return _mm512_cvtepi32_ps(x); }
OCTAVO_INLINE void vstore_i16(void* p, vf x) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x)));
}

#elif defined(__AVX2__)

struct vf {
  __m256 a, b;
};
struct vp {
  __m256i a, b;
};
OCTAVO_INLINE vf vload(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
OCTAVO_INLINE void vstore(float* p, vf x) { _mm256_storeu_ps(p, x.a), _mm256_storeu_ps(p + 8, x.b); }
OCTAVO_INLINE vf vset(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
OCTAVO_INLINE vf vadd(vf a, vf b) { return {_mm256_add_ps(a.a, b.a), _mm256_add_ps(a.b, b.b)}; }
OCTAVO_INLINE vf vsub(vf a, vf b) { return {_mm256_sub_ps(a.a, b.a), _mm256_sub_ps(a.b, b.b)}; }
OCTAVO_INLINE vf vmul(vf a, vf b) { return {_mm256_mul_ps(a.a, b.a), _mm256_mul_ps(a.b, b.b)}; }
OCTAVO_INLINE vf vdiv(vf a, vf b) { return {_mm256_div_ps(a.a, b.a), _mm256_div_ps(a.b, b.b)}; }
OCTAVO_INLINE vf vfma(vf a, vf b, vf c) { return {_mm256_fmadd_ps(a.a, b.a, c.a), _mm256_fmadd_ps(a.b, b.b, c.b)}; }
OCTAVO_INLINE vf vmax(vf a, vf b) { return {_mm256_max_ps(a.a, b.a), _mm256_max_ps(a.b, b.b)}; }
OCTAVO_INLINE vf vmin(vf a, vf b) { return {_mm256_min_ps(a.a, b.a), _mm256_min_ps(a.b, b.b)}; }
OCTAVO_INLINE float vsum(vf x) {
  const __m256 eight = _mm256_add_ps(x.a, x.b);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}
OCTAVO_INLINE float vmaximum(vf x) {
  const __m256 eight = _mm256_max_ps(x.a, x.b);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}
OCTAVO_INLINE __m256 vkeep_half(__m256 x, __m256i lane, int first, int last, __m256 other) {
  const __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(first), lane);
  const __m256i in = _mm256_andnot_si256(below, _mm256_cmpgt_epi32(_mm256_set1_epi32(last), lane));
  return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(in));
}
// Lanes [first, last) of x, `other` elsewhere; the bounds may lie outside [0, 16].
OCTAVO_INLINE vf vkeep(vf x, int first, int last, vf other) {
  const __m256i low = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0), high = _mm256_set_epi32(15, 14, 13, 12, 11, 10, 9, 8);
  return {vkeep_half(x.a, low, first, last, other.a), vkeep_half(x.b, high, first, last, other.b)};
}
OCTAVO_INLINE vf vround(vf x) {
  return {_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
OCTAVO_INLINE __m256 vscale_half(__m256 x, __m256 n) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), exponent));
}
OCTAVO_INLINE vf vscale(vf x, vf n) { return {vscale_half(x.a, n.a), vscale_half(x.b, n.b)}; }  // x * 2^n, n whole
OCTAVO_INLINE vp pload(const void* p) {
  return {_mm256_loadu_si256(static_cast<const __m256i*>(p)),
          _mm256_loadu_si256(static_cast<const __m256i*>(p) + 1)};
}
OCTAVO_INLINE vp pset(uint32_t x) {
  return {_mm256_set1_epi32(static_cast<int>(x)), _mm256_set1_epi32(static_cast<int>(x))};
}
OCTAVO_INLINE __m256 dp_half(__m256 acc, __m256i x, __m256i y) {
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000));
  acc = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(y, 16)), acc);
  return _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(x, high)), _mm256_castsi256_ps(_mm256_and_si256(y, high)), acc);
}
OCTAVO_INLINE vf dp(vf acc, vp x, vp y) { return {dp_half(acc.a, x.a, y.a), dp_half(acc.b, x.b, y.b)}; }
OCTAVO_INLINE __m256i bf16_half(__m256 x) {  // in the low halves of the lanes
  const __m256i bits = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
}
OCTAVO_INLINE void vstore_bf16(void* p, vf x) {
  const __m256i packed = _mm256_packus_epi32(bf16_half(x.a), bf16_half(x.b));
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
using vi = vp;
OCTAVO_INLINE vi izero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
OCTAVO_INLINE vp evens(vp x) {
  return {_mm256_srai_epi16(_mm256_slli_epi16(x.a, 8), 8), _mm256_srai_epi16(_mm256_slli_epi16(x.b, 8), 8)};
}
OCTAVO_INLINE vp odds(vp x) { return {_mm256_srai_epi16(x.a, 8), _mm256_srai_epi16(x.b, 8)}; }
OCTAVO_INLINE vi idot(vi acc, vp x, vp y) {
  return {_mm256_add_epi32(acc.a, _mm256_madd_epi16(x.a, y.a)), _mm256_add_epi32(acc.b, _mm256_madd_epi16(x.b, y.b))};
}
OCTAVO_INLINE vf vfloat(vi x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
OCTAVO_INLINE void vstore_i16(void* p, vf x) {
  const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}

#else

typedef float f4 __attribute__((vector_size(16)));
typedef int32_t i4 __attribute__((vector_size(16)));
struct vf {
  f4 q[4];
};
struct vp {
  i4 q[4];
};
#define OCTAVO_EACH for (int i = 0; i < 4; ++i)
OCTAVO_INLINE f4 f4_load(const float* p) {
  f4 x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
OCTAVO_INLINE f4 f4_select(i4 mask, f4 x, f4 other) { return (f4)((mask & (i4)x) | (~mask & (i4)other)); }
OCTAVO_INLINE vf vload(const float* p) {
  vf r;
  OCTAVO_EACH r.q[i] = f4_load(p + 4 * i);
  return r;
}
OCTAVO_INLINE void vstore(float* p, vf x) { OCTAVO_EACH __builtin_memcpy(p + 4 * i, &x.q[i], sizeof(f4)); }
OCTAVO_INLINE vf vset(float x) {
  vf r;
  OCTAVO_EACH r.q[i] = f4{x, x, x, x};
  return r;
}
OCTAVO_INLINE vf vadd(vf a, vf b) {
  OCTAVO_EACH a.q[i] += b.q[i];
  return a;
}
OCTAVO_INLINE vf vsub(vf a, vf b) {
  OCTAVO_EACH a.q[i] -= b.q[i];
  return a;
}
OCTAVO_INLINE vf vmul(vf a, vf b) {
  OCTAVO_EACH a.q[i] *= b.q[i];
  return a;
}
OCTAVO_INLINE vf vdiv(vf a, vf b) {
  OCTAVO_EACH a.q[i] /= b.q[i];
  return a;
}
OCTAVO_INLINE vf vfma(vf a, vf b, vf c) {
  OCTAVO_EACH c.q[i] += a.q[i] * b.q[i];
  return c;
}
OCTAVO_INLINE vf vmax(vf a, vf b) {
  OCTAVO_EACH a.q[i] = f4_select(a.q[i] > b.q[i], a.q[i], b.q[i]);
  return a;
}
OCTAVO_INLINE vf vmin(vf a, vf b) {
  OCTAVO_EACH a.q[i] = f4_select(a.q[i] < b.q[i], a.q[i], b.q[i]);
  return a;
}
OCTAVO_INLINE float vsum(vf x) {
  const f4 four = (x.q[0] + x.q[2]) + (x.q[1] + x.q[3]);
  return (four[0] + four[2]) + (four[1] + four[3]);
}
OCTAVO_INLINE float vmaximum(vf x) {
  const vf y = {f4_select(x.q[0] > x.q[1], x.q[0], x.q[1]), f4_select(x.q[2] > x.q[3], x.q[2], x.q[3]), {}, {}};
  const f4 four = f4_select(y.q[0] > y.q[1], y.q[0], y.q[1]);
  const float low = four[0] > four[1] ? four[0] : four[1], high = four[2] > four[3] ? four[2] : four[3];
  return low > high ? low : high;
}
// Lanes [first, last) of x, `other` elsewhere; the bounds may lie outside [0, 16].
OCTAVO_INLINE vf vkeep(vf x, int first, int last, vf other) {
  OCTAVO_EACH {
    const i4 lane = i4{0, 1, 2, 3} + 4 * i;
    x.q[i] = f4_select((lane >= first) & (lane < last), x.q[i], other.q[i]);
  }
  return x;
}
OCTAVO_INLINE vf vround(vf x) {  // |x| < 2^22
  const f4 magic = f4{} + 12582912.0f;
  OCTAVO_EACH x.q[i] = (x.q[i] + magic) - magic;
  return x;
}
OCTAVO_INLINE vf vscale(vf x, vf n) {  // x * 2^n, n whole
  const f4 magic = f4{} + 12582912.0f;
  OCTAVO_EACH x.q[i] = (f4)((i4)x.q[i] + (((i4)(n.q[i] + magic) - (i4)magic) << 23));
  return x;
}
OCTAVO_INLINE vp pload(const void* p) {
  vp r;
  OCTAVO_EACH __builtin_memcpy(&r.q[i], static_cast<const uint8_t*>(p) + 16 * i, sizeof(i4));
  return r;
}
OCTAVO_INLINE vp pset(uint32_t x) {
  vp r;
  OCTAVO_EACH r.q[i] = i4{} + static_cast<int32_t>(x);
  return r;
}
OCTAVO_INLINE vf dp(vf acc, vp x, vp y) {
  const int32_t high = static_cast<int32_t>(0xffff0000);
  OCTAVO_EACH {
    acc.q[i] += (f4)(x.q[i] << 16) * (f4)(y.q[i] << 16);
    acc.q[i] += (f4)(x.q[i] & high) * (f4)(y.q[i] & high);
  }
  return acc;
}
OCTAVO_INLINE void vstore_bf16(void* p, vf x) {
  float lanes[LANES];
  vstore(lanes, x);
  uint16_t bits[LANES];
  for (int i = 0; i < LANES; ++i) bits[i] = to_bf16(lanes[i]);
  __builtin_memcpy(p, bits, sizeof bits);
}
using vi = vp;
OCTAVO_INLINE vi izero() { return {}; }
OCTAVO_INLINE vp evens(vp x) {  // a byte to 16 bits: the low one of each half word
  OCTAVO_EACH x.q[i] = ((x.q[i] << 24 >> 24) & 0xffff) | (x.q[i] << 8 >> 24 << 16);
  return x;
}
OCTAVO_INLINE vp odds(vp x) {
  OCTAVO_EACH x.q[i] = ((x.q[i] << 16 >> 24) & 0xffff) | (x.q[i] >> 24 << 16);
  return x;
}
OCTAVO_INLINE vi idot(vi acc, vp x, vp y) {
  OCTAVO_EACH acc.q[i] += (x.q[i] << 16 >> 16) * (y.q[i] << 16 >> 16) + (x.q[i] >> 16) * (y.q[i] >> 16);
  return acc;
}
OCTAVO_INLINE vf vfloat(vi x) {
  vf r;
  OCTAVO_EACH r.q[i] = __builtin_convertvector(x.q[i], f4);
  return r;
}
OCTAVO_INLINE void vstore_i16(void* p, vf x) {  // |x| < 2^22
  const f4 magic = f4{} + 12582912.0f;
  int16_t codes[LANES];
  OCTAVO_EACH {
    const i4 whole = (i4)(x.q[i] + magic) - (i4)magic;
    for (int j = 0; j < 4; ++j) codes[4 * i + j] = static_cast<int16_t>(whole[j]);
  }
  __builtin_memcpy(p, codes, sizeof codes);
}
#undef OCTAVO_EACH

#endif

#if !defined(__AVX512F__)  // classes without masked loads
OCTAVO_INLINE vf vload_n(const float* p, int n) {
  float lanes[LANES] = {0};
  __builtin_memcpy(lanes, p, n * sizeof(float));
  return vload(lanes);
}
OCTAVO_INLINE void vstore_n(float* p, vf x, int n) {
  float lanes[LANES];
  vstore(lanes, x);
  __builtin_memcpy(p, lanes, n * sizeof(float));
}
#endif

// 2^x by our own polynomial (relative error below 1e-7); exact at whole numbers; x is held to [-125, 125]; NaN stays.
// vmax and vmin give their second operand when either is NaN.
OCTAVO_INLINE vf vexp2(vf x) {
  x = vmin(vset(125.0f), vmax(vset(-125.0f), x));
  const vf whole = vround(x), f = vsub(x, whole);
  vf p = vfma(vset(0x1.444p-13f), f, vset(0x1.5f48cp-10f));
  p = vfma(p, f, vset(0x1.3b2a1cp-7f));
  p = vfma(p, f, vset(0x1.c6aeccp-5f));
  p = vfma(p, f, vset(0x1.ebfbep-3f));
  p = vfma(p, f, vset(0x1.62e43p-1f));
  p = vfma(p, f, vset(1.0f));
  return vscale(p, whole);
}

// To about 1e-7, absolute.
OCTAVO_INLINE vf vtanh(vf x) {
  return vsub(vset(1.0f), vdiv(vset(2.0f), vadd(vset(1.0f), vexp2(vmul(x, vset(2.0f * LOG2E))))));
}

// The largest |x| of n floats; not a number if one of them is not finite.
OCTAVO_INLINE float magnitude(const float* x, int n) {
  vf top = vset(0.0f), zeros = top;
  for (int i = 0; i < n; i += LANES) {
    const vf some = n - i < LANES ? vload_n(x + i, n - i) : vload(x + i);
    top = vmax(top, vmax(some, vsub(vset(0.0f), some)));
    zeros = vadd(zeros, vmul(some, vset(0.0f)));
  }
  return vmaximum(top) + vsum(zeros);
}

// A row of n floats as bf16.
OCTAVO_INLINE void round_row(const float* from, uint16_t* to, int n) {
  int i = 0;
  for (; i + LANES <= n; i += LANES) vstore_bf16(to + i, vload(from + i));
  for (; i < n; ++i) to[i] = to_bf16(from[i]);
}

}  // namespace octavo::OCTAVO_ISA_NAME
