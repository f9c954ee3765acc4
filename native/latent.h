// Attention over latents (src/octavo/program/latent.py): where its caches live, the arguments of its kernels, one
// function table per instruction-set class.
//
// A cache of this file holds one row a token: its dims side by side as bf16, or as int8 codes followed by one f32 scale
// for each `group` of them. A key is a row, a value its first dims.
// A row of the step sees its keys in an order: as they are stored, or for a draft of a tree along its path. A place
// counts in that order; a list of chosen places is itself such an order.
#pragma once
#include <cstddef>
#include <cstdint>

#include "cache.h"
#include "linear.h"
#include "ops.h"

namespace octavo {

constexpr int LATENT_VECTORS = 32;  // query vectors (rows times heads) of one task, at most
constexpr int INDEX_VECTORS = 256;  // heads of an index, at most

static constexpr size_t latent_entry_bytes(CacheType type, int d, int group) {
  return type == CacheType::BF16 ? static_cast<size_t>(d) * 2 : static_cast<size_t>(d) + d / group * sizeof(float);
}

struct LatentView {
  uint8_t* base;
  size_t block_bytes, offset, entry_bytes;  // bytes: of a block, to this cache in it, of a row
  CacheType type;
  int32_t d, group, block_tokens;
  const int32_t* table;  // [slots][max_blocks] of the group
  int32_t max_blocks;

  __attribute__((always_inline)) uint8_t* row(const int32_t* slot_table, int index) const {
    return base + slot_table[index / block_tokens] * block_bytes + offset + index % block_tokens * entry_bytes;
  }
};

struct LatentWriteArgs {
  LatentView cache;
  const float* parts[2];  // [rows, widths[i]], side by side in the row
  int32_t widths[2];      // of the second: 0 where there is none
  const int32_t *index, *request, *flags, *slot;
};

// Heads [head, head + heads) of one tile, or one of `parts` shares of the segments of their keys.
struct LatentTask {
  int32_t tile, head, heads, part, parts;
};

struct LatentArgs {
  LatentView cache;
  const float *first, *last;  // the query: [rows, heads, values], [rows, heads, d - values]
  float* out;                 // exactly one of out and out16: [rows, ldo]
  uint16_t* out16;
  int32_t ldo, heads, values;
  float scale;
  const int32_t* chosen;  // [rows, top_k] places, -1 behind the last; null: every place as far as the row's own
  int32_t top_k;
  const int32_t *index, *parent;
  const Tile* tiles;  // with chosen: of one row each
  // For tasks in parts: room for each segment's result, and how many parts have arrived (the last merges all segments in
  // order and sets it back to 0); `number` of a task among those of all tiles.
  float* partial;
  size_t segment_floats, task_floats;
  int32_t* arrived;
  int32_t tasks_of_tile, task_heads;
};

struct IndexArgs {
  LatentView cache;
  const float *q, *weights;  // [rows, heads, d], [rows, heads]
  int32_t* out;              // [rows, top_k]
  int32_t heads, top_k;
  float scale;
  const int32_t *index, *parent, *request, *slot;
};

struct LatentKernels {
  void (*write)(const LatentWriteArgs&, int row_begin, int row_end);
  void (*attention)(const LatentArgs&, LatentTask task, uint8_t* scratch);
  // scores[place] of one row, places [begin, end).
  void (*score)(const IndexArgs&, int row, int begin, int end, float* scores, uint8_t* scratch);
  // The chosen places of one row that sees `places`, from their scores where there are more than top_k.
  void (*choose)(const IndexArgs&, int row, int places, const float* scores);
};
const LatentKernels& latent_kernels(Isa isa);

// Rows of a tile for this many heads without chosen places, and heads of a task.
constexpr int latent_tile_rows(int heads) { return heads >= LATENT_VECTORS ? 1 : LATENT_VECTORS / heads; }
constexpr int latent_task_heads(int heads) { return heads < LATENT_VECTORS ? heads : LATENT_VECTORS; }
size_t latent_scratch_bytes(int d, int values, int vectors);
// Floats of one segment's result: O, maximum and sum of every vector.
constexpr size_t latent_segment_floats(int values) { return static_cast<size_t>(LATENT_VECTORS) * (values + 2); }

// Places that a row of the step sees.
static inline int places_of(const int32_t* index, const int32_t* parent, int row) {
  int length = 0;
  for (; parent[row] >= 0; row = parent[row]) ++length;
  return index[row] + 1 + length;
}

}  // namespace octavo
