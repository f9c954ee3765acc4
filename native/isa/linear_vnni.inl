// Micro-kernel over records of integers, of the classes with VPDPBUSD: unsigned weights (up to 6 bits, or others + 128) times
// signed planes. A block's weights are unpacked into registers once for all rows of a step. Its float steps: linear.cpp.

namespace octavo::OCTAVO_ISA_NAME {

constexpr int MR_RECORDS = 32;
constexpr bool SKIPS_LIGHT = true;  // more than two rows of I15Q: RecordBlock's light

// One line of the stream, ahead of its reading and beside products: lines asked for in a burst fill the core's miss
// buffers, and what is read then waits behind them. Bytes keep memory busy and go to the second cache, whose misses do not
// take those buffers; nibbles keep the core busy and go to the first.
template <WeightKind K>
OCTAVO_INLINE void fetch_line(const uint8_t*& line) {
  if (has_nibbles(K)) _mm_prefetch((const char*)line + 4096, _MM_HINT_T0);
  else _mm_prefetch((const char*)line + 8192, _MM_HINT_T1);
  line += 64;
}

// What a block needs beside its weights. `sums`: which sums of a BlockSide belong to it. shift: the i8 kernels' 128.
struct BlockScale {
  const GroupScale& s;
  bool has_bias;
  int sums, offset;
};

// Bits above the nibbles: of quad q those from bit q * BITS on of its byte in the plane.
template <int BITS, int QUADS>
OCTAVO_INLINE void add_plane(const uint8_t* plane, __m512i (&words)[QUADS][2]) {
  constexpr int EACH = 8 / (BITS ? BITS : 1);
  const __m512i mask = _mm512_set1_epi8(BITS == 1 ? 0x10 : 0x30);
#pragma GCC unroll 2
  for (int h = 0; h < 2; h++) {
    __m512i bits = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int q = 0; q < QUADS; q++) {
      if (q % EACH == 0) bits = _mm512_load_si512(plane + q / EACH * 128 + h * 64);
      const int shift = q % EACH * BITS - 4;
      const __m512i moved = shift < 0 ? _mm512_slli_epi32(bits, -shift) : shift ? _mm512_srli_epi32(bits, shift) : bits;
      words[q][h] = _mm512_ternarylogic_epi32(moved, mask, words[q][h], 0xEA);  // (a & b) | c
    }
  }
}

// Nibbles as the whole numbers of their table, + 128.
template <WeightKind K, int QUADS>
OCTAVO_INLINE void look_up(__m512i (&words)[QUADS][2]) {
  alignas(16) static constexpr struct Raised {
    uint8_t at[16];
  } RAISED = [] {
    Raised t{};
    for (int i = 0; i < 16; i++) t.at[i] = (uint8_t)((K == WeightKind::NL4 ? NL4_TABLE : FP4_TABLE)[i] + 128);
    return t;
  }();
  const __m512i table = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i*)RAISED.at));
#pragma GCC unroll 8
  for (int q = 0; q < QUADS; q++)
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) words[q][h] = _mm512_shuffle_epi8(table, words[q][h]);
}

// Four columns of every channel of a block, as unsigned bytes: words[quad][half].
template <WeightKind K, int QUADS>
OCTAVO_INLINE void load_quads(const uint8_t* at, __m512i (&words)[QUADS][2]) {
  if (has_nibbles(K)) {
    const __m512i nibbles = _mm512_set1_epi8(15);
#pragma GCC unroll 8
    for (int z = 0; z < QUADS; z += 2) {
#pragma GCC unroll 2
      for (int h = 0; h < 2; h++) {
        const __m512i v = _mm512_load_si512(at + z * 64 + h * 64);
        words[z][h] = _mm512_and_si512(v, nibbles);
        words[z + 1][h] = _mm512_and_si512(_mm512_srli_epi32(v, 4), nibbles);
      }
    }
    if (plane_bits(K)) add_plane<plane_bits(K)>(at + QUADS * 64, words);
    if (has_table(K)) look_up<K>(words);
  } else {
    const __m512i sign = _mm512_set1_epi8((char)0x80);
#pragma GCC unroll 8
    for (int z = 0; z < QUADS; z++)
#pragma GCC unroll 2
      for (int h = 0; h < 2; h++) words[z][h] = _mm512_xor_si512(_mm512_load_si512(at + z * 128 + h * 64), sign);
  }
}

OCTAVO_INLINE __m512i broadcast_word(const uint8_t* x) {
  int32_t word;
  __builtin_memcpy(&word, x, 4);
  return _mm512_set1_epi32(word);
}

// Rows of one step, of more than two: so few that what ends a step and begins the next runs beside the products of both.
constexpr int AT_ONCE = 2;

// R rows of one block onto to[r * apart][half]. x: the record of the first row, part: where in a plane the block begins.
// FETCH: on the way the lines of the stream from `ahead` on, as many as a block's quads have.
// LIGHT: of rows whose low plane is zero there, so that the products with it would add nothing.
template <WeightKind K, ActKind A, int QUADS, int R, bool FETCH, bool LIGHT = false>
OCTAVO_INLINE void add_record(const __m512i (&words)[QUADS][2], const BlockScale& b, const uint8_t* x,
                              ptrdiff_t stride, int part, __m512* to, ptrdiff_t apart, const uint8_t*& ahead) {
  constexpr int PLANES = act_planes(A);
  constexpr bool LOW = PLANES == 2 && !LIGHT;
  __m512i n[R][2], low[R][2];  // a chain for each plane, so that enough are in flight
#pragma GCC unroll 4
  for (int r = 0; r < R; r++) {
    // Where the chains start: at 128 (whole) and `offset` times the negated sum, the high plane's at a 128th of that. Of
    // light rows both are multiples of 128.
    int32_t minus = 0, shift = 0;
    if (!is_unsigned(K) || b.offset) __builtin_memcpy(&minus, x + r * stride + PLANES * BLOCK + 4 * b.sums, 4);
    if (b.offset) shift = minus * b.offset;
    const int32_t whole = is_unsigned(K) ? 0 : minus;
    n[r][0] = n[r][1] = _mm512_set1_epi32(PLANES == 1 ? whole * 128 + shift : LIGHT ? whole + (shift >> 7) : whole);
    if (LOW) low[r][0] = low[r][1] = _mm512_set1_epi32(shift);
  }
#pragma GCC unroll 8
  for (int q = 0; q < QUADS; q++) {
    if (FETCH) fetch_line<K>(ahead);
    if (FETCH && !has_nibbles(K)) fetch_line<K>(ahead);
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
      const uint8_t* at = x + r * stride + part + 4 * q;
      const __m512i v = broadcast_word(at);
      n[r][0] = _mm512_dpbusd_epi32(n[r][0], words[q][0], v);
      n[r][1] = _mm512_dpbusd_epi32(n[r][1], words[q][1], v);
      if (LOW) {
        const __m512i u = broadcast_word(at + BLOCK);
        low[r][0] = _mm512_dpbusd_epi32(low[r][0], words[q][0], u);
        low[r][1] = _mm512_dpbusd_epi32(low[r][1], words[q][1], u);
      }
    }
  }
  if (PLANES == 2) {
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) n[r][0] = _mm512_slli_epi32(n[r][0], 7), n[r][1] = _mm512_slli_epi32(n[r][1], 7);
  }
  if (LOW) {
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
      n[r][0] = _mm512_add_epi32(n[r][0], low[r][0]), n[r][1] = _mm512_add_epi32(n[r][1], low[r][1]);
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; r++) {
    const auto* side = (const BlockSide*)(x + r * stride + PLANES * BLOCK);
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
      __m512 total = to[r * apart * 2 + h];
      const __m512 exact = _mm512_cvtepi32_ps(n[r][h]);
      if (act_row_scale(A)) {
        total = _mm512_fmadd_ps(exact, b.s.scale[h], total);
        if (b.has_bias) total = _mm512_fmadd_ps(b.s.bias[h], _mm512_set1_ps(side->sum[b.sums]), total);
      } else {
        __m512 part_sum = _mm512_mul_ps(exact, b.s.scale[h]);
        if (b.has_bias) part_sum = _mm512_fmadd_ps(b.s.bias[h], _mm512_set1_ps(side->sum[b.sums]), part_sum);
        total = _mm512_fmadd_ps(_mm512_set1_ps(side->scale), part_sum, total);
      }
      to[r * apart * 2 + h] = total;
    }
  }
}

OCTAVO_INLINE int take_row(uint32_t& rows) {
  const int first = __builtin_ctz(rows);
  rows &= rows - 1;
  return first;
}

// FEW: so many rows with their totals in registers; 0: any number, in memory.
template <WeightKind K, ActKind A, int QUADS, int FEW>
static void rows_records(const PackedLinear& w, const PanelGeometry& g, const uint8_t* panel, const RecordBlock& rows,
                         float* y) {
  constexpr int RECORD = record_bytes(A);
  const auto stride = (ptrdiff_t)rows.stride;
  __m512 few[FEW ? 2 * FEW : 1];
  auto* many = (__m512*)y;
#pragma GCC unroll 1
  for (int i = 0; i < 2 * rows.rows; i++) many[i] = _mm512_setzero_ps();
#pragma GCC unroll 8
  for (int i = 0; i < 2 * FEW; i++) few[i] = _mm512_setzero_ps();
  const uint8_t* ahead = rows.first || FEW ? panel : nullptr;  // what was read of a stream that is fetched
  const int steps = FEW ? 1 : rows.rows / AT_ONCE;
  const auto all = (uint32_t)((uint64_t{1} << rows.rows) - 1);
  for (int i = 0, block = 0; i < g.groups; i++) {
    const GroupParts<const uint8_t> at = group_parts(g, w.has_bias != 0, panel, i);
    GroupScale s;
    load_scale(w, at, s);
    for (int b = 0; b < g.blocks; b++, block++) {
      const uint8_t* stored = at.blocks + b * g.block_bytes;
      const uint8_t* const until = ahead ? stored + g.block_bytes : nullptr;
      const ptrdiff_t share = ((until - ahead) / steps + 63) / 64 * 64;  // before each step of rows
      const auto fetch = [&] {
        for (const uint8_t* const stop = until - ahead < share ? until : ahead + share; ahead < stop;) fetch_line<K>(ahead);
      };
      __m512i words[QUADS][2];
      load_quads<K, QUADS>(stored, words);
      const int part = QUADS == 8 ? 0 : block % 2 * 16;
      const BlockScale scale{s, w.has_bias != 0, QUADS == 8 ? 0 : 1 + block % 2, w.offset};
      const uint8_t* x = rows.x + (size_t)(QUADS == 8 ? block : block / 2) * RECORD;
      if constexpr (FEW > 0) {
        bool light = A == ActKind::I15Q;
        for (int r = 0; r < FEW && light; r++)
          light = ((const BlockSide*)(x + r * stride + act_planes(A) * BLOCK))->light;
        if (light) add_record<K, A, QUADS, FEW, true, A == ActKind::I15Q>(words, scale, x, stride, part, few, 1, ahead);
        else add_record<K, A, QUADS, FEW, true>(words, scale, x, stride, part, few, 1, ahead);
        while (ahead < until) fetch_line<K>(ahead);
        continue;
      }
      if constexpr (A == ActKind::I15Q) {
        uint32_t light = rows.light[QUADS == 8 ? block : block / 2], heavy = ~light & all;
        const auto add = [&]<int R, bool LIGHT>(int r, int other) {
          add_record<K, A, QUADS, R, false, LIGHT>(words, scale, x + r * stride, (other - r) * stride, part, many + 2 * r,
                                                   other - r, ahead);
        };
        while (light & (light - 1)) {
          const int r = take_row(light);
          fetch(), add.template operator()<2, true>(r, take_row(light));
        }
        while (heavy & (heavy - 1)) {
          const int r = take_row(heavy);
          fetch(), add.template operator()<2, false>(r, take_row(heavy));
        }
        if (light && heavy) add.template operator()<2, false>(take_row(light), take_row(heavy));
        else if (light) add.template operator()<1, true>(take_row(light), 0);
        else if (heavy) add.template operator()<1, false>(take_row(heavy), 0);
        continue;
      }
      int r = 0;
      for (; r + AT_ONCE <= rows.rows; r += AT_ONCE) {
        fetch();
        add_record<K, A, QUADS, AT_ONCE, false>(words, scale, x + r * stride, stride, part, many + 2 * r, 1, ahead);
      }
      if (r < rows.rows)
        add_record<K, A, QUADS, 1, false>(words, scale, x + r * stride, stride, part, many + 2 * r, 1, ahead);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < 2 * FEW; i++) many[i] = few[i];
  if (!act_row_scale(A)) return;
  for (int r = 0; r < rows.rows; r++) {
    const auto* side = (const BlockSide*)(rows.x + r * stride + act_planes(A) * BLOCK);
    const __m512 d = _mm512_set1_ps(side->scale);
    many[2 * r] = _mm512_mul_ps(many[2 * r], d), many[2 * r + 1] = _mm512_mul_ps(many[2 * r + 1], d);
  }
}

typedef void (*RowsRecords)(const PackedLinear&, const PanelGeometry&, const uint8_t*, const RecordBlock&, float*);

template <WeightKind K, ActKind A, int QUADS>
static constexpr RowsRecords BY_ROWS[3] = {rows_records<K, A, QUADS, 0>, rows_records<K, A, QUADS, 1>,
                                           rows_records<K, A, QUADS, 2>};

template <WeightKind K, int QUADS>
static RowsRecords pick_records(ActKind kind, int rows) {
  const int few = rows <= 2 ? rows : 0;
  if (act_row_scale(kind)) return BY_ROWS<K, ActKind::I15, QUADS>[few];
  if (kind == ActKind::I8G32) return BY_ROWS<K, ActKind::I8G32, QUADS>[few];
  // One row waits for memory: to look for light blocks costs more than it saves.
  if (kind == ActKind::I15Q && few != 1) return BY_ROWS<K, ActKind::I15Q, QUADS>[few];
  return BY_ROWS<K, ActKind::I15G32, QUADS>[few];
}

static void micro_records(const PackedLinear& w, const PanelGeometry& g, const uint8_t* panel, const RecordBlock& rows,
                          float* y) {
  const bool whole = g.pairs == 16;
  const auto pick = [&] {
    switch (w.kind) {
      case WeightKind::U4: return whole ? pick_records<WeightKind::U4, 8> : pick_records<WeightKind::U4, 4>;
      case WeightKind::U5: return pick_records<WeightKind::U5, 8>;
      case WeightKind::U6: return whole ? pick_records<WeightKind::U6, 8> : pick_records<WeightKind::U6, 4>;
      case WeightKind::NL4: return pick_records<WeightKind::NL4, 8>;
      case WeightKind::FP4: return pick_records<WeightKind::FP4, 8>;
      default: return whole ? pick_records<WeightKind::I8, 8> : pick_records<WeightKind::I8, 4>;
    }
  };
  pick()(rows.kind, rows.rows)(w, g, panel, rows, y);
}

}  // namespace octavo::OCTAVO_ISA_NAME
