// The scans of sampling over one whole row of logits, compiled per instruction-set class. All classes give equal bits.
#pragma once
#include <cstdint>

#include "sampling_math.h"

namespace octavo {

using sampling_math::NoiseKey;

constexpr int SCAN_BLOCK = sampling_math::NOISE_GROUP;  // logits per entry of block_max
constexpr int MASS_BUCKETS = 2048;     // of the histogram over d, 1/64 nat each

struct LogitScan {
  float max;    // meaningful when finite
  bool finite;  // no NaN, no +inf, not all -inf
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

struct SamplingKernels {
  // block_max[i]: largest of x[64 i, 64 i + 64).
  LogitScan (*scan)(const float* x, int n, float* block_max);
  // Exact sum of the mass (sampling_math.h) of all survivors.
  uint64_t (*mass)(const float* x, int n, const float* block_max, const Survivors& s);
  // Adds the mass of every token with d >= d_min to bucket floor(-64 d); last_logit and last_id are not looked at.
  void (*histogram)(const float* x, int n, const float* block_max, const Survivors& s, uint64_t* buckets);
  // Ids, ascending, of the tokens that histogram added to bucket `bucket`; returns how many.
  int (*gather)(const float* x, int n, const float* block_max, const Survivors& s, int bucket, int32_t* ids);
  // Improves `best` over all survivors. A block is skipped only when its largest possible score is below the best.
  void (*draw)(const float* x, int n, const float* block_max, const Survivors& s, const NoiseKey& key, Winner& best);
};

// isa: a class (linear.h, Isa) up to AMX; -1, or one that this processor lacks: the best that it has.
const SamplingKernels& sampling_kernels(int isa);

}  // namespace octavo
