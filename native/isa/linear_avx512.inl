// Micro-kernels of the AVX-512 class: VDPBF16PS, one chain over the column pairs of a group (bf16: of the whole row)
// for each output. VDPBF16PS rounds to nearest even and flushes denormals whatever MXCSR says.

namespace octavo::OCTAVO_ISA_NAME {

constexpr int MR_BF16 = 12, MR_GROUP = 6, MR_MAX = 12;
constexpr int DIRECT_ROWS = 6;  // up to here the stored integers are expanded in registers
constexpr bool ROWS_IN_STEPS = false;
constexpr int AHEAD = 4096;  // bytes of the stream fetched ahead

static void open_kernels() {}
static void close_kernels() {}

OCTAVO_INLINE __m512 dot_pairs(__m512 c, __m512i w, __m512i x) {
  return _mm512_dpbf16_ps(c, (__m512bh)w, (__m512bh)x);
}

OCTAVO_INLINE __m512i broadcast_pair(const uint16_t* x) {
  int pair;
  __builtin_memcpy(&pair, x, 4);
  return _mm512_set1_epi32(pair);
}

OCTAVO_INLINE void fetch_ahead(const uint8_t* at, int bytes) {
#pragma GCC unroll 4
  for (int i = 0; i < bytes; i += 64) _mm_prefetch((const char*)(at + AHEAD + i), _MM_HINT_T0);
}

template <int R>
static void rows_bf16(const uint8_t* panel, int blocks, const RowBlock& rows, float* y) {
  __m512 c[R][2];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) c[r][0] = c[r][1] = _mm512_setzero_ps();
  const uint16_t* x = rows.x;
  const size_t ldx = rows.ldx;
  for (int b = 0; b < blocks; b++, panel += 2048) {
    if (rows.first) fetch_ahead(panel, 2048);
#pragma GCC unroll 4
    for (int p = 0; p < 16; p++, x += 2) {
      const __m512i w0 = _mm512_load_si512(panel + p * 64), w1 = _mm512_load_si512(panel + 1024 + p * 64);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        const __m512i pair = broadcast_pair(x + r * ldx);
        c[r][0] = dot_pairs(c[r][0], w0, pair);
        c[r][1] = dot_pairs(c[r][1], w1, pair);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
    _mm512_store_ps(y + r * PANEL, c[r][0]);
    _mm512_store_ps(y + r * PANEL + HALF, c[r][1]);
  }
}

enum Source { STORED_U4, STORED_I8, WORDS };

OCTAVO_INLINE __m512i expand_i8(const uint8_t* at) {
  const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128((const __m128i*)at)));
  const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128((const __m128i*)(at + 16))));
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

template <int R>
OCTAVO_INLINE void add_pair(__m512 (&c)[R][2], __m512i w0, __m512i w1, const uint16_t* x, size_t ldx) {
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    const __m512i pair = broadcast_pair(x + r * ldx);
    c[r][0] = dot_pairs(c[r][0], w0, pair);
    c[r][1] = dot_pairs(c[r][1], w1, pair);
  }
}

// One block of a group onto the accumulators.
template <int R, Source S>
OCTAVO_INLINE void add_block(__m512 (&c)[R][2], const uint8_t* at, int pairs, const uint16_t* x, size_t ldx) {
  if (S == STORED_U4) {
    const __m512i nibbles = _mm512_set1_epi32(0x000F000F), base = _mm512_set1_epi32(0x43004300);
    for (int z = 0; z < pairs / 4; z++, x += 8) {
      const __m512i v0 = _mm512_load_si512(at + z * 64), v1 = _mm512_load_si512(at + (pairs / 4 + z) * 64);
#pragma GCC unroll 4
      for (int j = 0; j < 4; j++) {
        // 0xEA: (a & b) | c
        const __m512i w0 = _mm512_ternarylogic_epi32(_mm512_srli_epi32(v0, 4 * j), nibbles, base, 0xEA);
        const __m512i w1 = _mm512_ternarylogic_epi32(_mm512_srli_epi32(v1, 4 * j), nibbles, base, 0xEA);
        add_pair<R>(c, w0, w1, x + 2 * j, ldx);
      }
    }
  } else if (S == STORED_I8) {
#pragma GCC unroll 2
    for (int p = 0; p < pairs; p++)
      add_pair<R>(c, expand_i8(at + p * 32), expand_i8(at + (pairs + p) * 32), x + 2 * p, ldx);
  } else {
#pragma GCC unroll 4
    for (int p = 0; p < pairs; p++)
      add_pair<R>(c, _mm512_load_si512(at + p * 64), _mm512_load_si512(at + (pairs + p) * 64), x + 2 * p, ldx);
  }
}

template <int R, Source S>
static void rows_group(const PackedLinear& w, const PanelGeometry& g, const uint8_t* panel, const uint8_t* words,
                       const RowBlock& rows, float* y) {
  __m512 total[R][2];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) total[r][0] = total[r][1] = _mm512_setzero_ps();
  const uint16_t* x = rows.x;
  const size_t ldx = rows.ldx, word_bytes = (size_t)g.pairs * PANEL * 4;
  for (int i = 0; i < g.groups; i++) {
    const GroupParts<const uint8_t> at = group_parts(g, w.has_bias != 0, panel, i);
    __m512 c[R][2];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) c[r][0] = c[r][1] = _mm512_set1_ps(rows.start[(size_t)r * g.groups + i]);
    for (int b = 0; b < g.blocks; b++, x += 2 * g.pairs) {
      if (S == WORDS) {
        add_block<R, S>(c, words, g.pairs, x, ldx);
        words += word_bytes;
      } else {
        const uint8_t* stored = at.blocks + b * g.block_bytes;
        if (rows.first) fetch_ahead(stored, S == STORED_U4 ? 576 : 1088);
        add_block<R, S>(c, stored, g.pairs, x, ldx);
      }
    }
    GroupScale s;
    load_scale(w, at, s);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      total[r][0] = _mm512_fmadd_ps(c[r][0], s.scale[0], total[r][0]);
      total[r][1] = _mm512_fmadd_ps(c[r][1], s.scale[1], total[r][1]);
    }
    if (at.bias) {
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) {
        const __m512 sum = _mm512_set1_ps(rows.sum[(size_t)r * g.groups + i]);
        total[r][0] = _mm512_fmadd_ps(s.bias[0], sum, total[r][0]);
        total[r][1] = _mm512_fmadd_ps(s.bias[1], sum, total[r][1]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    _mm512_store_ps(y + r * PANEL, total[r][0]);
    _mm512_store_ps(y + r * PANEL + HALF, total[r][1]);
  }
}

typedef void (*RowsBf16)(const uint8_t*, int, const RowBlock&, float*);
static constexpr RowsBf16 ROWS_BF16[MR_BF16] = {rows_bf16<1>, rows_bf16<2>,  rows_bf16<3>,  rows_bf16<4>,
                                                rows_bf16<5>, rows_bf16<6>,  rows_bf16<7>,  rows_bf16<8>,
                                                rows_bf16<9>, rows_bf16<10>, rows_bf16<11>, rows_bf16<12>};

typedef void (*RowsGroup)(const PackedLinear&, const PanelGeometry&, const uint8_t*, const uint8_t*, const RowBlock&,
                          float*);
template <Source S>
static RowsGroup pick_group(int rows) {
  static constexpr RowsGroup table[MR_GROUP] = {rows_group<1, S>, rows_group<2, S>, rows_group<3, S>,
                                                rows_group<4, S>, rows_group<5, S>, rows_group<6, S>};
  return table[rows - 1];
}

static void micro_bf16(const uint8_t* panel, int blocks, const RowBlock& rows, float* y) {
  ROWS_BF16[rows.rows - 1](panel, blocks, rows, y);
}

static void micro_group(const PackedLinear& w, const PanelGeometry& g, const uint8_t* panel, const uint8_t* words,
                        const RowBlock& rows, float* y) {
  const RowsGroup kernel = words                        ? pick_group<WORDS>(rows.rows)
                           : w.kind == WeightKind::U4 ? pick_group<STORED_U4>(rows.rows)
                                                        : pick_group<STORED_I8>(rows.rows);
  kernel(w, g, panel, words, rows, y);
}

}  // namespace octavo::OCTAVO_ISA_NAME
