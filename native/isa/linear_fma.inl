// Micro-kernels of the portable class, in the canonical order of TDPBF16PS; AVX2 and AMX give the same bits.
//
// Per block of 32 columns: a chain over its even columns and one over its odd columns, both from zero; their sum is
// added to the accumulator. The product of two bf16 is exact in float32, so a multiplication and an addition round as
// one FMA does; the portable class therefore needs no FMA instruction here.

namespace octavo::OCTAVO_ISA_NAME {

constexpr int MR_BF16 = 4, MR_GROUP = 4, MR_MAX = 4;
constexpr int DIRECT_ROWS_U4 = 0, DIRECT_ROWS_I8 = 0, DIRECT_ROWS_FP8 = 0;
constexpr bool ROWS_IN_STEPS = false;

static void open_kernels() {}
static void close_kernels() {}

// c[row][PANEL] += one block. V vectors of channels at once: few rows still have enough chains in flight.
template <int R, int V>
static void add_block(const uint8_t* words, int pairs, const uint16_t* x, int ldx, float* c) {
  for (int first = 0; first < PANEL; first += V * VW) {
    vf even[R][V], odd[R][V];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) even[r][v] = odd[r][v] = v_set1(0.0f);
    for (int p = 0; p < pairs; p++) {
      const uint32_t* line = (const uint32_t*)words + p * PANEL + first;
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) {
        const uint16_t* at = x + (size_t)r * ldx + 2 * p;
        const vf x0 = v_set1(bf16_value(at[0])), x1 = v_set1(bf16_value(at[1]));
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) {
          const vi w = v_load_bits(line + v * VW);
          even[r][v] = v_add(v_mul(v_low(w), x0), even[r][v]);
          odd[r][v] = v_add(v_mul(v_high(w), x1), odd[r][v]);
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) {
        float* at = c + r * PANEL + first + v * VW;
        v_store(at, v_add(v_load(at), v_add(even[r][v], odd[r][v])));
      }
    }
  }
}

typedef void (*AddBlock)(const uint8_t*, int, const uint16_t*, int, float*);
static constexpr AddBlock ADD_BLOCK[MR_MAX] = {add_block<1, 4>, add_block<2, 2>, add_block<3, 1>, add_block<4, 1>};

static void micro_bf16(const uint8_t* panel, int blocks, const RowBlock& rows, float* y) {
  for (int i = 0; i < rows.rows * PANEL; i++) y[i] = 0.0f;
  for (int b = 0; b < blocks; b++) {
    const uint8_t* at = panel + (size_t)b * 2048;
    if (rows.first)
      for (int i = 0; i < 2048; i += 64) __builtin_prefetch(at + 4096 + i);
    ADD_BLOCK[rows.rows - 1](at, 16, rows.x + b * 32, rows.ldx, y);
  }
}

static void micro_group(const PackedLinear& w, const PanelGeometry& g, const uint8_t* panel, const uint8_t* words,
                        const RowBlock& rows, float* y) {
  const size_t bytes = (size_t)g.pairs * PANEL * 4;
  const uint16_t* x = rows.x;
  float c[MR_MAX * PANEL];
  for (int i = 0; i < rows.rows * PANEL; i++) y[i] = 0.0f;
  for (int i = 0; i < g.groups; i++) {
    const GroupParts<const uint8_t> at = group_parts(g, w.has_bias != 0, panel, i);
    for (int j = 0; j < rows.rows * PANEL; j++) c[j] = 0.0f;
    for (int b = 0; b < g.blocks; b++, words += bytes, x += 2 * g.pairs)
      ADD_BLOCK[rows.rows - 1](words, g.pairs, x, rows.ldx, c);
    GroupScale s;
    load_scale(w, at, s);
    for (int r = 0; r < rows.rows; r++) {
      const vf start = v_set1(rows.start[(size_t)r * g.groups + i]), sum = v_set1(rows.sum[(size_t)r * g.groups + i]);
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; v++) {
        float* to = y + r * PANEL + v * VW;
        vf total = v_fma(v_add(v_load(c + r * PANEL + v * VW), start), s.scale[v], v_load(to));
        if (at.bias) total = v_fma(s.bias[v], sum, total);
        v_store(to, total);
      }
    }
  }
}

}  // namespace octavo::OCTAVO_ISA_NAME
