// Micro-kernels of the AMX class: TDPBF16PS over tiles of 16 rows by 32 columns.
//
// Its order is the canonical one (linear_fma.inl): the float order of the instruction. Tiles 0-3 accumulate [row half]
// [channel half], 4 and 5 hold activations, 6 and 7 weights. Groups of 16 columns have blocks of 8 pairs and set shapes
// of their own; between kernels the tiles are shaped for 16 pairs.
// With OCTAVO_AMX_MODEL the tile instructions are a software model: all that is around them (packing, tails, epilogues)
// is checked by it on any AVX-512 machine. The instructions themselves have been run by no test of this repository;
// isa_self_check() compares them with the portable class when a session starts.

namespace octavo::OCTAVO_ISA_NAME {

constexpr int MR_BF16 = 32, MR_GROUP = 32, MR_MAX = 32;
constexpr int DIRECT_ROWS_U4 = 0, DIRECT_ROWS_I8 = 0, DIRECT_ROWS_FP8 = 0;
constexpr bool ROWS_IN_STEPS = true;

struct alignas(64) TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t colsb[16];
  uint8_t rows[16];
};

static void shape_tiles(TileConfig& config, int pairs) {
  __builtin_memset(&config, 0, sizeof config);
  config.palette = 1;
  for (int t = 0; t < 8; t++) {
    config.rows[t] = t >= 6 ? pairs : 16;
    config.colsb[t] = t == 4 || t == 5 ? pairs * 4 : 64;
  }
}

#if defined(OCTAVO_AMX_MODEL)

struct TileModel {
  TileConfig config;
  uint32_t word[8][16][16];
};
static thread_local TileModel tiles;

static void model_zero(int t) { __builtin_memset(tiles.word[t], 0, sizeof tiles.word[t]); }

static void model_load(int t, const void* from, size_t stride) {
  for (int r = 0; r < tiles.config.rows[t]; r++)
    __builtin_memcpy(tiles.word[t][r], (const uint8_t*)from + r * stride, tiles.config.colsb[t]);
}

static void model_store(int t, void* to, size_t stride) {
  for (int r = 0; r < tiles.config.rows[t]; r++)
    __builtin_memcpy((uint8_t*)to + r * stride, tiles.word[t][r], tiles.config.colsb[t]);
}

static void model_dot(int c, int a, int b) {
  for (int r = 0; r < tiles.config.rows[c]; r++) {
    vf even = v_set1(0.0f), odd = v_set1(0.0f);
    for (int p = 0; p < tiles.config.rows[b]; p++) {
      const vi w = v_load_bits(tiles.word[b][p]);
      even = v_fma(v_low(w), v_set1(bf16_value(tiles.word[a][r][p] & 0xFFFF)), even);
      odd = v_fma(v_high(w), v_set1(bf16_value(tiles.word[a][r][p] >> 16)), odd);
    }
    float* to = (float*)tiles.word[c][r];
    v_store(to, v_add(v_load(to), v_add(even, odd)));
  }
}

#define TILE_ZERO(t) model_zero(t)
#define TILE_LOAD(t, from, stride) model_load(t, from, stride)
#define TILE_STORE(t, to, stride) model_store(t, to, stride)
#define TILE_DOT(c, a, b) model_dot(c, a, b)
static void configure_tiles(int pairs) { shape_tiles(tiles.config, pairs); }
static void release_tiles() { tiles.config = {}; }
static bool tiles_held() { return tiles.config.palette != 0; }

#else

#define TILE_ZERO(t) _tile_zero(t)
#define TILE_LOAD(t, from, stride) _tile_loadd(t, from, stride)
#define TILE_STORE(t, to, stride) _tile_stored(t, to, stride)
#define TILE_DOT(c, a, b) _tile_dpbf16ps(c, a, b)
static void configure_tiles(int pairs) {
  TileConfig config;
  shape_tiles(config, pairs);
  asm volatile("" ::"r"(&config) : "memory");  // without it gcc 12 drops the stores to config
  _tile_loadconfig(&config);
}
static void release_tiles() { _tile_release(); }
static bool tiles_held() {
  TileConfig config;
  _tile_storeconfig(&config);
  asm volatile("" : "+m"(config));  // nor does it know what this stored
  return config.palette != 0;
}

#endif

static void open_kernels() { configure_tiles(16); }
static void close_kernels() { release_tiles(); }

// Tile loads do not tell the compiler what they read: whatever was stored before must be in memory.
OCTAVO_INLINE void settle_stores() { asm volatile("" ::: "memory"); }

// Tiles 0-3 += one block of words. two: rows 16 to 31 exist.
OCTAVO_INLINE void dot_block(const uint8_t* words, const uint16_t* x, int ldx, bool two) {
  TILE_LOAD(4, x, (size_t)ldx * 2);
  TILE_LOAD(6, words, 128);
  TILE_LOAD(7, words + 64, 128);
  TILE_DOT(0, 4, 6);
  TILE_DOT(1, 4, 7);
  if (two) {
    TILE_LOAD(5, x + (size_t)16 * ldx, (size_t)ldx * 2);
    TILE_DOT(2, 5, 6);
    TILE_DOT(3, 5, 7);
  }
}

OCTAVO_INLINE void zero_sums() {
  TILE_ZERO(0);
  TILE_ZERO(1);
  TILE_ZERO(2);
  TILE_ZERO(3);
}

OCTAVO_INLINE void store_sums(float* y, bool two) {
  TILE_STORE(0, y, PANEL * 4);
  TILE_STORE(1, y + HALF, PANEL * 4);
  if (two) {
    TILE_STORE(2, y + 16 * PANEL, PANEL * 4);
    TILE_STORE(3, y + 16 * PANEL + HALF, PANEL * 4);
  }
}

static void micro_bf16(const uint8_t* panel, int blocks, const RowBlock& rows, float* y) {
  const bool two = rows.rows > 16;
  settle_stores();
  zero_sums();
  for (int b = 0; b < blocks; b++) {
    const uint8_t* at = panel + (size_t)b * 2048;
    if (rows.first)
      for (int i = 0; i < 2048; i += 64) __builtin_prefetch(at + 4096 + i);
    dot_block(at, rows.x + b * 32, rows.ldx, two);
  }
  store_sums(y, two);
}

static void micro_group(const PackedLinear& w, const PanelGeometry& g, const uint8_t* panel, const uint8_t* words,
                        const RowBlock& rows, float* y) {
  const bool two = rows.rows > 16;
  const size_t bytes = (size_t)g.pairs * PANEL * 4;
  const uint16_t* x = rows.x;
  alignas(64) float c[2][MR_MAX * PANEL];  // in turn, so that one group's stores wait for no reads of the last
  for (int i = 0; i < rows.rows * PANEL; i++) y[i] = 0.0f;
  if (g.pairs != 16) configure_tiles(g.pairs);
  settle_stores();
  for (int i = 0; i < g.groups; i++) {
    const GroupParts<const uint8_t> at = group_parts(g, w.has_bias != 0, panel, i);
    float* part = c[i & 1];
    zero_sums();
    for (int b = 0; b < g.blocks; b++, words += bytes, x += 2 * g.pairs) dot_block(words, x, rows.ldx, two);
    store_sums(part, two);
    GroupScale s;
    load_scale(w, at, s);
    for (int r = 0; r < rows.rows; r++) {
      const vf start = v_set1(rows.start[(size_t)r * g.groups + i]), sum = v_set1(rows.sum[(size_t)r * g.groups + i]);
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; v++) {
        float* to = y + r * PANEL + v * VW;
        vf total = v_fma(v_add(v_load(part + r * PANEL + v * VW), start), s.scale[v], v_load(to));
        if (at.bias) total = v_fma(s.bias[v], sum, total);
        v_store(to, total);
      }
    }
  }
  if (g.pairs != 16) configure_tiles(16);
}

}  // namespace octavo::OCTAVO_ISA_NAME
