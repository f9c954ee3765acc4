// Recurrent state: arguments of the kernels that carry it from row to row, one function table per instruction-set class.
//
// A request's tokens are walked one after the other, so that state and answers are the same wherever a step cuts them:
//
//     state of the slot | replayed: accepted drafts of the step before, from the tail | firm rows | drafts
//                       '-- enter the state ----------------------------------------------'  '- leave it as it is
//
// Drafts run on a copy and leave in the tail what they would add. Of a tree each draft walks its own path.
#pragma once
#include <cstddef>
#include <cstdint>

#include "linear.h"

namespace octavo {

constexpr int STATE_COLUMNS = 16;  // of a tile of delta-rule state: key_dim rows of so many values, side by side

// One request of the step.
struct Sequence {
  int32_t slot, row, firm, drafts, replay;
  int32_t side;              // of the tail that is replayed; drafts go to the other one
  const int32_t* snapshots;  // [taken][3]: request, tokens, snapshot; tokens ascending
  int32_t taken;
};

// Where one operator's state stands. All strides in floats.
struct StateView {
  float *slots, *snapshots, *tails;
  size_t stride;                    // from slot to slot, from snapshot to snapshot
  size_t tail_slot, tail_side, tail_token;

  float* slot(int32_t n) const { return slots + n * stride; }
  float* snapshot(int32_t n) const { return snapshots + (n - 1) * stride; }  // numbered from 1
  float* tail(const Sequence& s, bool read, int32_t token) const {
    return tails + s.slot * tail_slot + (read ? s.side : 1 - s.side) * tail_side + token * tail_token;
  }
};

// Depthwise causal convolution, then SiLU. State: the last taps - 1 inputs, oldest first.
struct ConvArgs {
  StateView state;
  const Sequence* sequences;
  const int32_t* parent;  // [rows]: step row of a tree draft's parent; -1: the row before
  const float* x;         // [rows, channels]
  const float* weight;    // [taps, channels]
  float* out;             // [rows, channels]
  int32_t count, channels, taps;
};

struct DeltaGatesArgs {
  const float* x;  // [rows, 2 heads]: b, then a
  const float *a_log, *dt_bias;  // [heads]
  float *decay, *beta;           // [rows, heads]: exp(-exp(a_log) softplus(a + dt_bias)), sigmoid(b)
  int32_t heads;
};

// Per value head, with S [key_dim, value_dim] and unit q and k: S = decay S; S += k (beta (v - S^T k))^T;
// out = S^T q / sqrt(key_dim). State: of each head its tiles. Tail: k of all key heads, v of all heads, decay, beta.
struct DeltaArgs {
  StateView state;
  const int32_t* parent;
  const float* x;  // [rows, channels]: q and k of the key heads, v of the heads
  const float *decay, *beta;  // [rows, heads]
  float* out;                 // [rows, heads, value_dim]
  int32_t channels, key_heads, key_dim, heads, value_dim;

  int32_t tiles() const { return (value_dim + STATE_COLUMNS - 1) / STATE_COLUMNS; }
  size_t tile_floats() const { return static_cast<size_t>(key_dim) * STATE_COLUMNS; }
};

// The tiles [begin, end) of one head of one request.
struct DeltaTask {
  const Sequence* sequence;
  int32_t head, begin, end;
};

struct RecurrenceKernels {
  void (*conv)(const ConvArgs&, int channel_begin, int channel_end);
  void (*delta_gates)(const DeltaGatesArgs&, int row_begin, int row_end);
  void (*delta_rule)(const DeltaArgs&, const DeltaTask&, float* scratch);
};
const RecurrenceKernels& recurrence_kernels(Isa isa);

constexpr int DELTA_TOKENS = 16;  // whose keys and queries are made unit at a time
constexpr size_t delta_scratch_floats(int key_dim, int tiles) {
  const size_t padded = (key_dim + 15) / 16 * 16;
  return DELTA_TOKENS * 2 * padded + static_cast<size_t>(tiles) * key_dim * STATE_COLUMNS + 64;
}

}  // namespace octavo
