// Floats to records of integer activations (activation.h), the same bits in every instruction-set class: maxima are
// taken over the bits of magnitudes, products and additions are single roundings, sums are of integers.
//
// A block whose largest magnitude is below SMALLEST is zero. Infinities and NaN give a scale of NaN, so that they reach
// every output of the row.
#pragma once
#include <cmath>
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

// What the largest magnitude of a block, or of a row, makes of its floats. inverse: 0 where they are not to be read.
struct RecordScale {
  float inverse, scale;
  int32_t light = 0;
};

#if defined(__AVX512BW__)

struct BlockFloats {
  __m512 half[2];
};

static inline BlockFloats load_block(const float* x) { return {{_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)}}; }

// The bits of the largest magnitude of some blocks: bits are ordered as magnitudes are, NaN above all.
struct TopBits {
  __m512i lanes = _mm512_setzero_si512();
  void take(const BlockFloats& x) {
    const __m512i some = _mm512_max_epi32(bits_of(x.half[0]), bits_of(x.half[1]));
    lanes = _mm512_max_epi32(lanes, some);
  }
  // Of those magnitudes that are below a limit.
  void take_below(const BlockFloats& x, float limit) {
    for (const __m512 half : x.half) {
      const __m512i bits = bits_of(half);
      const __mmask16 small = _mm512_cmplt_epi32_mask(bits, _mm512_castps_si512(_mm512_set1_ps(limit)));
      lanes = _mm512_mask_max_epi32(lanes, small, lanes, bits);
    }
  }
  uint32_t found() const { return (uint32_t)_mm512_reduce_max_epi32(lanes); }

 private:
  static __m512i bits_of(__m512 x) { return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)); }
};

// Sixteen integers' low bytes, as they stand in a plane.
static inline void store_sixteen(__m512i v, uint8_t* to) {
  const __m128i order = _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
  _mm_storeu_si128((__m128i*)to, _mm_shuffle_epi8(_mm512_cvtepi32_epi8(v), order));
}

static inline __m256i fold(__m512i v) {
  return _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
}

// The planes and the side of a block. light: the integers are 128 times the rounded ones.
static inline void write_block(int planes, const BlockFloats& x, RecordScale by, uint8_t* record) {
  __m512i v[2];
  const __m128i shift = _mm_cvtsi32_si128(by.light ? 7 : 0);
  for (int half = 0; half < 2; half++) {
    const __m512 shifted = _mm512_add_ps(_mm512_mul_ps(x.half[half], _mm512_set1_ps(by.inverse)), _mm512_set1_ps(ROUNDING));
    v[half] = _mm512_sll_epi32(_mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(ROUNDING_BITS)), shift);
    store_sixteen(planes == 2 ? _mm512_srai_epi32(v[half], 7) : v[half], record + 16 * half);
    if (planes == 2) store_sixteen(_mm512_and_si512(v[half], _mm512_set1_epi32(127)), record + BLOCK + 16 * half);
  }
  const __m256i pairs = _mm256_hadd_epi32(fold(v[0]), fold(v[1]));
  const __m128i fours = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  const __m128i halves = _mm_hadd_epi32(fours, fours);  // first, last, first, last
  const __m128i whole = _mm_add_epi32(halves, _mm_shuffle_epi32(halves, 0xb1));
  const __m128i sums = _mm_blend_epi32(_mm_shuffle_epi32(halves, 0x10), whole, 1);  // lane 3: anything
  const __m128 minus = _mm_castsi128_ps(_mm_sub_epi32(_mm_setzero_si128(), sums));
  float* side = (float*)(record + planes * BLOCK);
  _mm_storeu_ps(side, _mm_insert_ps(minus, _mm_set_ss(by.scale), 0x30));
  _mm_storeu_ps(side + 4, _mm_insert_ps(_mm_cvtepi32_ps(sums), _mm_castsi128_ps(_mm_cvtsi32_si128(by.light)), 0x30));
}

#else

struct BlockFloats {
  float x[BLOCK];
};

static inline BlockFloats load_block(const float* x) {
  BlockFloats block;
  std::memcpy(block.x, x, sizeof block.x);
  return block;
}

struct TopBits {
  int32_t most = 0;
  void take(const BlockFloats& x) {
    int32_t bits[BLOCK], top = most;
    std::memcpy(bits, x.x, sizeof bits);
    for (int i = 0; i < BLOCK; i++) {
      const int32_t magnitude = bits[i] & 0x7fffffff;
      top = magnitude > top ? magnitude : top;
    }
    most = top;
  }
  void take_below(const BlockFloats& x, float limit) {
    BlockFloats small;
    for (int i = 0; i < BLOCK; i++) small.x[i] = std::fabs(x.x[i]) < limit ? x.x[i] : 0.0f;
    take(small);
  }
  uint32_t found() const { return (uint32_t)most; }
};

static inline void store_plane(const int8_t* from, uint8_t* to) {
  typedef int8_t sixteen __attribute__((vector_size(16)));
  for (int i = 0; i < BLOCK; i += 16) {
    sixteen v;
    std::memcpy(&v, from + i, 16);
    v = __builtin_shufflevector(v, v, 0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    std::memcpy(to + i, &v, 16);
  }
}

static inline void write_block(int planes, const BlockFloats& x, RecordScale by, uint8_t* record) {
  int32_t v[BLOCK];
  for (int i = 0; i < BLOCK; i++) {
    const float shifted = x.x[i] * by.inverse + ROUNDING;
    int32_t bits;
    std::memcpy(&bits, &shifted, 4);
    v[i] = (bits - ROUNDING_BITS) * (by.light ? 128 : 1);
  }
  int8_t high[BLOCK], low[BLOCK];
  for (int i = 0; i < BLOCK; i++) {
    high[i] = (int8_t)(planes == 2 ? v[i] >> 7 : v[i]);
    low[i] = (int8_t)(v[i] & 127);
  }
  int32_t first = 0, last = 0;
  for (int i = 0; i < 16; i++) first += v[i], last += v[16 + i];
  store_plane(high, record);
  if (planes == 2) store_plane(low, record + BLOCK);
  const int32_t sums[3] = {first + last, first, last};
  BlockSide side{};
  for (int i = 0; i < 3; i++) side.minus_sum[i] = -sums[i], side.sum[i] = (float)sums[i];
  side.scale = by.scale, side.light = by.light;
  std::memcpy(record + planes * BLOCK, &side, sizeof side);
}

#endif

// below: of the magnitudes below OUTLIER, for I8X: they take 127 steps, unless the row's largest then took too many.
static inline RecordScale scale_of(ActKind kind, uint32_t top, uint32_t below = 0) {
  const float most = kind == ActKind::I8G32 || kind == ActKind::I8ROW ? 127.0f : 16383.0f;
  float largest, usual;
  std::memcpy(&largest, &top, 4);
  std::memcpy(&usual, &below, 4);
  if (top >= INFINITE_BITS) return {0.0f, __builtin_nanf("")};
  if (usual >= SMALLEST && usual / 127.0f >= largest / most) return {127.0f / usual, usual / 127.0f};
  return largest < SMALLEST ? RecordScale{0.0f, 0.0f} : RecordScale{most / largest, largest / most};
}

// Of a light block of I15Q.
static inline RecordScale light_scale(uint32_t top) {
  RecordScale of = scale_of(ActKind::I8G32, top);
  of.scale *= 0x1p-7f, of.light = 1;
  return of;
}

// What the k largest of n magnitudes reach, and those that equal the k-th; one that is not finite is above all.
static inline uint32_t reached_by(const uint32_t* tops, int n, int k) {
  uint32_t least = 0;  // bit by bit: the highest value that k of them reach
  for (uint32_t bit = 1u << 30; bit; bit >>= 1) {
    int32_t reach = 0;
    for (int i = 0; i < n; i++) reach += (int32_t)tops[i] >= (int32_t)(least | bit);
    if (reach >= k) least |= bit;
    if (reach == k) break;
  }
  return least;
}

static inline RecordScale scale_of(ActKind kind, const BlockFloats& x) {
  TopBits top;
  top.take(x);
  return scale_of(kind, top.found());
}

// One record. scale: of the block or of the row.
static inline void quantize_block(ActKind kind, const BlockFloats& x, RecordScale scale, uint8_t* record) {
  const int planes = act_planes(kind);
  if (scale.inverse != 0.0f) return write_block(planes, x, scale, record);
  BlockSide side{};
  side.scale = scale.scale, side.light = scale.light;
  std::memset(record, 0, planes * BLOCK);
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
    const BlockFloats block = load_block(from);
    quantize_block(kind, block, scale_of(kind, block), records);
  }
}

}  // namespace octavo::OCTAVO_ISA_NAME
