// Mixtures of experts: arguments of the kernels, one function table per instruction-set class.
//
// A position is one (row, choice) pair; positions are sorted by expert and, within one, by row: expert e owns the
// positions [begin[e], begin[e + 1]). Every row is computed for itself in one constant order.
#pragma once
#include <cstdint>

#include "linear.h"

namespace octavo {

constexpr int MAX_EXPERTS = 1024;
constexpr int EXPERT_ROWS = 64;  // of one expert that are gathered and multiplied at a time

// The k experts of each row in ascending order of their ids, with their shares. Equal scores: the lower id, or group.
struct RouteArgs {
  const float* logits;  // [rows, experts]
  const float* bias;    // [experts] or null; for the choice alone
  int32_t* ids;         // [rows, k]
  float* shares;        // [rows, k]
  int32_t experts, k;
  int32_t sigmoid;             // else softmax over all experts
  int32_t normalize;           // shares of a row sum to 1, before `scale`
  int32_t groups, top_groups;  // only the best `top_groups` of equal groups are eligible, where they are fewer
  int32_t group_pairs;         // a group's score: the sum of its two best, else its best
  float scale;
};

struct CombineArgs {
  const float* y;        // [positions, width]
  const float* shares;   // [rows, k]
  const int32_t* place;  // [rows, k]: the position of each choice
  float* out;            // [rows, width]
  int32_t k, width;
};

// out[r, o] = x[r] . w[o] (+ bias[o]), all of it in float32.
struct DotArgs {
  const float* x;  // [rows, n]
  const float* w;  // [m, n]
  const float* bias;
  float* out;  // [rows, m]
  int32_t n, m;
};

struct GateArgs {
  const float* x;     // [rows, width]
  const float* gate;  // [rows, gates]: gates is width, or 1 for one gate a row
  float* out;         // x * sigmoid(gate)
  int32_t width, gates;
};

struct ExpertKernels {
  void (*route)(const RouteArgs&, int row_begin, int row_end);
  void (*combine)(const CombineArgs&, int row_begin, int row_end);
  void (*dot)(const DotArgs&, int row_begin, int row_end, int begin, int end);  // outputs [begin, end)
  void (*gate)(const GateArgs&, int row_begin, int row_end);
};
const ExpertKernels& expert_kernels(Isa isa);

}  // namespace octavo
