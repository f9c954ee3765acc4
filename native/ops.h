// Arguments of every operator but the linears: plain pointers and sizes, one function table per instruction-set class.
//
// Rows are computed one by one in a constant order, so a row's bits never depend on how many rows travel with it.
// f32 values have ld == width; what a linear eats (activation.h) is bf16 with ld a multiple of 32 and zeros in
// [width, ld), or records of integers with ld in bytes.
#pragma once
#include <cstddef>
#include <cstdint>

#include "cache.h"
#include "linear.h"

namespace octavo {

constexpr int CHUNK_TOKENS = 128;    // softmax is renewed after each chunk ...
constexpr int SEGMENT_TOKENS = 512;  // ... and partial results are merged after each segment, both counted from index 0
constexpr int CHUNK_PAGES = CHUNK_TOKENS / PAGE_TOKENS;
constexpr int TILE_VECTORS = 24;     // query vectors that share K and V loads, at most (one row may have more)

// RMS: x / sqrt(mean x^2 + eps). LAYER: the same of x less its mean. L2: x / sqrt(sum x^2 + eps), without a weight.
enum class NormRule : int32_t { RMS = 0, LAYER = 1, L2 = 2 };

// Here and below: exactly one of out, out16 (bf16) and records (of `kind`) is set.
struct NormArgs {
  const float* x;       // [rows, groups, width]
  const float* weight;  // [width]
  float* out;
  uint16_t* out16;      // [rows, ldo]
  uint8_t* records;     // [rows, ldo], one group
  ActKind kind;
  int32_t groups, width, ldo;
  int32_t weight_plus_one;  // gemma: times (1 + w)
  NormRule rule;
  const float* bias;        // [width] or null
  float eps;
};

struct RopeAnglesArgs {
  const int32_t* position;  // [rows]
  const float* inv_freq;    // [half]
  float* out;               // [rows, 2 half]: cos, then sin
  int32_t half;
  float factor;
};

struct RopeArgs {
  const float* x;       // [rows, heads, d]
  const float* angles;  // [rows, 2 half]
  float* out;           // may be x
  int32_t heads, d, half;
};

struct ElementArgs {  // rows of `width`
  const float* a;
  const float* b;
  float* out;
  uint16_t* out16;
  uint8_t* records;
  ActKind kind;
  int32_t width, ldo;
  int32_t activation;  // glu: SILU, GELU_TANH or CLAMPED; act: any other
  float scale;         // of `scale`; act: of CAP
  float alpha, limit;  // glu: of CLAMPED
};

// One row a request: its last or first row in this step, or the mean of all of them in ascending order.
struct PoolArgs {
  const float* x;            // [T, width]
  float* out;                // [N, width]
  const int32_t* row_begin;  // [N + 1]
  int32_t width;
  enum Mode : int32_t { LAST = 0, MEAN = 1, CLS = 2 } mode;
};

struct KVWriteArgs {
  CacheView cache;
  const float *k, *v;  // [rows, kv_heads, d]
  const int32_t *index, *request, *flags, *slot;
};

// Rows of one request that share their K and V loads; a draft of a tree is a tile of its own.
struct Tile {
  int32_t row, rows, slot;
};

// One tile for KV heads [kv_head, kv_head + heads), or one of `parts` shares of its segments. tile -1: none.
// heads times the tile's rows: at most tile_rows.
struct Task {
  int32_t tile, kv_head, heads, part, parts;
};

struct AttentionArgs {
  CacheView cache;
  const float* q;  // [rows, heads, d]
  float* out;      // [rows, ldo]
  uint16_t* out16;
  uint8_t* records;  // d a multiple of 32, scales per block
  ActKind kind;
  int32_t ldo, heads, window;  // window 0: none
  float scale, cap;            // scores above cap / scale bend towards it: cap tanh(scale q k / cap); 0: none
  const float* sinks;          // [heads]: a further logit of each softmax, whose value is zero; or null
  const int32_t *index, *parent;
  // Not causal: a row sees its request as far as the last token of this step.
  int32_t causal;
  const int32_t *request, *row_begin;
  const Tile* tiles;
  // For tasks in parts: per task, room for each segment's result, and how many parts have arrived (the last merges all
  // segments in order and sets it back to 0). Tasks of a tile follow one another, task_heads KV heads each.
  int32_t task_heads;
  float* partial;
  size_t segment_floats, task_floats;
  int32_t* arrived;
};

struct OpKernels {
  void (*norm)(const NormArgs&, int row_begin, int row_end);
  void (*rope_angles)(const RopeAnglesArgs&, int row_begin, int row_end);
  void (*rope)(const RopeArgs&, int row_begin, int row_end);
  void (*add)(const ElementArgs&, int row_begin, int row_end);
  void (*glu)(const ElementArgs&, int row_begin, int row_end);
  void (*act)(const ElementArgs&, int row_begin, int row_end);
  void (*scale)(const ElementArgs&, int row_begin, int row_end);     // out = a * scale
  void (*quantize)(const ElementArgs&, int row_begin, int row_end);  // out16 or records = a
  void (*pool)(const PoolArgs&, int row_begin, int row_end);
  void (*kv_write)(const KVWriteArgs&, int row_begin, int row_end);
  void (*attention)(const AttentionArgs&, Task task, Task next, uint8_t* scratch);  // next: fetched ahead
};
const OpKernels& op_kernels(Isa isa);

// Rows of a tile for this many query heads per KV head.
constexpr int tile_rows(int group) {
  const int rows = TILE_VECTORS / group;
  return rows < 1 ? 1 : rows < 4 ? rows : rows / 4 * 4;
}
size_t attention_scratch_bytes(const CacheView& cache, int group);
// Floats of one segment's result: O, maximum and sum of every vector of a tile.
constexpr size_t segment_floats(int d, int group) {
  return (static_cast<size_t>(tile_rows(group)) * group * (padded_dims(d) + 2) + 15) / 16 * 16;
}

}  // namespace octavo
