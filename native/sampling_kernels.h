// The scans of sampling over one whole row of logits, compiled per instruction-set class. All classes give equal bits.
#pragma once
#include <cstdint>

#include "sampling_math.h"

namespace octavo {

using sampling_math::NoiseKey;

constexpr int SCAN_BLOCK = sampling_math::NOISE_GROUP;  // logits per entry of block_max
constexpr int MASS_BUCKETS = 2048;     // of the histogram over d, 1/64 nat each

// A row of logits, block by block. Blocks of which some logits are changed are read from a copy, at the same offset; it is
// made when a block is first asked for.
enum BlockState : uint8_t { PLAIN, CHANGED, COPIED };
struct LogitRow {
  const float* x;
  int n;
  const float* block_max;           // largest of each block
  const uint8_t* states = nullptr;  // BlockState of each; null: all are plain
  const float* copies = nullptr;    // [n], or null without `states`
  const float* (*copy)(void* edits, int block) = nullptr;  // makes a changed block a copied one; returns `copies`
  void* edits = nullptr;

  __attribute__((always_inline)) int blocks() const { return (n + SCAN_BLOCK - 1) / SCAN_BLOCK; }
  // Where the block lies now, whatever it lacks.
  __attribute__((always_inline)) const float* place(int block) const {
    return states && states[block] == COPIED ? copies : x;
  }
  __attribute__((always_inline)) const float* source(int block) const {
    return states && states[block] == CHANGED ? copy(edits, block) : place(block);
  }
  __attribute__((always_inline)) float at(int id) const { return source(id / SCAN_BLOCK)[id]; }
};

// Tokens that truncation leaves: d >= d_min, and (logit, id) not after (logit, id) of the last kept, where d =
// (logit - max) / temperature in f32 and the order is logit descending, then id ascending.
struct Survivors {
  float max, inv_temperature, d_min;
  float last_logit;
  int32_t last_id;

  __attribute__((always_inline)) float d(float logit) const { return (logit - max) * inv_temperature; }
  __attribute__((always_inline)) bool keeps(float logit, int32_t id) const {
    return d(logit) >= d_min && (logit > last_logit || (logit == last_logit && id <= last_id));
  }
};

struct Winner {
  double score;  // d + noise
  int32_t id;
};

// Weights e^d of the tokens that Survivors keeps, and of the others with d >= d_min: sums of numbers that are each at
// most WEIGHT_EXCESS times too large and never too small, but for WEIGHT_ERROR of float's own.
struct Weights {
  float kept, dropped;
};
constexpr double WEIGHT_EXCESS = 1.0615, WEIGHT_ERROR = 1e-3;

struct SamplingKernels {
  // out[i]: largest of x[width i, width i + width), NaN where one of them is. width: a multiple of 16.
  void (*tops)(const float* x, int n, int width, float* out);
  // out[i]: the larger of tops[2 i] and tops[2 i + 1], any number where one of them is NaN.
  void (*pair_tops)(const float* tops, int count, float* out);
  int (*count_from)(const float* x, int n, float least);  // how many reach it
  // Exact sum of the mass (sampling_math.h) of all survivors.
  uint64_t (*mass)(const LogitRow& row, const Survivors& s);
  // Of the blocks whose largest lies in [least, below).
  Weights (*weigh)(const LogitRow& row, const Survivors& s, float least, float below);
  // Adds the mass of every token with d >= d_min to bucket floor(-64 d); last_logit and last_id are not looked at.
  void (*histogram)(const LogitRow& row, const Survivors& s, uint64_t* buckets);
  // Ids, ascending, of the tokens that histogram added to bucket `bucket`; returns how many.
  int (*gather)(const LogitRow& row, const Survivors& s, int bucket, int32_t* ids);
  // Improves `best` over all survivors. A block is skipped only when its largest possible score is below the best.
  void (*draw)(const LogitRow& row, const Survivors& s, const NoiseKey& key, Winner& best);
};

// isa: a class (linear.h, Isa) up to AMX; -1, or one that this processor lacks: the best that it has.
const SamplingKernels& sampling_kernels(int isa);

}  // namespace octavo
