// Stored blocks of i8 and u4 as bf16 integers: 128 + q for u4, q for i8. Exact, so every class has the same words.

namespace octavo::OCTAVO_ISA_NAME {

#if defined(__AVX512VBMI__)

// int8 to bf16 by table: the high and the low byte of the bf16 of a magnitude, -128 apart.
alignas(64) static constexpr struct MagnitudeTable {
  uint8_t high[128], low[128];
} MAGNITUDE = [] {
  MagnitudeTable t{};
  for (int i = 1; i < 128; i++) {
    int exponent = 0;
    while (i >> (exponent + 1)) exponent++;
    const int bits = (127 + exponent) << 7 | (i << (7 - exponent) & 0x7F);
    t.high[i] = (uint8_t)(bits >> 8);
    t.low[i] = (uint8_t)bits;
  }
  return t;
}();

struct PairWords {
  __m512i first, second;
};

// One 64-byte line of i8 (four columns of one half) as two vectors of words: pairs 0 and 2 of its eight columns, or 1 and 3.
OCTAVO_INLINE PairWords expand_i8(const uint8_t* at) {
  const __m512i q = _mm512_load_si512(at), size = _mm512_abs_epi8(q), sign = _mm512_set1_epi8((char)0x80);
  const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(MAGNITUDE.low), size,
                                               _mm512_load_si512(MAGNITUDE.low + 64));
  __m512i high = _mm512_permutex2var_epi8(_mm512_load_si512(MAGNITUDE.high), size,
                                          _mm512_load_si512(MAGNITUDE.high + 64));
  high = _mm512_ternarylogic_epi32(q, sign, high, 0xEA);  // (a & b) | c
  high = _mm512_mask_mov_epi8(high, _mm512_cmpeq_epi8_mask(q, sign), _mm512_set1_epi8((char)0xC3));
  const __m512i even = _mm512_set1_epi32(0x00FF00FF);  // 0xCA: a ? b : c
  return {_mm512_ternarylogic_epi32(even, low, _mm512_slli_epi16(high, 8), 0xCA),
          _mm512_ternarylogic_epi32(even, _mm512_srli_epi16(low, 8), high, 0xCA)};
}

static void expand_block_i8(int pairs, const uint8_t* in, uint32_t* out) {
  for (int z = 0; z < pairs / 4; z++, in += 256, out += 4 * PANEL) {
    for (int half = 0; half < 2; half++) {
      const PairWords a = expand_i8(in + half * 64), b = expand_i8(in + 128 + half * 64);
      _mm512_store_si512(out + half * HALF, a.first);
      _mm512_store_si512(out + PANEL + half * HALF, b.first);
      _mm512_store_si512(out + 2 * PANEL + half * HALF, a.second);
      _mm512_store_si512(out + 3 * PANEL + half * HALF, b.second);
    }
  }
}

#elif defined(OCTAVO_ISA_avx2)

static void expand_block_i8(int pairs, const uint8_t* in, uint32_t* out) {
  const auto bf16 = [](__m256i q) { return _mm256_castps_si256(_mm256_cvtepi32_ps(_mm256_srai_epi32(q, 24))); };
  for (int z = 0; z < pairs / 2; z++) {  // four columns of all channels: pairs 0 and 2 of eight columns, or 1 and 3
    uint32_t* to = out + (z / 2 * 4 + z % 2) * PANEL;
    for (int c = 0; c < PANEL; c += 8, in += 32) {
      const __m256i q = _mm256_loadu_si256((const __m256i*)in);
      const __m256i first = _mm256_srli_epi32(bf16(_mm256_slli_epi32(q, 24)), 16), second = bf16(_mm256_slli_epi32(q, 8));
      const __m256i third = _mm256_srli_epi32(bf16(_mm256_slli_epi32(q, 16)), 16), fourth = bf16(q);
      _mm256_storeu_si256((__m256i*)(to + c), _mm256_or_si256(first, second));
      _mm256_storeu_si256((__m256i*)(to + 2 * PANEL + c), _mm256_or_si256(third, fourth));
    }
  }
}

#else

static void expand_block_i8(int pairs, const uint8_t* in, uint32_t* out) {
  for (int z = 0; z < pairs / 2; z++) {  // four columns of all channels: pairs 0 and 2 of eight columns, or 1 and 3
    for (int c = 0; c < PANEL; c++, in += 4) {
      uint32_t bits[4];
      for (int i = 0; i < 4; i++) {
        const float value = (float)(int8_t)in[i];
        __builtin_memcpy(&bits[i], &value, 4);
      }
      uint32_t* to = out + (z / 2 * 4 + z % 2) * PANEL + c;
      to[0] = bits[0] >> 16 | (bits[2] & 0xFFFF0000u);
      to[2 * PANEL] = bits[1] >> 16 | (bits[3] & 0xFFFF0000u);
    }
  }
}

#endif

}  // namespace octavo::OCTAVO_ISA_NAME

#include "isa/linear_codes.inl"

namespace octavo::OCTAVO_ISA_NAME {

// One stored block of a grouped kind as bf16 integers, words of two columns.
static void expand_block(WeightKind kind, int pairs, const uint8_t* in, uint32_t* out) {
  if (kind == WeightKind::U4) {
    const uint32_t* words = (const uint32_t*)in;
    for (int z = 0; z < pairs / 4; z++)
      for (int j = 0; j < 4; j++)
        for (int c = 0; c < PANEL; c++)
          out[(z * 4 + j) * PANEL + c] = (words[z * PANEL + c] >> (4 * j) & 0x000F000Fu) | 0x43004300u;
    return;
  }
  if (kind == WeightKind::I8) expand_block_i8(pairs, in, out);
  else expand_block_codes(kind, pairs, in, out);
}

}  // namespace octavo::OCTAVO_ISA_NAME
