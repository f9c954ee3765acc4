// Floats to records of integer activations (activation.h), the same bits in every instruction-set class: maxima are
// taken over the bits of magnitudes, products and additions are single roundings, sums are of integers.
//
// A block whose largest magnitude is below SMALLEST is zero. Infinities and NaN give a scale of NaN, so that they reach
// every output of the row.
#pragma once
#include <cstdint>
#include <cstring>

#include "activation.h"

namespace octavo::OCTAVO_ISA_NAME {

constexpr float SMALLEST = 1e-30f;
constexpr uint32_t INFINITE_BITS = 0x7f800000u;

// The larger of `top` and the bits of the magnitudes of n floats: bits are ordered as magnitudes are, NaN above all.
static inline uint32_t top_bits(const float* x, int n, uint32_t top) {
  int32_t most = (int32_t)top;
  for (int i = 0; i < n; i++) {
    int32_t bits;
    std::memcpy(&bits, x + i, 4);
    bits &= 0x7fffffff;
    most = bits > most ? bits : most;
  }
  return (uint32_t)most;
}

static inline void store_plane(const int8_t* from, uint8_t* to) {
  typedef int8_t sixteen __attribute__((vector_size(16)));
  for (int i = 0; i < BLOCK; i += 16) {
    sixteen v;
    std::memcpy(&v, from + i, 16);
    v = __builtin_shufflevector(v, v, 0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    std::memcpy(to + i, &v, 16);
  }
}

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
  int32_t v[BLOCK], sum[2] = {0, 0};
  for (int i = 0; i < BLOCK; i++) {
    const float shifted = x[i] * inverse + 12582912.0f;  // 1.5 * 2^23: rounds to nearest even
    int32_t bits;
    std::memcpy(&bits, &shifted, 4);
    v[i] = bits - 0x4b400000;
  }
  int8_t high[BLOCK], low[BLOCK];
  for (int i = 0; i < BLOCK; i++) {
    high[i] = (int8_t)(planes == 2 ? v[i] >> 7 : v[i]);
    low[i] = (int8_t)(v[i] & 127);
  }
  for (int i = 0; i < 16; i++) sum[0] += v[i], sum[1] += v[16 + i];
  store_plane(high, record);
  if (planes == 2) store_plane(low, record + BLOCK);
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
