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

// One 64-byte line of i8 (two pairs of one half) as two vectors of words.
OCTAVO_INLINE PairWords expand_i8(const uint8_t* at) {
  const __m512i q = _mm512_load_si512(at), size = _mm512_abs_epi8(q), sign = _mm512_set1_epi8((char)0x80);
  const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(MAGNITUDE.low), size,
                                               _mm512_load_si512(MAGNITUDE.low + 64));
  __m512i high = _mm512_permutex2var_epi8(_mm512_load_si512(MAGNITUDE.high), size,
                                          _mm512_load_si512(MAGNITUDE.high + 64));
  high = _mm512_ternarylogic_epi32(q, sign, high, 0xEA);  // (a & b) | c
  high = _mm512_mask_mov_epi8(high, _mm512_cmpeq_epi8_mask(q, sign), _mm512_set1_epi8((char)0xC3));
  return {_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
}

static void expand_block_i8(int pairs, const uint8_t* in, uint32_t* out) {
  for (int z = 0; z < pairs / 2; z++, in += 128, out += 2 * PANEL) {
    const PairWords w0 = expand_i8(in), w1 = expand_i8(in + 64);
    _mm512_store_si512(out, w0.first);
    _mm512_store_si512(out + HALF, w1.first);
    _mm512_store_si512(out + PANEL, w0.second);
    _mm512_store_si512(out + PANEL + HALF, w1.second);
  }
}

#elif defined(OCTAVO_ISA_avx2)

static void expand_block_i8(int pairs, const uint8_t* in, uint32_t* out) {
  for (int i = 0; i < pairs * 8; i++) {  // i: [pair / 2][half][lane / 4][pair % 2]
    const __m256 q = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(in + i * 8))));
    const __m256i top = _mm256_srli_epi32(_mm256_castps_si256(q), 16);
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    _mm_storeu_si128((__m128i*)(out + (i / 16 * 2 + i % 2) * PANEL + i % 16 / 2 * 4), words);
  }
}

#else

static void expand_block_i8(int pairs, const uint8_t* in, uint32_t* out) {
  for (int i = 0; i < pairs * 8; i++) {  // i: [pair / 2][half][lane / 4][pair % 2]
    uint32_t* to = out + (i / 16 * 2 + i % 2) * PANEL + i % 16 / 2 * 4;
    for (int l = 0; l < 4; l++) {
      const float low = (float)(int8_t)in[i * 8 + 2 * l], high = (float)(int8_t)in[i * 8 + 2 * l + 1];
      uint32_t a, b;
      __builtin_memcpy(&a, &low, 4);
      __builtin_memcpy(&b, &high, 4);
      to[l] = a >> 16 | (b & 0xFFFF0000u);
    }
  }
}

#endif

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
  expand_block_i8(pairs, in, out);
}

}  // namespace octavo::OCTAVO_ISA_NAME
