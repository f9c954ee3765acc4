// Micro-kernel over records of integers, AVX2: nibbles as products of bytes, bytes as products of 16-bit words. For
// more than two rows a block's weights are unpacked once and lie in the first cache. Its float steps: linear.cpp.
//
// Nothing saturates and no sum leaves its type. Nibbles times a plane: a pair of columns is at most 2 * 15 * 128, eight
// of them 30,720, below 2^15. Bytes times 15-bit integers: 32 columns are at most 32 * 128 * 16,383, below 2^27.

namespace octavo::OCTAVO_ISA_NAME {

constexpr int MR_RECORDS = 16;
constexpr bool SKIPS_LIGHT = false;
constexpr int STREAM_AHEAD = 4096;  // bytes of the stream fetched ahead

// The operands of a block. U4: operand q is quad q (four columns as they stand in a plane) in bytes. Others: operands 2 q
// and 2 q + 1 are the columns on even and on odd places of quad q as int16. Here unpacked with every use: for few rows.
template <WeightKind K, int QUADS>
struct StoredBlock {
  const uint8_t* at;
  __attribute__((always_inline)) vi operand(int v, int i) const {
    if (K == WeightKind::U4) {
      const vi both = v_load_bits(at + i / 2 * 128 + v * 32);
      return _mm256_and_si256(i % 2 ? _mm256_srli_epi32(both, 4) : both, _mm256_set1_epi8(15));
    }
    const vi bytes = quad(v, i / 2);
    return _mm256_srai_epi16(i % 2 ? bytes : _mm256_slli_epi16(bytes, 8), 8);
  }
  // Four columns in bytes.
  __attribute__((always_inline)) vi quad(int v, int q) const {
    if (!has_nibbles(K)) return v_load_bits(at + q * 128 + v * 32);
    const vi both = v_load_bits(at + q / 2 * 128 + v * 32);
    const vi low = _mm256_and_si256(q % 2 ? _mm256_srli_epi32(both, 4) : both, _mm256_set1_epi8(15));
    if (has_table(K)) {
      const __m128i table = _mm_loadu_si128((const __m128i*)(K == WeightKind::NL4 ? NL4_TABLE : FP4_TABLE));
      return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), low);
    }
    constexpr int BITS = plane_bits(K);  // of quad q from bit q BITS on of its byte in the plane
    const vi plane = v_load_bits(at + QUADS * 64 + q * BITS / 8 * 128 + v * 32);
    const int shift = q * BITS % 8 - 4;
    const vi moved = shift < 0 ? _mm256_slli_epi32(plane, -shift) : _mm256_srli_epi32(plane, shift);
    return _mm256_or_si256(_mm256_and_si256(moved, _mm256_set1_epi8(BITS == 1 ? 0x10 : 0x30)), low);
  }
};

// Unpacked beforehand, for many.
template <WeightKind K, int QUADS>
struct OpenBlock {
  static constexpr int OPERANDS = K == WeightKind::U4 ? QUADS : 2 * QUADS;
  vi at[VECTORS][OPERANDS];
  __attribute__((always_inline)) explicit OpenBlock(StoredBlock<K, QUADS> stored) {
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++)
#pragma GCC unroll 16
      for (int i = 0; i < OPERANDS; i++) at[v][i] = stored.operand(v, i);
    asm volatile("" ::"r"(at) : "memory");  // gcc else splits the array into what it takes for registers
  }
  __attribute__((always_inline)) vi operand(int v, int i) const { return at[v][i]; }
};

OCTAVO_INLINE vi broadcast_word(const uint8_t* x) {
  int32_t word;
  __builtin_memcpy(&word, x, 4);
  return _mm256_set1_epi32(word);
}

// A row's integers of one block as int16: even[d] holds those on places 4 d and 4 d + 2, odd[d] their neighbours.
struct WideRow {
  uint8_t even[BLOCK], odd[BLOCK];
};

template <ActKind A>
OCTAVO_INLINE void widen_row(const uint8_t* x, WideRow& out) {
  const vi high = v_load_bits(x), top = _mm256_set1_epi16((short)0xFF00);
  vi even = _mm256_slli_epi16(high, 8), odd = _mm256_and_si256(high, top);
  if (act_planes(A) == 1) {
    even = _mm256_srai_epi16(even, 8), odd = _mm256_srai_epi16(odd, 8);
  } else {
    const vi low = v_load_bits(x + BLOCK);
    even = _mm256_or_si256(_mm256_srai_epi16(even, 1), _mm256_andnot_si256(top, low));
    odd = _mm256_or_si256(_mm256_srai_epi16(odd, 1), _mm256_srli_epi16(low, 8));
  }
  _mm256_storeu_si256((vi*)out.even, even);
  _mm256_storeu_si256((vi*)out.odd, odd);
}

// Keeps a sum in its register and its order: gcc 12 else holds all products and adds them as a tree, out of registers.
OCTAVO_INLINE vi pinned(vi sum) {
  asm("" : "+x"(sum));
  return sum;
}

// n[row][vector] += the block's nibbles times the rows' planes, for vectors [v0, v0 + V) of channels.
template <int QUADS, int PLANES, int R, int V, class Block>
OCTAVO_INLINE void dot_planes(const Block& block, int v0, const uint8_t* x, size_t stride, vi (&n)[R][V]) {
  vi sum[PLANES][R][V];
#pragma GCC unroll 8
  for (int q = 0; q < QUADS; q++) {
    vi w[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) w[v] = block.operand(v0 + v, q);
#pragma GCC unroll 2
    for (int p = 0; p < PLANES; p++) {
#pragma GCC unroll 2
      for (int r = 0; r < R; r++) {
        const vi four = broadcast_word(x + r * stride + p * BLOCK + 4 * q);
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) {
          const vi part = _mm256_maddubs_epi16(w[v], four);
          sum[p][r][v] = pinned(q ? _mm256_add_epi16(sum[p][r][v], part) : part);
        }
      }
    }
  }
#pragma GCC unroll 2
  for (int p = 0; p < PLANES; p++) {
    const vi weight = _mm256_set1_epi16(PLANES == 2 && p == 0 ? 128 : 1);
#pragma GCC unroll 2
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
      for (int v = 0; v < V; v++) n[r][v] = _mm256_add_epi32(n[r][v], _mm256_madd_epi16(sum[p][r][v], weight));
  }
}

// The same for bytes; part: the rows' first place in the block.
template <int QUADS, int R, int V, class Block>
OCTAVO_INLINE void dot_wide(const Block& block, int v0, const WideRow* x, int part, vi (&n)[R][V]) {
#pragma GCC unroll 16
  for (int i = 0; i < 2 * QUADS; i++) {
    vi w[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) w[v] = block.operand(v0 + v, i);
#pragma GCC unroll 2
    for (int r = 0; r < R; r++) {
      const vi two = broadcast_word((i % 2 ? x[r].odd : x[r].even) + part + i / 2 * 4);
#pragma GCC unroll 2
      for (int v = 0; v < V; v++) n[r][v] = pinned(_mm256_add_epi32(n[r][v], _mm256_madd_epi16(w[v], two)));
    }
  }
}

// What a block needs beside its weights. `sums`: which sums of a BlockSide belong to it.
struct BlockScale {
  const GroupScale& s;
  bool has_bias;
  int sums, offset;
};

// R rows of one block onto y[row][PANEL]. x: the record of the first row; part: where in a plane the block begins.
template <WeightKind K, ActKind A, int QUADS, int R, class Block>
OCTAVO_INLINE void add_record(const Block& block, const BlockScale& b, const uint8_t* x, size_t stride, int part,
                              float* y) {
  constexpr int PLANES = act_planes(A), V = 2;
  WideRow wide[R];
  if (K != WeightKind::U4)
#pragma GCC unroll 2
    for (int r = 0; r < R; r++) widen_row<A>(x + r * stride, wide[r]);
#pragma GCC unroll 2
  for (int v0 = 0; v0 < VECTORS; v0 += V) {
    vi n[R][V];
#pragma GCC unroll 2
    for (int r = 0; r < R; r++) {
      int32_t start = 0;
      if (b.offset) {
        __builtin_memcpy(&start, x + r * stride + PLANES * BLOCK + 4 * b.sums, 4);
        start *= b.offset;
      }
#pragma GCC unroll 2
      for (int v = 0; v < V; v++) n[r][v] = _mm256_set1_epi32(start);
    }
    if constexpr (K != WeightKind::U4) {
      dot_wide<QUADS>(block, v0, wide, part, n);
    } else {
      dot_planes<QUADS, PLANES>(block, v0, x + part, stride, n);
    }
#pragma GCC unroll 2
    for (int r = 0; r < R; r++) {
      const auto* side = (const BlockSide*)(x + r * stride + PLANES * BLOCK);
      const vf sum = v_set1(side->sum[b.sums]), scale = v_set1(side->scale);
#pragma GCC unroll 2
      for (int v = 0; v < V; v++) {
        float* to = y + r * PANEL + (v0 + v) * VW;
        const vf exact = _mm256_cvtepi32_ps(n[r][v]);
        if (act_row_scale(A)) {
          vf total = v_fma(exact, b.s.scale[v0 + v], v_load(to));
          if (b.has_bias) total = v_fma(b.s.bias[v0 + v], sum, total);
          v_store(to, total);
        } else {
          vf of_block = v_mul(exact, b.s.scale[v0 + v]);
          if (b.has_bias) of_block = v_fma(b.s.bias[v0 + v], sum, of_block);
          v_store(to, v_fma(scale, of_block, v_load(to)));
        }
      }
    }
  }
}

// FEW: so many rows; 0: any number.
template <WeightKind K, ActKind A, int QUADS, int FEW>
static void rows_records(const PackedLinear& w, const PanelGeometry& g, const uint8_t* panel, const RecordBlock& rows,
                         float* y) {
  constexpr int RECORD = record_bytes(A);
  const uint8_t* ahead = rows.first ? panel + STREAM_AHEAD : nullptr;
  for (int i = 0; i < rows.rows * PANEL; i += VW) v_store(y + i, v_set1(0.0f));
  for (int i = 0, block = 0; i < g.groups; i++) {
    const GroupParts<const uint8_t> at = group_parts(g, w.has_bias != 0, panel, i);
    GroupScale s;
    load_scale(w, at, s);
    for (int b = 0; b < g.blocks; b++, block++) {
      const uint8_t* stored = at.blocks + b * g.block_bytes;
      if (ahead)
        for (const uint8_t* end = stored + g.block_bytes + STREAM_AHEAD; ahead < end; ahead += 64)
          _mm_prefetch((const char*)ahead, _MM_HINT_T0);
      const int part = QUADS == 8 ? 0 : block % 2 * 16;
      const BlockScale scale{s, w.has_bias != 0, QUADS == 8 ? 0 : 1 + block % 2, w.offset};
      const uint8_t* x = rows.x + (size_t)(QUADS == 8 ? block : block / 2) * RECORD;
      if constexpr (FEW > 0) {
        add_record<K, A, QUADS, FEW>(StoredBlock<K, QUADS>{stored}, scale, x, rows.stride, part, y);
      } else {
        const OpenBlock<K, QUADS> open(StoredBlock<K, QUADS>{stored});
        int r = 0;
        for (; r + 2 <= rows.rows; r += 2)
          add_record<K, A, QUADS, 2>(open, scale, x + r * rows.stride, rows.stride, part, y + r * PANEL);
        if (r < rows.rows)
          add_record<K, A, QUADS, 1>(open, scale, x + r * rows.stride, rows.stride, part, y + r * PANEL);
      }
    }
  }
  if (!act_row_scale(A)) return;
  for (int r = 0; r < rows.rows; r++) {
    const auto* side = (const BlockSide*)(rows.x + r * rows.stride + act_planes(A) * BLOCK);
    for (int v = 0; v < PANEL; v += VW)
      v_store(y + r * PANEL + v, v_mul(v_load(y + r * PANEL + v), v_set1(side->scale)));
  }
}

typedef void (*RowsRecords)(const PackedLinear&, const PanelGeometry&, const uint8_t*, const RecordBlock&, float*);

template <WeightKind K, ActKind A>
static RowsRecords pick_rows(bool whole, int rows) {
  static constexpr RowsRecords table[2][3] = {
      {rows_records<K, A, 4, 0>, rows_records<K, A, 4, 1>, rows_records<K, A, 4, 2>},
      {rows_records<K, A, 8, 0>, rows_records<K, A, 8, 1>, rows_records<K, A, 8, 2>},
  };
  return table[whole][rows <= 2 ? rows : 0];
}

template <WeightKind K>
static RowsRecords pick_records(ActKind kind, bool whole, int rows) {
  if (act_row_scale(kind)) return pick_rows<K, ActKind::I15>(whole, rows);
  if (kind == ActKind::I8G32) return pick_rows<K, ActKind::I8G32>(whole, rows);
  return pick_rows<K, ActKind::I15G32>(whole, rows);
}

static void micro_records(const PackedLinear& w, const PanelGeometry& g, const uint8_t* panel, const RecordBlock& rows,
                          float* y) {
  const auto pick = [&] {
    switch (w.kind) {
      case WeightKind::U4: return pick_records<WeightKind::U4>;
      case WeightKind::U5: return pick_records<WeightKind::U5>;
      case WeightKind::U6: return pick_records<WeightKind::U6>;
      case WeightKind::NL4: return pick_records<WeightKind::NL4>;
      case WeightKind::FP4: return pick_records<WeightKind::FP4>;
      default: return pick_records<WeightKind::I8>;
    }
  };
  pick()(rows.kind, g.pairs == 16, rows.rows)(w, g, panel, rows, y);
}

}  // namespace octavo::OCTAVO_ISA_NAME
