// What attention over latents asks of lanes beyond lanes.h, for each instruction-set class.
//
// zip: 32 bf16 of each of two tokens become 32 words of a token pair, the first token in the low half.
// vpair: 16 words from two vectors, rounded to bf16, the first in the low half.
#pragma once
#include "isa/lanes.h"

namespace octavo::OCTAVO_ISA_NAME {

#if defined(__AVX512F__)

OCTAVO_INLINE void zip(const uint16_t* a, const uint16_t* b, vp* low, vp* high) {
  const vp order = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4,
                                    35, 3, 34, 2, 33, 1, 32, 0);
  const vp upper = _mm512_add_epi16(order, _mm512_set1_epi16(16));
  const vp x = pload(a), y = pload(b);
  *low = _mm512_permutex2var_epi16(x, order, y);
  *high = _mm512_permutex2var_epi16(x, upper, y);
}
OCTAVO_INLINE vp vpair(vf first, vf second) {
  const vp order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4,
                                    19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}
OCTAVO_INLINE void pstore(void* p, vp x) { _mm512_storeu_si512(p, x); }
OCTAVO_INLINE vf vload_i8(const int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

#elif defined(__AVX2__)

OCTAVO_INLINE vp zip_sixteen(const uint16_t* a, const uint16_t* b) {
  const __m256i x = _mm256_permute4x64_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(a)), 0xd8);
  const __m256i y = _mm256_permute4x64_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(b)), 0xd8);
  return {_mm256_unpacklo_epi16(x, y), _mm256_unpackhi_epi16(x, y)};
}
OCTAVO_INLINE void zip(const uint16_t* a, const uint16_t* b, vp* low, vp* high) {
  *low = zip_sixteen(a, b), *high = zip_sixteen(a + 16, b + 16);
}
OCTAVO_INLINE vp vpair(vf first, vf second) {
  return {_mm256_or_si256(bf16_half(first.a), _mm256_slli_epi32(bf16_half(second.a), 16)),
          _mm256_or_si256(bf16_half(first.b), _mm256_slli_epi32(bf16_half(second.b), 16))};
}
OCTAVO_INLINE void pstore(void* p, vp x) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), x.a), _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, x.b);
}
OCTAVO_INLINE vf vload_i8(const int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}

#else

typedef uint16_t s8 __attribute__((vector_size(16)));
OCTAVO_INLINE void zip(const uint16_t* a, const uint16_t* b, vp* low, vp* high) {
  for (int i = 0; i < 4; ++i) {
    s8 x, y;
    __builtin_memcpy(&x, a + 8 * i, sizeof x);
    __builtin_memcpy(&y, b + 8 * i, sizeof y);
    vp* to = i < 2 ? low : high;
    to->q[i % 2 * 2] = (i4)__builtin_shufflevector(x, y, 0, 8, 1, 9, 2, 10, 3, 11);
    to->q[i % 2 * 2 + 1] = (i4)__builtin_shufflevector(x, y, 4, 12, 5, 13, 6, 14, 7, 15);
  }
}
OCTAVO_INLINE vp vpair(vf first, vf second) {
  uint16_t halves[2][LANES];
  vstore_bf16(halves[0], first), vstore_bf16(halves[1], second);
  vp r;
  for (int i = 0; i < LANES; ++i) r.q[i / 4][i % 4] = static_cast<int32_t>(halves[0][i] | static_cast<uint32_t>(halves[1][i]) << 16);
  return r;
}
OCTAVO_INLINE void pstore(void* p, vp x) { __builtin_memcpy(p, &x, sizeof x); }
OCTAVO_INLINE vf vload_i8(const int8_t* p) {
  vf r;
  for (int i = 0; i < LANES; ++i) r.q[i / 4][i % 4] = static_cast<float>(p[i]);
  return r;
}

#endif

}  // namespace octavo::OCTAVO_ISA_NAME
