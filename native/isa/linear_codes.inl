// Stored blocks of the kinds beyond i8 and u4 as bf16 integers (U5, U6: 128 + q) or numbers (FP8), words of two columns.
// Exact, so every class has the same words.
#include "codes.h"

namespace octavo::OCTAVO_ISA_NAME {

constexpr uint16_t bf16_bits(float value) { return (uint16_t)(__builtin_bit_cast(uint32_t, value) >> 16); }

constexpr float e4m3_value(int code) {
  const int size = code & 0x7F, exponent = size >> 3;
  float value = (float)(size & 7) * 0x1p-9f;
  if (exponent) {
    value = (float)(8 + (size & 7)) * 0x1p-10f;
    for (int i = 0; i < exponent; i++) value *= 2;
  }
  return code & 0x80 ? -value : value;
}

// bf16 bits: of each nibble of a table (32 entries, so that a register of 16-bit lanes holds it), of each byte of e4m3.
struct CodeTables {
  uint16_t nl4[32], fp4[32], fp8[256];
};
alignas(64) static constexpr CodeTables CODES = [] {
  CodeTables t{};
  for (int i = 0; i < 32; i++) t.nl4[i] = bf16_bits(NL4_TABLE[i % 16]), t.fp4[i] = bf16_bits(FP4_TABLE[i % 16]);
  for (int i = 0; i < 256; i++) t.fp8[i] = (i & 0x7F) == 0x7F ? 0x7FC0 : bf16_bits(e4m3_value(i));
  return t;
}();

static inline const uint16_t* nibble_table(WeightKind kind) { return kind == WeightKind::NL4 ? CODES.nl4 : CODES.fp4; }

// Two 16-bit lanes of a nibble each, as what they stand for.
static void expand_nibbles(const uint16_t* table, int pairs, const uint8_t* in, uint32_t* out) {
#if defined(OCTAVO_ISA_avx512) || defined(OCTAVO_ISA_amx)
  const __m512i values = _mm512_load_si512(table), nibbles = _mm512_set1_epi32(0x000F000F);
  for (int z = 0; z < pairs / 4; z++)
    for (int half = 0; half < 2; half++, in += 64)
      for (int j = 0; j < 4; j++) {
        const __m512i index = _mm512_and_si512(_mm512_srli_epi32(_mm512_load_si512(in), 4 * j), nibbles);
        _mm512_store_si512(out + (z * 4 + j) * PANEL + half * HALF, _mm512_permutexvar_epi16(index, values));
      }
#elif defined(OCTAVO_ISA_avx2)
  uint8_t low[16], high[16];
  for (int i = 0; i < 16; i++) low[i] = (uint8_t)table[i], high[i] = (uint8_t)(table[i] >> 8);
  const __m256i lows = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)low));
  const __m256i highs = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)high));
  const __m256i nibbles = _mm256_set1_epi32(0x000F000F), none = _mm256_set1_epi16((short)0x8000);
  for (int z = 0; z < pairs / 4; z++)
    for (int c = 0; c < PANEL; c += 8, in += 32)
      for (int j = 0; j < 4; j++) {
        const __m256i moved = _mm256_srli_epi32(_mm256_loadu_si256((const __m256i*)in), 4 * j);
        const __m256i index = _mm256_or_si256(_mm256_and_si256(moved, nibbles), none);
        const __m256i top = _mm256_slli_epi16(_mm256_shuffle_epi8(highs, index), 8);
        _mm256_storeu_si256((__m256i*)(out + (z * 4 + j) * PANEL + c),
                            _mm256_or_si256(_mm256_shuffle_epi8(lows, index), top));
      }
#else
  const auto* words = (const uint32_t*)in;
  for (int z = 0; z < pairs / 4; z++)
    for (int j = 0; j < 4; j++)
      for (int c = 0; c < PANEL; c++) {
        const uint32_t pair = words[z * PANEL + c] >> (4 * j);
        out[(z * 4 + j) * PANEL + c] = table[pair & 15] | (uint32_t)table[pair >> 16 & 15] << 16;
      }
#endif
}

// Nibbles and the plane of BITS bits above them.
template <int BITS>
static void expand_planes(int pairs, const uint8_t* in, uint32_t* out) {
  const auto *words = (const uint32_t*)in, *plane = words + pairs / 4 * PANEL;
  constexpr uint32_t MASK = BITS == 1 ? 0x00010001 : 0x00030003;
  for (int z = 0; z < pairs / 4; z++)
    for (int j = 0; j < 4; j++) {
      const int quad = 2 * z + j % 2, shift = 8 * (j / 2) + quad * BITS % 8;
      const uint32_t* line = plane + quad * BITS / 8 * PANEL;
      for (int c = 0; c < PANEL; c++) {
        const uint32_t low = words[z * PANEL + c] >> (4 * j) & 0x000F000F, high = line[c] >> shift & MASK;
        out[(z * 4 + j) * PANEL + c] = low | high << 4 | 0x43004300;
      }
    }
}

#if defined(__AVX512VBMI__)

// High and low byte of the bf16 of a magnitude.
alignas(64) static constexpr struct E4M3Table {
  uint8_t high[128], low[128];
} E4M3 = [] {
  E4M3Table t{};
  for (int i = 0; i < 128; i++) t.high[i] = (uint8_t)(CODES.fp8[i] >> 8), t.low[i] = (uint8_t)CODES.fp8[i];
  return t;
}();

// As expand_i8 (linear_expand.inl).
OCTAVO_INLINE PairWords expand_fp8(const uint8_t* at) {
  const __m512i q = _mm512_load_si512(at), sign = _mm512_set1_epi8((char)0x80);
  const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(E4M3.low), q, _mm512_load_si512(E4M3.low + 64));
  __m512i high = _mm512_permutex2var_epi8(_mm512_load_si512(E4M3.high), q, _mm512_load_si512(E4M3.high + 64));
  high = _mm512_ternarylogic_epi32(q, sign, high, 0xEA);  // (a & b) | c
  const __m512i even = _mm512_set1_epi32(0x00FF00FF);     // 0xCA: a ? b : c
  return {_mm512_ternarylogic_epi32(even, low, _mm512_slli_epi16(high, 8), 0xCA),
          _mm512_ternarylogic_epi32(even, _mm512_srli_epi16(low, 8), high, 0xCA)};
}

static void expand_block_fp8(int pairs, const uint8_t* in, uint32_t* out) {
  for (int z = 0; z < pairs / 4; z++, in += 256, out += 4 * PANEL) {
    for (int half = 0; half < 2; half++) {
      const PairWords a = expand_fp8(in + half * 64), b = expand_fp8(in + 128 + half * 64);
      _mm512_store_si512(out + half * HALF, a.first);
      _mm512_store_si512(out + PANEL + half * HALF, b.first);
      _mm512_store_si512(out + 2 * PANEL + half * HALF, a.second);
      _mm512_store_si512(out + 3 * PANEL + half * HALF, b.second);
    }
  }
}

#else

static void expand_block_fp8(int pairs, const uint8_t* in, uint32_t* out) {
  for (int z = 0; z < pairs / 2; z++) {  // four columns of all channels: pairs 0 and 2 of eight columns, or 1 and 3
    uint32_t* to = out + (z / 2 * 4 + z % 2) * PANEL;
    for (int c = 0; c < PANEL; c++, in += 4) {
      to[c] = CODES.fp8[in[0]] | (uint32_t)CODES.fp8[in[2]] << 16;
      to[2 * PANEL + c] = CODES.fp8[in[1]] | (uint32_t)CODES.fp8[in[3]] << 16;
    }
  }
}

#endif

static void expand_block_codes(WeightKind kind, int pairs, const uint8_t* in, uint32_t* out) {
  switch (kind) {
    case WeightKind::U5: return expand_planes<1>(pairs, in, out);
    case WeightKind::U6: return expand_planes<2>(pairs, in, out);
    case WeightKind::FP8: return expand_block_fp8(pairs, in, out);
    default: return expand_nibbles(nibble_table(kind), pairs, in, out);
  }
}

}  // namespace octavo::OCTAVO_ISA_NAME
