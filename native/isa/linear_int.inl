// Micro-kernel over records of integers, of the portable class: a block's weights and activations as int16, whose
// products are added in pairs into int32. Its float steps: linear.cpp.

namespace octavo::OCTAVO_ISA_NAME {

constexpr int MR_RECORDS = 16, INT_ROWS = 4;
constexpr bool SKIPS_LIGHT = false;

// The same bytes are seen as words and as halves of words.
typedef uint32_t __attribute__((may_alias)) word32;
typedef int16_t __attribute__((may_alias)) half16;

// One block: of each four columns, as they stand in planes, the first and third of every channel, then the second and
// fourth. Nibbles with the bits above them, nibbles of a table, or signed bytes.
static void widen_block(WeightKind kind, int quads, const uint8_t* in, int16_t* out) {
  const int bits = plane_bits(kind);
  const int8_t* table = kind == WeightKind::NL4 ? NL4_TABLE : FP4_TABLE;
  for (int q = 0; q < quads; q++, out += 4 * PANEL) {
    if (has_nibbles(kind)) {
      const auto* line = (const word32*)in + q / 2 * PANEL;
      const auto* plane = (const word32*)in + quads / 2 * PANEL + q * bits / 8 * PANEL;
      auto* words = (word32*)out;
      for (int c = 0; c < PANEL; c++) {
        uint32_t bytes = line[c] >> (q % 2 * 4) & 0x0F0F0F0F;
        if (bits) bytes |= (plane[c] >> (q * bits % 8) & 0x01010101 * ((1u << bits) - 1)) << 4;
        words[c] = bytes & 0x00FF00FF;
        words[PANEL + c] = bytes >> 8 & 0x00FF00FF;
      }
      if (has_table(kind))
        for (int i = 0; i < 4 * PANEL; i++) out[i] = table[out[i]];
    } else {
      const auto* line = (const half16*)in + q * 2 * PANEL;
      for (int i = 0; i < 2 * PANEL; i++) {
        out[i] = (int8_t)line[i];
        out[2 * PANEL + i] = line[i] >> 8;
      }
    }
  }
}

// A row's integers of a block in the order of widen_block.
static void widen_record(int planes, const uint8_t* x, int16_t* out) {
  typedef int16_t eight __attribute__((vector_size(16)));
  int16_t v[BLOCK];
  for (int k = 0; k < BLOCK; k++) v[k] = (int8_t)x[k];
  if (planes == 2)
    for (int k = 0; k < BLOCK; k++) v[k] = (int16_t)(v[k] * 128 + x[BLOCK + k]);
  for (int k = 0; k < BLOCK; k += 8) {
    eight e;
    __builtin_memcpy(&e, v + k, sizeof e);
    e = __builtin_shufflevector(e, e, 0, 2, 1, 3, 4, 6, 5, 7);
    __builtin_memcpy(out + k, &e, sizeof e);
  }
}

// n[r][c] = start[r] + sum over `pairs` pairs of columns of R rows, x[r] at x + r * BLOCK.
template <int R>
static void dot_rows(const int16_t* words, int pairs, const int16_t* x, const int32_t* start, int32_t* n) {
  for (int r = 0; r < R; r++, x += BLOCK, n += PANEL) {
    for (int c = 0; c < PANEL; c++) n[c] = start[r];
    for (int p = 0; p < pairs; p++) {
      const int16_t* w = words + p * 2 * PANEL;
      const int32_t first = x[2 * p], second = x[2 * p + 1];
      for (int c = 0; c < PANEL; c++) n[c] += w[2 * c] * first + w[2 * c + 1] * second;
    }
  }
}

// One block's integers onto y, and its bias.
OCTAVO_INLINE void add_exact(const GroupScale& s, bool has_bias, bool row_scale, const BlockSide& side, int sums,
                             const int32_t* n, float* y) {
  const vf sum = v_set1(side.sum[sums]), scale = v_set1(side.scale);
  float exact[PANEL];
  for (int c = 0; c < PANEL; c++) exact[c] = (float)n[c];
#pragma GCC unroll 8
  for (int v = 0; v < VECTORS; v++) {
    const vf old = v_load(y + v * VW), integers = v_load(exact + v * VW);
    if (row_scale) {
      const vf total = v_fma(integers, s.scale[v], old);
      v_store(y + v * VW, has_bias ? v_fma(s.bias[v], sum, total) : total);
    } else {
      const vf part = v_mul(integers, s.scale[v]);
      v_store(y + v * VW, v_fma(scale, has_bias ? v_fma(s.bias[v], sum, part) : part, old));
    }
  }
}

static void micro_records(const PackedLinear& w, const PanelGeometry& g, const uint8_t* panel, const RecordBlock& rows,
                          float* y) {
  const int planes = act_planes(rows.kind), record = record_bytes(rows.kind), quads = g.pairs / 2;
  const bool row_scale = act_row_scale(rows.kind), whole = quads == 8;
  alignas(64) int16_t words[BLOCK * PANEL], v[INT_ROWS * BLOCK];
  for (int i = 0; i < rows.rows * PANEL; i++) y[i] = 0.0f;
  for (int i = 0, block = 0; i < g.groups; i++) {
    const GroupParts<const uint8_t> at = group_parts(g, w.has_bias != 0, panel, i);
    GroupScale s;
    load_scale(w, at, s);
    for (int b = 0; b < g.blocks; b++, block++) {
      const uint8_t* stored = at.blocks + b * g.block_bytes;
      if (rows.first)
        for (size_t j = 0; j < g.block_bytes; j += 64) __builtin_prefetch(stored + 4096 + j);
      widen_block(w.kind, quads, stored, words);
      const int half = whole ? 0 : block % 2, sums = whole ? 0 : 1 + half;
      const uint8_t* x = rows.x + (size_t)(whole ? block : block / 2) * record;
      for (int first = 0; first < rows.rows; first += INT_ROWS) {
        const int count = rows.rows - first < INT_ROWS ? rows.rows - first : INT_ROWS;
        BlockSide side[INT_ROWS];
        int32_t start[INT_ROWS], n[INT_ROWS * PANEL];
        for (int r = 0; r < count; r++, x += rows.stride) {
          __builtin_memcpy(&side[r], x + planes * BLOCK, sizeof side[r]);
          start[r] = w.offset * side[r].minus_sum[sums];
          widen_record(planes, x, v + r * BLOCK);
        }
        const int16_t* from = v + half * 16;
        if (count == 4) dot_rows<4>(words, quads * 2, from, start, n);
        else if (count == 3) dot_rows<3>(words, quads * 2, from, start, n);
        else if (count == 2) dot_rows<2>(words, quads * 2, from, start, n);
        else dot_rows<1>(words, quads * 2, from, start, n);
        for (int r = 0; r < count; r++)
          add_exact(s, at.bias != nullptr, row_scale, side[r], sums, n + r * PANEL, y + (first + r) * PANEL);
      }
    }
  }
  if (!row_scale) return;
  for (int r = 0; r < rows.rows; r++) {
    BlockSide side;
    __builtin_memcpy(&side, rows.x + r * rows.stride + planes * BLOCK, sizeof side);
    for (int c = 0; c < PANEL; c += VW) v_store(y + r * PANEL + c, v_mul(v_load(y + r * PANEL + c), v_set1(side.scale)));
  }
}

}  // namespace octavo::OCTAVO_ISA_NAME
