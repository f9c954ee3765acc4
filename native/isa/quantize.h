// Floats to records of integer activations (activation.h), the same bits in every instruction-set class: maxima are
// taken over the bits of magnitudes, products and additions are single roundings, sums are of integers.
//
// A block whose largest magnitude is below SMALLEST is zero. Infinities and NaN give a scale of NaN, so that they reach
// every output of the row.
#pragma once
#include <cstdint>
#include <cstring>

#include "activation.h"
#if defined(__AVX512BW__)
#include <immintrin.h>
#endif

namespace octavo::OCTAVO_ISA_NAME {

constexpr float SMALLEST = 1e-30f;
constexpr uint32_t INFINITE_BITS = 0x7f800000u;
// 1.5 * 2^23: added to a float below 2^22 it rounds it to the nearest integer, ties to even, in the low bits.
constexpr float ROUNDING = 12582912.0f;
constexpr int32_t ROUNDING_BITS = 0x4b400000;

// The larger of `top` and the bits of the magnitudes of n floats: bits are ordered as magnitudes are, NaN above all.
static inline uint32_t top_bits(const float* x, int n, uint32_t top) {
  int32_t most = (int32_t)top, i = 0;
#if defined(__AVX512BW__)
  __m512i lanes = _mm512_set1_epi32(most);
  for (; i + 16 <= n; i += 16)
    lanes = _mm512_max_epi32(lanes, _mm512_and_si512(_mm512_loadu_si512(x + i), _mm512_set1_epi32(0x7fffffff)));
  most = _mm512_reduce_max_epi32(lanes);
#endif
  for (; i < n; i++) {
    int32_t bits;
    std::memcpy(&bits, x + i, 4);
    bits &= 0x7fffffff;
    most = bits > most ? bits : most;
  }
  return (uint32_t)most;
}

#if defined(__AVX512BW__)

// Sixteen integers' low bytes, as they stand in a plane.
static inline void store_sixteen(__m512i v, uint8_t* to) {
  const __m128i order = _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
  _mm_storeu_si128((__m128i*)to, _mm_shuffle_epi8(_mm512_cvtepi32_epi8(v), order));
}

// The planes of a block and the sums of its halves.
static inline void round_block(int planes, const float* x, float inverse, uint8_t* record, int32_t (&sum)[2]) {
  for (int half = 0; half < 2; half++) {
    const __m512 shifted =
        _mm512_add_ps(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * half), _mm512_set1_ps(inverse)), _mm512_set1_ps(ROUNDING));
    const __m512i v = _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(ROUNDING_BITS));
    sum[half] = _mm512_reduce_add_epi32(v);
    store_sixteen(planes == 2 ? _mm512_srai_epi32(v, 7) : v, record + 16 * half);
    if (planes == 2) store_sixteen(_mm512_and_si512(v, _mm512_set1_epi32(127)), record + BLOCK + 16 * half);
  }
}

#else

static inline void store_plane(const int8_t* from, uint8_t* to) {
  typedef int8_t sixteen __attribute__((vector_size(16)));
  for (int i = 0; i < BLOCK; i += 16) {
    sixteen v;
    std::memcpy(&v, from + i, 16);
    v = __builtin_shufflevector(v, v, 0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    std::memcpy(to + i, &v, 16);
  }
}

// The planes of a block and the sums of its halves.
static inline void round_block(int planes, const float* x, float inverse, uint8_t* record, int32_t (&sum)[2]) {
  int32_t v[BLOCK];
  for (int i = 0; i < BLOCK; i++) {
    const float shifted = x[i] * inverse + ROUNDING;
    int32_t bits;
    std::memcpy(&bits, &shifted, 4);
    v[i] = bits - ROUNDING_BITS;
  }
  int8_t high[BLOCK], low[BLOCK];
  for (int i = 0; i < BLOCK; i++) {
    high[i] = (int8_t)(planes == 2 ? v[i] >> 7 : v[i]);
    low[i] = (int8_t)(v[i] & 127);
  }
  sum[0] = sum[1] = 0;
  for (int i = 0; i < 16; i++) sum[0] += v[i], sum[1] += v[16 + i];
  store_plane(high, record);
  if (planes == 2) store_plane(low, record + BLOCK);
}

#endif

// One record from the 32 floats of a block. top: the bits of the largest magnitude that its scale has to hold.
static inline void quantize_block(ActKind kind, const float* x, uint32_t top, uint8_t* record) {
  const int planes = act_planes(kind);
  const float most = planes == 2 ? 16383.0f : 127.0f;
  float largest;
  std::memcpy(&largest, &top, 4);
  BlockSide side{};
  if (top >= INFINITE_BITS || largest < SMALLEST) {
    std::memset(record, 0, planes * BLOCK);
    side.scale = top >= INFINITE_BITS ? __builtin_nanf("") : 0.0f;
    std::memcpy(record + planes * BLOCK, &side, sizeof side);
    return;
  }
  const float inverse = most / largest;
  side.scale = largest / most;
  int32_t sum[2];
  round_block(planes, x, inverse, record, sum);
  const int32_t sums[3] = {sum[0] + sum[1], sum[0], sum[1]};
  for (int i = 0; i < 3; i++) side.minus_sum[i] = -sums[i], side.sum[i] = (float)sums[i];
  std::memcpy(record + planes * BLOCK, &side, sizeof side);
}

// n floats whose scales are per block, as the records from `records` on; the last block may be short.
static inline void quantize_blocks(ActKind kind, const float* x, int n, uint8_t* records) {
  for (int i = 0; i < n; i += BLOCK, records += record_bytes(kind)) {
    float padded[BLOCK] = {};
    const float* from = x + i;
    if (n - i < BLOCK) {
      std::memcpy(padded, from, (n - i) * sizeof(float));
      from = padded;
    }
    quantize_block(kind, from, top_bits(from, BLOCK, 0), records);
  }
}

}  // namespace octavo::OCTAVO_ISA_NAME
