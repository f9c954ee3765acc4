// Linear layers of one instruction-set class: the loops over panels and rows, group sums and epilogues.
//
// The class's micro-kernels (linear_*.inl) compute up to MR rows of one panel into y[row][PANEL]. Which rows share a
// block never enters a row's arithmetic: every row has its own accumulators and one order over the columns.
//
// Grouped weights stay integers: bf16 holds 128 + q (u4, u5, u6) and q (i8, tables) exactly, and so e4m3. With v the stored integers of a group,
// X = sum x and s, b its scale and bias:   y += s * (sum v x + start) + b * X,   start = -(offset [+ 128]) * X.
//
// Records (activation.h): per block of 32 columns (16 in groups of 16), ascending, with the exact integers
// n = sum (v - offset) x and X = sum x, each converted to float32 once, and d the block's scale:
//   I15            y = fma(n, s, y), y = fma(b, X, y) where there is a bias; at the end y = y * d
//   I8G32, I15G32, I15Q  t = n * s, t = fma(b, X, t) where there is a bias, y = fma(d, t, y)
#include "isa/quantize.h"
#include "linear.h"
#include "panel.h"
#include "simd.h"

namespace octavo::OCTAVO_ISA_NAME {

// Rows of activations of one block, with their group sums: x[r] at x + r * ldx, sum[r][g] at sum + r * groups.
struct RowBlock {
  const uint16_t* x;
  int ldx, rows;
  const float *sum, *start;
  int groups;
  bool first;  // first block of this panel: the stream comes from memory, so run ahead of it
};

// Rows of records of one block.
struct RecordBlock {
  ActKind kind;
  const uint8_t* x;  // row r at x + r * stride
  size_t stride;
  int rows;
  bool first;
  const uint32_t* light;  // of each block of 32 columns, a bit a row: light there. null: not asked for
};

constexpr int VECTORS = PANEL / VW;

struct GroupScale {
  vf scale[VECTORS], bias[VECTORS];
};

// 2^(s - 128); what is below the normal numbers is zero, as everywhere in kernels.
OCTAVO_INLINE vf v_load_power(const uint8_t* s) {
  return v_scale2(v_set1(1.0f), v_sub(v_max(v_load_u8(s), v_set1(1.0f)), v_set1(128.0f)));
}

OCTAVO_INLINE void load_scale(const PackedLinear& w, const GroupParts<const uint8_t>& at, GroupScale& out) {
#pragma GCC unroll 8
  for (int v = 0; v < VECTORS; v++) {
    const int c = v * VW;
    if (is_two_level(w.scale_code)) {
      const vf s = w.scale_code == ScaleCode::I8 ? v_load_i8(at.scale + c) : v_load_u8(at.scale + c);
      out.scale[v] = v_mul(v_load_f16((const uint16_t*)at.super_scale + c), s);
      if (at.bias) out.bias[v] = v_mul(v_load_f16((const uint16_t*)at.super_bias + c), v_load_u8(at.bias + c));
      continue;
    }
    if (w.scale_code == ScaleCode::F16) out.scale[v] = v_load_f16((const uint16_t*)at.scale + c);
    else if (w.scale_code == ScaleCode::F32) out.scale[v] = v_load((const float*)at.scale + c);
    else out.scale[v] = v_load_power(at.scale + c);
    if (at.bias) {
      const vf bias = v_load_f16((const uint16_t*)at.bias + c);
      out.bias[v] = w.bias_code == BiasCode::ZERO ? v_mul(out.scale[v], bias) : bias;
    }
  }
}

}  // namespace octavo::OCTAVO_ISA_NAME

#include "isa/linear_expand.inl"

namespace octavo::OCTAVO_ISA_NAME {

static void expand_panel(const PackedLinear& w, const PanelGeometry& g, const uint8_t* panel, uint8_t* out) {
  const size_t bytes = (size_t)g.pairs * PANEL * 4;
  for (int i = 0; i < g.groups; i++) {
    const GroupParts<const uint8_t> at = group_parts(g, w.has_bias != 0, panel, i);
    for (int b = 0; b < g.blocks; b++) {
      __builtin_prefetch(at.blocks + b * g.block_bytes + 4096);
      expand_block(w.kind, g.pairs, at.blocks + b * g.block_bytes, (uint32_t*)out);
      out += bytes;
    }
  }
}

OCTAVO_INLINE float bf16_value(uint32_t bits) {
  const uint32_t word = bits << 16;
  float value;
  __builtin_memcpy(&value, &word, 4);
  return value;
}

// f32 weights: one chain over the columns for each output.
static void micro_f32(const uint8_t* panel, int columns, const RowBlock& block, float* y) {
  const float* w = (const float*)panel;
  for (int r = 0; r < block.rows; r++) {
    vf sum[VECTORS];
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) sum[v] = v_set1(0.0f);
    for (int k = 0; k < columns; k++) {
      const vf x = v_set1(bf16_value(block.x[(size_t)r * block.ldx + k]));
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; v++) sum[v] = v_fma(v_load(w + (size_t)k * PANEL + v * VW), x, sum[v]);
    }
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) v_store(y + r * PANEL + v * VW, sum[v]);
  }
}

}  // namespace octavo::OCTAVO_ISA_NAME

#if defined(OCTAVO_ISA_amx)
#include "isa/linear_amx.inl"
#elif defined(OCTAVO_ISA_avx512)
#include "isa/linear_avx512.inl"
#elif defined(OCTAVO_ISA_avx2)
#include "isa/linear_avx2.inl"
#else
#include "isa/linear_fma.inl"
#endif
#if defined(__AVX512VNNI__)
#include "isa/linear_vnni.inl"
#elif defined(OCTAVO_ISA_avx2)
#include "isa/linear_int_avx2.inl"
#else
#include "isa/linear_int.inl"
#endif

namespace octavo::OCTAVO_ISA_NAME {

constexpr int STREAM_ROWS = MR_GROUP < 8 ? MR_GROUP : 8, STREAM_PANELS = 16;

// Scratch: [sum, start of w][sum, start of w2][words of w][words of w2], each on a cache line; of records light alone.
struct ScratchPlan {
  float *sum[2], *start[2];
  uint8_t* words[2];
  uint32_t* light;  // [rows / MR_RECORDS, rounded up][blocks of 32 columns]
};

static uint8_t* take_scratch(uint8_t*& at, size_t bytes) {
  uint8_t* const here = at;
  at += (bytes + 63) / 64 * 64;
  return here;
}

static ScratchPlan plan_scratch(const LinearArgs& a, uint8_t* scratch) {
  ScratchPlan plan{};
  uint8_t* at = (uint8_t*)(((uintptr_t)scratch + 63) / 64 * 64);
  if (SKIPS_LIGHT && a.input == ActKind::I15Q && a.rows > 2) plan.light = (uint32_t*)at;
  if (a.input != ActKind::BF16) return plan;
  const PackedLinear* both[2] = {a.w, a.w2};
  for (int i = 0; i < 2; i++) {
    if (!both[i] || !is_grouped(both[i]->kind)) continue;
    const size_t bytes = (size_t)a.rows * panel_geometry(*both[i]).groups * sizeof(float);
    plan.sum[i] = (float*)take_scratch(at, bytes);
    plan.start[i] = (float*)take_scratch(at, bytes);
  }
  for (int i = 0; i < 2; i++) {
    if (!both[i] || !is_grouped(both[i]->kind)) continue;
    const PanelGeometry g = panel_geometry(*both[i]);
    plan.words[i] = take_scratch(at, (size_t)g.groups * g.blocks * g.pairs * PANEL * 4);
  }
  return plan;
}

// Sum of 2 * pairs columns: pairs first, then halves folded upon each other.
static float sum_block(const uint16_t* x, int pairs) {
  float p[16];
  for (int i = 0; i < pairs; i++) p[i] = bf16_value(x[2 * i]) + bf16_value(x[2 * i + 1]);
  for (int half = pairs / 2; half; half /= 2)
    for (int i = 0; i < half; i++) p[i] += p[i + half];
  return p[0];
}

static void sum_groups(const PackedLinear& w, const LinearArgs& a, float* sum, float* start) {
  const PanelGeometry g = panel_geometry(w);
  const float shift = -(float)(w.offset + (is_unsigned(w.kind) ? 128 : 0));
  for (int r = 0; r < a.rows; r++) {
    const uint16_t* x = (const uint16_t*)a.x + (size_t)r * a.ldx;
    for (int i = 0; i < g.groups; i++) {
      float total = sum_block(x, g.pairs);
      x += 2 * g.pairs;
      for (int b = 1; b < g.blocks; b++, x += 2 * g.pairs) total += sum_block(x, g.pairs);
      sum[(size_t)r * g.groups + i] = total;
      start[(size_t)r * g.groups + i] = shift == 0.0f ? 0.0f : shift * total;
    }
  }
}

static void find_light(const LinearArgs& a, uint32_t* light) {
  const int record = record_bytes(a.input), blocks = (a.w->n + BLOCK - 1) / BLOCK;
  for (int first = 0; first < a.rows; first += MR_RECORDS, light += blocks) {
    for (int b = 0; b < blocks; b++) light[b] = 0;
    for (int r = 0; r < MR_RECORDS && first + r < a.rows; r++) {
      const uint8_t* x = (const uint8_t*)a.x + (size_t)(first + r) * a.ldx + act_planes(a.input) * BLOCK;
      for (int b = 0; b < blocks; b++) light[b] |= (uint32_t)((const BlockSide*)(x + b * record))->light << r;
    }
  }
}

static void prepare(const LinearArgs& a, uint8_t* scratch) {
  const ScratchPlan plan = plan_scratch(a, scratch);
  if (plan.light) find_light(a, plan.light);
  if (plan.sum[0]) sum_groups(*a.w, a, plan.sum[0], plan.start[0]);
  if (plan.sum[1]) sum_groups(*a.w2, a, plan.sum[1], plan.start[1]);
}

// Writes columns [0, columns) of one row of a panel.
static void store_row(float* out, const float* y, int columns) {
  if (columns == PANEL) {
#pragma GCC unroll 8
    for (int v = 0; v < PANEL; v += VW) v_store(out + v, v_load(y + v));
  } else {
    for (int c = 0; c < columns; c++) out[c] = y[c];
  }
}

static void add_bias(float* y, int rows, const float* bias, int columns) {
  float padded[PANEL] = {};
  for (int c = 0; c < columns; c++) padded[c] = bias[c];
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
    for (int v = 0; v < PANEL; v += VW) v_store(y + r * PANEL + v, v_add(v_load(y + r * PANEL + v), v_load(padded + v)));
}

static vf gated(const LinearArgs& a, vf g, vf u) {
  if (a.activation == CLAMPED) {
    const vf most = v_set1(a.limit), one = v_set1(1.0f);
    g = v_min(most, g), u = v_min(most, v_max(v_set1(-a.limit), u));
    return v_mul(v_add(u, one), v_div(g, v_add(one, v_exp(v_mul(g, v_set1(-a.alpha))))));
  }
  return v_mul(a.activation == GELU_TANH ? v_gelu_tanh(g) : v_silu(g), u);
}

static void store_glu(const LinearArgs& a, int panel, int row, int rows, const float* gate, const float* up) {
  const int first = panel * PANEL, columns = a.w->m - first < PANEL ? a.w->m - first : PANEL;
  for (int r = 0; r < rows; r++) {
    uint16_t act[PANEL];
    alignas(64) float full[PANEL];
#pragma GCC unroll 8
    for (int v = 0; v < PANEL; v += VW) {
      const vf g = v_load(gate + r * PANEL + v), u = v_load(up + r * PANEL + v);
      const vf y = gated(a, g, u);
      if (a.records || a.out) v_store(full + v, y);
      else v_store_bf16(act + v, y);
    }
    if (a.out) {
      store_row(a.out + (size_t)(row + r) * a.ldo + first, full, columns);
      continue;
    }
    if (a.records) {
      quantize_blocks(a.output, full, columns, a.records + (size_t)(row + r) * a.ldo + (size_t)panel * record_bytes(a.output));
      continue;
    }
    uint16_t* out = a.out16 + (size_t)(row + r) * a.ldo + first;
    for (int c = 0; c < columns; c++) out[c] = act[c];
    if (panel == a.w->panels - 1)
      for (int c = columns; first + c < a.ldo; c++) out[c] = 0;
  }
}

static void finish(const LinearArgs& a, int panel, int row, int rows, float* y, float* y2) {
  const int first = panel * PANEL, columns = a.w->m - first < PANEL ? a.w->m - first : PANEL;
  if (a.bias) add_bias(y, rows, a.bias + first, columns);
  if (a.epilogue == Epilogue::GLU) {
    if (a.bias2) add_bias(y2, rows, a.bias2 + first, columns);
    store_glu(a, panel, row, rows, y, y2);
    return;
  }
  for (int r = 0; r < rows; r++) {
    float* line = y + r * PANEL;
    const size_t at = (size_t)(row + r) * a.ldo + first;
    if (a.epilogue == Epilogue::ADD)
      for (int c = 0; c < columns; c++) line[c] += a.addend[at + c];
    store_row(a.out + at, line, columns);
  }
}

// One matrix's panel: expanded once when several row blocks will read it, then any block of rows.
struct PanelSource {
  const PackedLinear* w;
  PanelGeometry geometry;
  const uint8_t *panel, *words;
};

static void open_panel(const PackedLinear* w, const LinearArgs& a, int panel, uint8_t* words, PanelSource& out) {
  out.w = w;
  out.geometry = panel_geometry(*w);
  out.panel = w->data + (size_t)panel * w->panel_bytes;
  out.words = nullptr;
  const int direct = w->kind == WeightKind::U4 ? DIRECT_ROWS_U4 : w->kind == WeightKind::I8 ? DIRECT_ROWS_I8
                     : w->kind == WeightKind::FP8 ? DIRECT_ROWS_FP8 : 0;
  if (is_grouped(w->kind) && a.input == ActKind::BF16 && a.rows > direct) {
    expand_panel(*w, out.geometry, out.panel, words);
    out.words = words;
  }
}

// Rows [row, row + rows) of one panel into y.
static void panel_rows(const PanelSource& s, const LinearArgs& a, const ScratchPlan& plan, int which, int row, int rows,
                       float* y) {
  if (a.input != ActKind::BF16) {
    const int blocks = (s.w->n + BLOCK - 1) / BLOCK;
    const uint32_t* light = plan.light ? plan.light + (size_t)(row / MR_RECORDS) * blocks : nullptr;
    const RecordBlock block{a.input, (const uint8_t*)a.x + (size_t)row * a.ldx, (size_t)a.ldx, rows, row == 0, light};
    micro_records(*s.w, s.geometry, s.panel, block, y);
    return;
  }
  RowBlock block{};
  block.x = (const uint16_t*)a.x + (size_t)row * a.ldx;
  block.ldx = a.ldx;
  block.rows = rows;
  block.first = row == 0;
  if (s.w->kind == WeightKind::F32) {
    micro_f32(s.panel, s.geometry.blocks * 32, block, y);
  } else if (s.w->kind == WeightKind::BF16) {
    micro_bf16(s.panel, s.geometry.blocks, block, y);
  } else {
    block.groups = s.geometry.groups;
    block.sum = plan.sum[which] + (size_t)row * block.groups;
    block.start = plan.start[which] + (size_t)row * block.groups;
    micro_group(*s.w, s.geometry, s.panel, s.words, block, y);
  }
}

// Few rows of gate and up: the weights come from memory, and a processor follows one long stream faster than two short
// ones in turn. So several panels of the one matrix, then the same panels of the other.
static void run_glu_streams(const LinearArgs& a, const ScratchPlan& plan, int panel_begin, int panel_end) {
  constexpr int SLOT = (MR_MAX < 16 ? MR_MAX : 16) * PANEL;
  alignas(64) float y[2][STREAM_PANELS * SLOT];
  for (int p = panel_begin; p < panel_end; p += STREAM_PANELS) {
    const int count = panel_end - p < STREAM_PANELS ? panel_end - p : STREAM_PANELS;
    for (int which = 0; which < 2; which++) {
      for (int i = 0; i < count; i++) {
        PanelSource source;
        open_panel(which ? a.w2 : a.w, a, p + i, plan.words[which], source);
        panel_rows(source, a, plan, which, 0, a.rows, y[which] + i * SLOT);
      }
    }
    for (int i = 0; i < count; i++) finish(a, p + i, 0, a.rows, y[0] + i * SLOT, y[1] + i * SLOT);
  }
}

// Panels whose rows are taken in turn, so that activations that no longer fit the second cache are read once for all.
constexpr int PANELS_IN_TURN = 4;

static void run_blocks(const LinearArgs& a, const ScratchPlan& plan, int panel_begin, int panel_end) {
  constexpr int MOST = MR_MAX < MR_RECORDS ? MR_RECORDS : MR_MAX;
  const bool grouped = is_grouped(a.w->kind) || (a.w2 && is_grouped(a.w2->kind)), integers = a.input != ActKind::BF16;
  const int most = integers ? MR_RECORDS : grouped ? MR_GROUP : MR_BF16;
  alignas(64) float y[MOST * PANEL], y2[MOST * PANEL];
  PanelSource one[PANELS_IN_TURN], two[PANELS_IN_TURN];
  for (int p = panel_begin; p < panel_end;) {
    const int turn = integers && a.rows > most ? PANELS_IN_TURN : 1;
    const int panels = panel_end - p < turn ? panel_end - p : turn;
    for (int i = 0; i < panels; i++) {
      open_panel(a.w, a, p + i, plan.words[0], one[i]);
      if (a.w2) open_panel(a.w2, a, p + i, plan.words[1], two[i]);
    }
    for (int row = 0; row < a.rows;) {
      const int left = a.rows - row, blocks = (left + most - 1) / most;
      const int rows = ROWS_IN_STEPS || integers ? (left < most ? left : most) : (left + blocks - 1) / blocks;
      for (int i = 0; i < panels; i++) {
        panel_rows(one[i], a, plan, 0, row, rows, y);
        if (a.w2) panel_rows(two[i], a, plan, 1, row, rows, y2);
        finish(a, p + i, row, rows, y, y2);
      }
      row += rows;
    }
    p += panels;
  }
}

static void run(const LinearArgs& a, int panel_begin, int panel_end, uint8_t* scratch) {
  const ScratchPlan plan = plan_scratch(a, scratch);
  if (a.input == ActKind::BF16) open_kernels();
  if (a.w2 && a.rows <= STREAM_ROWS) run_glu_streams(a, plan, panel_begin, panel_end);
  else run_blocks(a, plan, panel_begin, panel_end);
  if (a.input == ActKind::BF16) close_kernels();
}

extern const LinearKernels linear_table;
#if !defined(OCTAVO_ISA_amx)
static bool tiles_held() { return false; }
#endif
const LinearKernels linear_table = {prepare, run, tiles_held};

}  // namespace octavo::OCTAVO_ISA_NAME
