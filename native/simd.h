// A float vector of the class being compiled, and the transcendental functions of the kernels.
//
// vf has VW lanes: 16 (AVX-512, AMX), 8 (AVX2), 4 (portable, compiler vectors). Every function is lane-wise with one
// order of operations, so a value does not depend on its lane or on its neighbours. v_fma rounds once in every class.
// Denormals: the caller sets flush-to-zero and denormals-are-zero on its thread (native/linear.h, FlushDenormals).
#pragma once
#include <cstdint>
#include <cstring>
#if defined(OCTAVO_ISA_avx2) || defined(OCTAVO_ISA_avx512) || defined(OCTAVO_ISA_amx)
#include <immintrin.h>
#endif

#define OCTAVO_INLINE static inline __attribute__((always_inline))

namespace octavo::OCTAVO_ISA_NAME {

#if defined(OCTAVO_ISA_avx512) || defined(OCTAVO_ISA_amx)
typedef __m512 vf;
typedef __m512i vi;
constexpr int VW = 16;
OCTAVO_INLINE vf v_load(const float* p) { return _mm512_loadu_ps(p); }
OCTAVO_INLINE void v_store(float* p, vf a) { _mm512_storeu_ps(p, a); }
OCTAVO_INLINE vf v_set1(float a) { return _mm512_set1_ps(a); }
OCTAVO_INLINE vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
OCTAVO_INLINE vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
OCTAVO_INLINE vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
OCTAVO_INLINE vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
OCTAVO_INLINE vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
// max and min give the second operand when either is NaN
OCTAVO_INLINE vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
OCTAVO_INLINE vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }
OCTAVO_INLINE vi v_bits(vf a) { return _mm512_castps_si512(a); }
OCTAVO_INLINE vf v_float(vi a) { return _mm512_castsi512_ps(a); }
OCTAVO_INLINE vi v_load_bits(const void* p) { return _mm512_loadu_si512(p); }
OCTAVO_INLINE vf v_load_f16(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
OCTAVO_INLINE vf v_load_u8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
OCTAVO_INLINE vf v_load_i8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
// A word holds two bf16: the low one and the high one as floats.
OCTAVO_INLINE vf v_low(vi w) { return v_float(_mm512_slli_epi32(w, 16)); }
OCTAVO_INLINE vf v_high(vi w) { return v_float(_mm512_and_si512(w, _mm512_set1_epi32((int)0xFFFF0000))); }
OCTAVO_INLINE vf v_scale2(vf a, vf n) {  // a * 2^n, n whole
  return v_float(_mm512_add_epi32(v_bits(a), _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23)));
}
OCTAVO_INLINE void v_store_bf16(uint16_t* p, vf a) {
  const vi b = v_bits(a), odd = _mm512_and_si512(_mm512_srli_epi32(b, 16), _mm512_set1_epi32(1));
  const vi round = _mm512_add_epi32(b, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  const vi quiet = _mm512_or_si512(b, _mm512_set1_epi32(0x400000));
  const vi r = _mm512_mask_mov_epi32(round, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), quiet);
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)));
}
#elif defined(OCTAVO_ISA_avx2)
typedef __m256 vf;
typedef __m256i vi;
constexpr int VW = 8;
OCTAVO_INLINE vf v_load(const float* p) { return _mm256_loadu_ps(p); }
OCTAVO_INLINE void v_store(float* p, vf a) { _mm256_storeu_ps(p, a); }
OCTAVO_INLINE vf v_set1(float a) { return _mm256_set1_ps(a); }
OCTAVO_INLINE vf v_add(vf a, vf b) { return _mm256_add_ps(a, b); }
OCTAVO_INLINE vf v_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
OCTAVO_INLINE vf v_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
OCTAVO_INLINE vf v_div(vf a, vf b) { return _mm256_div_ps(a, b); }
OCTAVO_INLINE vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
OCTAVO_INLINE vf v_max(vf a, vf b) { return _mm256_max_ps(a, b); }
OCTAVO_INLINE vf v_min(vf a, vf b) { return _mm256_min_ps(a, b); }
OCTAVO_INLINE vi v_bits(vf a) { return _mm256_castps_si256(a); }
OCTAVO_INLINE vf v_float(vi a) { return _mm256_castsi256_ps(a); }
OCTAVO_INLINE vi v_load_bits(const void* p) { return _mm256_loadu_si256((const __m256i*)p); }
OCTAVO_INLINE vf v_load_f16(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
OCTAVO_INLINE vf v_load_u8(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}
OCTAVO_INLINE vf v_load_i8(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}
OCTAVO_INLINE vf v_low(vi w) { return v_float(_mm256_slli_epi32(w, 16)); }
OCTAVO_INLINE vf v_high(vi w) { return v_float(_mm256_and_si256(w, _mm256_set1_epi32((int)0xFFFF0000))); }
OCTAVO_INLINE vf v_scale2(vf a, vf n) {
  return v_float(_mm256_add_epi32(v_bits(a), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
}
OCTAVO_INLINE void v_store_bf16(uint16_t* p, vf a) {
  const vi b = v_bits(a), odd = _mm256_and_si256(_mm256_srli_epi32(b, 16), _mm256_set1_epi32(1));
  const vi round = _mm256_add_epi32(b, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const vi quiet = _mm256_or_si256(b, _mm256_set1_epi32(0x400000));
  const vi nan = v_bits(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  const vi r = _mm256_srli_epi32(_mm256_blendv_epi8(round, quiet, nan), 16);
  const vi packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
  _mm_storeu_si128((__m128i*)p, _mm256_castsi256_si128(packed));
}
#else
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
constexpr int VW = 4;
OCTAVO_INLINE vf v_load(const float* p) {
  vf a;
  std::memcpy(&a, p, sizeof a);
  return a;
}
OCTAVO_INLINE void v_store(float* p, vf a) { std::memcpy(p, &a, sizeof a); }
OCTAVO_INLINE vf v_set1(float a) { return vf{a, a, a, a}; }
OCTAVO_INLINE vf v_add(vf a, vf b) { return a + b; }
OCTAVO_INLINE vf v_sub(vf a, vf b) { return a - b; }
OCTAVO_INLINE vf v_mul(vf a, vf b) { return a * b; }
OCTAVO_INLINE vf v_div(vf a, vf b) { return a / b; }
OCTAVO_INLINE vf v_fma(vf a, vf b, vf c) {
  return vf{__builtin_fmaf(a[0], b[0], c[0]), __builtin_fmaf(a[1], b[1], c[1]), __builtin_fmaf(a[2], b[2], c[2]),
            __builtin_fmaf(a[3], b[3], c[3])};
}
OCTAVO_INLINE vf v_max(vf a, vf b) { return a > b ? a : b; }
OCTAVO_INLINE vf v_min(vf a, vf b) { return a < b ? a : b; }
OCTAVO_INLINE vi v_bits(vf a) { return (vi)a; }
OCTAVO_INLINE vf v_float(vi a) { return (vf)a; }
OCTAVO_INLINE vi v_load_bits(const void* p) {
  vi a;
  std::memcpy(&a, p, sizeof a);
  return a;
}
OCTAVO_INLINE float f16_value(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
  if (exponent == 0) {
    const float value = (float)mantissa * 0x1p-24f;
    return sign ? -value : value;
  }
  const uint32_t bits = sign | (exponent == 31 ? 0x7F800000u : (exponent + 112) << 23) | mantissa << 13;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
OCTAVO_INLINE vf v_load_f16(const uint16_t* p) {
  return vf{f16_value(p[0]), f16_value(p[1]), f16_value(p[2]), f16_value(p[3])};
}
OCTAVO_INLINE vf v_load_u8(const uint8_t* p) { return vf{(float)p[0], (float)p[1], (float)p[2], (float)p[3]}; }
OCTAVO_INLINE vf v_load_i8(const uint8_t* p) {
  return vf{(float)(int8_t)p[0], (float)(int8_t)p[1], (float)(int8_t)p[2], (float)(int8_t)p[3]};
}
OCTAVO_INLINE vf v_low(vi w) { return (vf)(w << 16); }
OCTAVO_INLINE vf v_high(vi w) { return (vf)(w & (int32_t)0xFFFF0000); }
OCTAVO_INLINE vf v_scale2(vf a, vf n) { return (vf)((vi)a + (__builtin_convertvector(n, vi) << 23)); }
OCTAVO_INLINE void v_store_bf16(uint16_t* p, vf a) {
  for (int i = 0; i < VW; i++) {
    uint32_t b;
    const float value = a[i];
    std::memcpy(&b, &value, 4);
    b = value != value ? b | 0x400000u : b + ((b >> 16 & 1) + 0x7FFF);
    p[i] = (uint16_t)(b >> 16);
  }
}
#endif

// exp by 2^n e^r, |r| <= ln 2 / 2: relative error below 2e-7. Arguments are clamped so that 2^n is a normal number.
OCTAVO_INLINE vf v_exp(vf x) {
  x = v_min(v_set1(88.02f), v_max(v_set1(-87.0f), x));
  const vf magic = v_set1(12582912.0f);  // adding 1.5 * 2^23 rounds to whole numbers
  const vf n = v_sub(v_fma(x, v_set1(1.44269504f), magic), magic);
  vf r = v_fma(n, v_set1(-0.693145752f), x);
  r = v_fma(n, v_set1(-1.42860677e-6f), r);
  vf p = v_set1(1.0f / 720.0f);
  p = v_fma(p, r, v_set1(1.0f / 120.0f));
  p = v_fma(p, r, v_set1(1.0f / 24.0f));
  p = v_fma(p, r, v_set1(1.0f / 6.0f));
  p = v_fma(p, r, v_set1(0.5f));
  p = v_fma(p, r, v_set1(1.0f));
  p = v_fma(p, r, v_set1(1.0f));
  return v_scale2(p, n);
}

OCTAVO_INLINE vf v_silu(vf x) {
  return v_div(x, v_add(v_set1(1.0f), v_exp(v_sub(v_set1(0.0f), x))));
}

// x (1 + tanh z) / 2 = x / (1 + exp(-2 z)), z = sqrt(2 / pi) (x + 0.044715 x^3)
OCTAVO_INLINE vf v_gelu_tanh(vf x) {
  const vf cube = v_mul(v_mul(x, x), x);
  const vf z = v_fma(cube, v_set1(0.044715f), x);
  return v_div(x, v_add(v_set1(1.0f), v_exp(v_mul(z, v_set1(-1.59576912f)))));
}

}  // namespace octavo::OCTAVO_ISA_NAME
