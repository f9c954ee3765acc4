// Micro-kernels of the AVX2 class, in the canonical order of TDPBF16PS (linear_fma.inl).
//
// Sixteen registers hold the chains of three rows and two vectors of channels. So a block of up to MR_MAX rows goes
// through the panel in stretches that stay in the first cache, and through a stretch three rows at a time; the lines of
// the next stretch are asked for meanwhile. Activations are unpacked to float32 beforehand: a product costs its FMAs
// and one load.

namespace octavo::OCTAVO_ISA_NAME {

constexpr int MR_BF16 = 12, MR_GROUP = 12, MR_MAX = 12, ROWS = 3;
constexpr int DIRECT_ROWS_U4 = ROWS, DIRECT_ROWS_I8 = ROWS, DIRECT_ROWS_FP8 = 0;  // more rows read an expanded panel
constexpr bool ROWS_IN_STEPS = false;
constexpr int STRETCH = 128;  // columns

static void open_kernels() {}
static void close_kernels() {}

// sum + a b, rounded once. In this form and no other: given the choice, gcc 12 moves and spills the sums.
OCTAVO_INLINE vf accumulate(vf sum, vf a, vf b) {
  asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
  return sum;
}

// Columns [first, first + columns) of R rows as float32, a row every STRETCH floats. Columns come in eights.
template <int R>
OCTAVO_INLINE void unpack_columns(const RowBlock& rows, int first, int columns, float* out) {
#pragma GCC unroll 4
  for (int r = 0; r < R; r++) {
    const uint16_t* x = rows.x + (size_t)r * rows.ldx + first;
    for (int k = 0; k < columns; k += VW) {
      const vi words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)(x + k)));
      v_store(out + r * STRETCH + k, v_low(words));
    }
  }
}

// Column 2 p (odd: 2 p + 1) of eight channels. `at` points at the eight channels in the block's first line.
template <WeightKind K>
OCTAVO_INLINE vf weight_column(const uint8_t* at, int p, bool odd) {
  if (K == WeightKind::U4) {  // the high half of a float32: 0x4300 | nibble
    const vi stored = v_load_bits(at + p / 4 * 128);
    const int bit = p % 4 * 4;
    const vi moved = odd ? _mm256_srli_epi32(stored, bit) : _mm256_slli_epi32(stored, 16 - bit);
    return v_float(_mm256_or_si256(_mm256_and_si256(moved, _mm256_set1_epi32(0xF0000)), _mm256_set1_epi32(0x43000000)));
  }
  if (K == WeightKind::I8) {
    const vi four = v_load_bits(at + p / 4 * 256 + p % 2 * 128);
    const int byte = p % 4 / 2 + (odd ? 2 : 0);
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(byte == 3 ? four : _mm256_slli_epi32(four, 24 - 8 * byte), 24));
  }
  const vi word = v_load_bits(at + p * 128);
  return odd ? v_high(word) : v_low(word);
}

// Lines of the stream to ask for: `lines` at a step of four pairs and two vectors of channels.
struct Fetch {
  const uint8_t* at;
  int lines;
};

template <int V>
OCTAVO_INLINE void fetch_lines(Fetch& fetch) {
  for (int i = 0; i < fetch.lines * V / 2; i++, fetch.at += 64) _mm_prefetch((const char*)fetch.at, _MM_HINT_T0);
}

template <WeightKind K>
constexpr int LINES = K == WeightKind::U4 ? 2 : K == WeightKind::I8 ? 4 : 8;  // of four pairs, all channels

// sum[row][vector] += one block of V vectors of channels. The even and the odd columns of a pair come in turn, so that
// everything alive at a time fits in registers.
template <WeightKind K, int R, int V>
OCTAVO_INLINE void add_block(const uint8_t* at, int pairs, const float* x, Fetch& fetch, vf (&sum)[R][V]) {
  vf chain[2][R][V];
#pragma GCC unroll 4
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) chain[0][r][v] = chain[1][r][v] = v_set1(0.0f);
  for (int p = 0; p < pairs; p += 4, at += LINES<K> * 64, x += 8) {
    fetch_lines<V>(fetch);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
      vf w[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) w[v] = weight_column<K>(at + v * 32, j / 2, j % 2);
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) {
        const vf column = v_set1(x[r * STRETCH + j]);
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) chain[j % 2][r][v] = accumulate(chain[j % 2][r][v], w[v], column);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) sum[r][v] = v_add(sum[r][v], v_add(chain[0][r][v], chain[1][r][v]));
}

// Vectors of channels at a time. One row of bf16 takes all: it then has chains enough in flight.
template <WeightKind K, int R>
constexpr int WIDTH = K == WeightKind::BF16 && R == 1 ? 4 : 2;

// y += blocks [begin, end) of a bf16 panel.
template <int R>
static void add_stretch(const uint8_t* panel, int begin, int end, const RowBlock& rows, Fetch fetch, float* y) {
  constexpr int V = WIDTH<WeightKind::BF16, R>;
  alignas(32) float x[R * STRETCH];
  unpack_columns<R>(rows, begin * 32, (end - begin) * 32, x);
  for (int b = begin; b < end; b++) {
    for (int first = 0; first < PANEL; first += V * VW) {
      vf sum[R][V];
#pragma GCC unroll 4
      for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) sum[r][v] = v_load(y + r * PANEL + first + v * VW);
      add_block<WeightKind::BF16>(panel + b * 2048 + first * 4, 16, x + (b - begin) * 32, fetch, sum);
#pragma GCC unroll 4
      for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) v_store(y + r * PANEL + first + v * VW, sum[r][v]);
    }
  }
}

// y += groups [begin, end). K BF16: `words` holds the panel expanded.
template <WeightKind K, int R>
static void add_groups(const PackedLinear& w, const PanelGeometry& g, const uint8_t* panel, const uint8_t* words,
                       int begin, int end, const RowBlock& rows, Fetch fetch, float* y) {
  constexpr int V = WIDTH<K, R>;
  const int columns = g.pairs * 2, group = g.blocks * columns;
  const bool held = (end - begin) * group <= STRETCH;
  const size_t block_bytes = K == WeightKind::BF16 ? (size_t)g.pairs * 128 : g.block_bytes;
  alignas(32) float x[R * STRETCH];
  if (held) unpack_columns<R>(rows, begin * group, (end - begin) * group, x);
  for (int i = begin; i < end; i++) {
    const GroupParts<const uint8_t> parts = group_parts(g, w.has_bias != 0, panel, i);
    const uint8_t* at = K == WeightKind::BF16 ? words + i * g.blocks * block_bytes : parts.blocks;
    GroupScale s;
    load_scale(w, parts, s);
    for (int v0 = 0; v0 < VECTORS; v0 += V) {
      vf sum[R][V];
#pragma GCC unroll 4
      for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) sum[r][v] = v_set1(0.0f);
      for (int b = 0; b < g.blocks; b++) {
        if (!held) unpack_columns<R>(rows, i * group + b * columns, columns, x);
        const float* from = held ? x + (i - begin) * group + b * columns : x;
        add_block<K>(at + b * block_bytes + v0 * 32, g.pairs, from, fetch, sum);
      }
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) {
        const size_t of_group = (size_t)r * g.groups + i;
        const vf start = v_set1(rows.start[of_group]), total = v_set1(rows.sum[of_group]);
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) {
          float* to = y + r * PANEL + (v0 + v) * VW;
          vf value = v_fma(v_add(sum[r][v], start), s.scale[v0 + v], v_load(to));
          if (parts.bias) value = v_fma(s.bias[v0 + v], total, value);
          v_store(to, value);
        }
      }
    }
  }
}

// Rows in turns of up to ROWS, as even as they go: f(rows of the turn, its first row, its number, number of turns).
template <class F>
OCTAVO_INLINE void in_turns(const RowBlock& rows, F f) {
  const int turns = (rows.rows + ROWS - 1) / ROWS;
  for (int t = 0, row = 0; t < turns; t++) {
    RowBlock some = rows;
    some.rows = (rows.rows - row + turns - t - 1) / (turns - t);
    some.x += (size_t)row * rows.ldx;
    some.sum += (size_t)row * rows.groups;
    some.start += (size_t)row * rows.groups;
    f(some, row, t, turns);
    row += some.rows;
  }
}

// Turn `turn` of `turns` over a stretch of `bytes` asks for its share of the stretch that begins at `next`.
static Fetch share_fetch(const RowBlock& rows, const uint8_t* next, size_t bytes, int lines, int turn, int turns) {
  if (!rows.first) return {next, 0};
  return {next + bytes / 64 * turn / turns * 64, (lines + turns - 1) / turns};
}

static void micro_bf16(const uint8_t* panel, int blocks, const RowBlock& rows, float* y) {
  static constexpr decltype(&add_stretch<1>) table[ROWS] = {add_stretch<1>, add_stretch<2>, add_stretch<3>};
  for (int i = 0; i < rows.rows * PANEL; i += VW) v_store(y + i, v_set1(0.0f));
  for (int b = 0; b < blocks; b += STRETCH / 32) {
    const int end = b + STRETCH / 32 < blocks ? b + STRETCH / 32 : blocks;
    in_turns(rows, [&](const RowBlock& some, int row, int turn, int turns) {
      const uint8_t* next = panel + (size_t)end * 2048;
      const Fetch fetch = share_fetch(rows, next, (end - b) * 2048, LINES<WeightKind::BF16> / 2, turn, turns);
      table[some.rows - 1](panel, b, end, some, fetch, y + row * PANEL);
    });
  }
}

typedef void (*AddGroups)(const PackedLinear&, const PanelGeometry&, const uint8_t*, const uint8_t*, int, int,
                          const RowBlock&, Fetch, float*);
template <WeightKind K>
static AddGroups pick_groups(int rows) {
  static constexpr AddGroups table[ROWS] = {add_groups<K, 1>, add_groups<K, 2>, add_groups<K, 3>};
  return table[rows - 1];
}

static void micro_group(const PackedLinear& w, const PanelGeometry& g, const uint8_t* panel, const uint8_t* words,
                        const RowBlock& rows, float* y) {
  const int columns = g.blocks * g.pairs * 2, stretch = columns < STRETCH ? STRETCH / columns : 1;
  const bool u4 = w.kind == WeightKind::U4;
  const int lines = words ? 0 : (u4 ? LINES<WeightKind::U4> : LINES<WeightKind::I8>) / 2;
  const size_t bytes = w.panel_bytes / g.groups * stretch;
  for (int i = 0; i < rows.rows * PANEL; i += VW) v_store(y + i, v_set1(0.0f));
  for (int i = 0; i < g.groups; i += stretch) {
    const int end = i + stretch < g.groups ? i + stretch : g.groups;
    in_turns(rows, [&](const RowBlock& some, int row, int turn, int turns) {
      const AddGroups add = words ? pick_groups<WeightKind::BF16>(some.rows)
                            : u4  ? pick_groups<WeightKind::U4>(some.rows)
                                  : pick_groups<WeightKind::I8>(some.rows);
      const uint8_t* next = panel + w.panel_bytes / g.groups * i + 4096;
      add(w, g, panel, words, i, end, some, share_fetch(rows, next, bytes, lines, turn, turns), y + row * PANEL);
    });
  }
}

}  // namespace octavo::OCTAVO_ISA_NAME
