// Micro-kernels of the AVX-512 class: VDPBF16PS, one chain over the column pairs of a group (bf16: of the whole row)
// for each output. VDPBF16PS rounds to nearest even and flushes denormals whatever MXCSR says.

namespace octavo::OCTAVO_ISA_NAME {

constexpr int MR_BF16 = 12, MR_GROUP = 6, MR_MAX = 12;
// Up to here a panel is expanded in registers. Nibbles hide behind the products of any number of rows, bytes do not.
constexpr int DIRECT_ROWS_U4 = 1 << 30, DIRECT_ROWS_I8 = 6, DIRECT_ROWS_FP8 = 6;
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

// Lines are asked for in ascending order, whatever order they are read in: the hardware then runs ahead further.
OCTAVO_INLINE void fetch_line_pair(const uint8_t*& at) {
  _mm_prefetch((const char*)at, _MM_HINT_T0);
  _mm_prefetch((const char*)at + 64, _MM_HINT_T0);
  at += 128;
}

template <int R>
static void rows_bf16(const uint8_t* panel, int blocks, const RowBlock& rows, float* y) {
  __m512 c[R][2];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) c[r][0] = c[r][1] = _mm512_setzero_ps();
  const uint16_t* x = rows.x;
  const uint8_t* ahead = panel + AHEAD;
  const size_t ldx = rows.ldx;
  for (int b = 0; b < blocks; b++) {
#pragma GCC unroll 4
    for (int p = 0; p < 16; p++, x += 2, panel += 128) {
      if (R <= 4) fetch_line_pair(ahead);
      const __m512i w0 = _mm512_load_si512(panel), w1 = _mm512_load_si512(panel + 64);
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

// c[groups][rows][half] of one step: Q groups at once, so that few rows still have enough chains in flight.
template <int Q, int R>
OCTAVO_INLINE void add_pair(__m512 (&c)[Q][R][2], int q, __m512i w0, __m512i w1, const uint16_t* x, size_t ldx) {
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    const __m512i pair = broadcast_pair(x + r * ldx);
    c[q][r][0] = dot_pairs(c[q][r][0], w0, pair);
    c[q][r][1] = dot_pairs(c[q][r][1], w1, pair);
  }
}

// One block of each of Q groups onto the accumulators. The block of group q lies at at[q], its columns at x + q * step.
template <WeightKind K, int Q, int R>
OCTAVO_INLINE void add_blocks(__m512 (&c)[Q][R][2], const uint8_t* const (&at)[Q], int pairs, const uint16_t* x,
                              int step, size_t ldx, const uint8_t*& ahead) {
  if (K == WeightKind::U4) {
    const __m512i nibbles = _mm512_set1_epi32(0x000F000F), base = _mm512_set1_epi32(0x43004300);
    for (int z = 0; z < pairs / 4; z++, x += 8) {
#pragma GCC unroll 4
      for (int q = 0; q < Q; q++) {
        if (ahead) fetch_line_pair(ahead);
        const __m512i v0 = _mm512_load_si512(at[q] + z * 128), v1 = _mm512_load_si512(at[q] + z * 128 + 64);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
          // 0xEA: (a & b) | c
          const __m512i w0 = _mm512_ternarylogic_epi32(_mm512_srli_epi32(v0, 4 * j), nibbles, base, 0xEA);
          const __m512i w1 = _mm512_ternarylogic_epi32(_mm512_srli_epi32(v1, 4 * j), nibbles, base, 0xEA);
          add_pair(c, q, w0, w1, x + q * step + 2 * j, ldx);
        }
      }
    }
  } else if (K == WeightKind::BF16) {  // expanded beforehand
#pragma GCC unroll 4
    for (int p = 0; p < pairs; p++, x += 2) {
#pragma GCC unroll 4
      for (int q = 0; q < Q; q++)
        add_pair(c, q, _mm512_load_si512(at[q] + p * 128), _mm512_load_si512(at[q] + p * 128 + 64), x + q * step, ldx);
    }
  } else {
    for (int z = 0; z < pairs / 4; z++, x += 8) {
#pragma GCC unroll 4
      for (int q = 0; q < Q; q++) {
        if (ahead) fetch_line_pair(ahead), fetch_line_pair(ahead);
        const uint8_t* line = at[q] + z * 256;
        const auto expand = [](const uint8_t* from) {
          if constexpr (K == WeightKind::FP8) return expand_fp8(from);
          else return expand_i8(from);
        };
        const PairWords a0 = expand(line), a1 = expand(line + 64);
        const PairWords b0 = expand(line + 128), b1 = expand(line + 192);
        add_pair(c, q, a0.first, a1.first, x + q * step, ldx);
        add_pair(c, q, b0.first, b1.first, x + q * step + 2, ldx);
        add_pair(c, q, a0.second, a1.second, x + q * step + 4, ldx);
        add_pair(c, q, b0.second, b1.second, x + q * step + 6, ldx);
      }
    }
  }
}

// Groups [first, first + Q) of R rows onto their totals, in ascending order.
template <WeightKind K, int Q, int R>
OCTAVO_INLINE void add_groups(__m512 (&total)[R][2], const PackedLinear& w, const PanelGeometry& g,
                              const uint8_t* panel, const uint8_t* words, int first, const RowBlock& rows,
                              const uint8_t*& ahead) {
  const int step = g.blocks * g.pairs * 2;
  const uint16_t* x = rows.x + (size_t)first * step;
  GroupParts<const uint8_t> parts[Q];
  const uint8_t* at[Q];
  __m512 c[Q][R][2];
  const size_t block_bytes = K == WeightKind::BF16 ? (size_t)g.pairs * 128 : g.block_bytes;
#pragma GCC unroll 4
  for (int q = 0; q < Q; q++) {
    parts[q] = group_parts(g, w.has_bias != 0, panel, first + q);
    at[q] = K == WeightKind::BF16 ? words + (first + q) * g.blocks * block_bytes : parts[q].blocks;
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
      c[q][r][0] = c[q][r][1] = _mm512_set1_ps(rows.start[(size_t)r * g.groups + first + q]);
  }
  for (int b = 0; b < g.blocks; b++, x += 2 * g.pairs) {
    add_blocks<K>(c, at, g.pairs, x, step, rows.ldx, ahead);
#pragma GCC unroll 4
    for (int q = 0; q < Q; q++) at[q] += block_bytes;
  }
  if (ahead)
    while (ahead < at[Q - 1] + AHEAD) fetch_line_pair(ahead);
#pragma GCC unroll 4
  for (int q = 0; q < Q; q++) {
    GroupScale s;
    load_scale(w, parts[q], s);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      total[r][0] = _mm512_fmadd_ps(c[q][r][0], s.scale[0], total[r][0]);
      total[r][1] = _mm512_fmadd_ps(c[q][r][1], s.scale[1], total[r][1]);
    }
    if (w.has_bias) {
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) {
        const __m512 sum = _mm512_set1_ps(rows.sum[(size_t)r * g.groups + first + q]);
        total[r][0] = _mm512_fmadd_ps(s.bias[0], sum, total[r][0]);
        total[r][1] = _mm512_fmadd_ps(s.bias[1], sum, total[r][1]);
      }
    }
  }
}

template <WeightKind K, int R>
static void rows_group(const PackedLinear& w, const PanelGeometry& g, const uint8_t* panel, const uint8_t* words,
                       const RowBlock& rows, float* y) {
  constexpr int Q = R == 1 ? 4 : R <= 3 ? 2 : 1;
  __m512 total[R][2];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) total[r][0] = total[r][1] = _mm512_setzero_ps();
  // Runs over the whole stream of the panel, scales included.
  const uint8_t* ahead = rows.first && K != WeightKind::BF16 ? panel + AHEAD : nullptr;
  int group = 0;
  for (; group + Q <= g.groups; group += Q) add_groups<K, Q>(total, w, g, panel, words, group, rows, ahead);
  if (Q > 1)
    for (; group < g.groups; group++) add_groups<K, 1>(total, w, g, panel, words, group, rows, ahead);
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
template <WeightKind K>
static RowsGroup pick_group(int rows) {
  static constexpr RowsGroup table[MR_GROUP] = {rows_group<K, 1>, rows_group<K, 2>, rows_group<K, 3>,
                                                rows_group<K, 4>, rows_group<K, 5>, rows_group<K, 6>};
  return table[rows - 1];
}

static void micro_bf16(const uint8_t* panel, int blocks, const RowBlock& rows, float* y) {
  ROWS_BF16[rows.rows - 1](panel, blocks, rows, y);
}

static void micro_group(const PackedLinear& w, const PanelGeometry& g, const uint8_t* panel, const uint8_t* words,
                        const RowBlock& rows, float* y) {
  const RowsGroup kernel = words                        ? pick_group<WeightKind::BF16>(rows.rows)
                           : w.kind == WeightKind::U4  ? pick_group<WeightKind::U4>(rows.rows)
                           : w.kind == WeightKind::FP8 ? pick_group<WeightKind::FP8>(rows.rows)
                                                        : pick_group<WeightKind::I8>(rows.rows);
  kernel(w, g, panel, words, rows, y);
}

}  // namespace octavo::OCTAVO_ISA_NAME
