// One step as its threads see it. Each file of operators defines some of its methods.
#pragma once
#include "sampling_kernels.h"
#include "session.h"

namespace octavo {

struct Range {
  int32_t begin, end;
};

// A thread takes its panels in so many pieces, of at most so many: long runs stream best when rows are few, short ones
// leave nobody waiting when a panel is much work.
constexpr int32_t PIECES_FEW_ROWS = 4, PIECES_SOME_ROWS = 16, PIECES_MANY_ROWS = 32, MOST_PANELS = 32;
constexpr int32_t SOME_ROWS = 3, MANY_ROWS = 16;
constexpr int pieces_for(int32_t rows) {
  return rows < SOME_ROWS ? PIECES_FEW_ROWS : rows < MANY_ROWS ? PIECES_SOME_ROWS : PIECES_MANY_ROWS;
}

// A step as its threads see it. Buffers' addresses and row counts are fixed before the threads start.
struct Step {
  Isa isa;
  LoadedProgram& program;
  const Header& header;
  const std::map<int32_t, std::vector<Tile>>& tiles;
  const std::map<int32_t, std::vector<Tile>>& latent_tiles;
  int threads;
  uint8_t* scratch;
  size_t scratch_bytes, linear_scratch;
  float* partial;
  float* scores;
  int32_t longest;  // places that a row of any step may see
  int32_t* arrived;
  const std::vector<Sequence>& sequences;  // of recurrent state
  int32_t segments, max_segments;  // of attention: the most that a tile of this step sees, that any could
  bool profiling;
  const OpKernels& kernels;
  const LinearKernels& linear;
  const SamplingKernels& sampling;

  const BufferRecord& buffer(int32_t id) const { return program.record.buffers[id]; }

  int32_t rows(int32_t id) const { return buffer(id).rows(header.T, header.R, header.N); }

  template <class T>
  T* data(int32_t id) const {
    return reinterpret_cast<T*>(program.arena.data() + program.region_at[buffer(id).region]);
  }
  const int32_t* field(int32_t id) const { return header.field(buffer(id).field); }

  // An operator writes value `id` to `place`, in the form that its type asks for.
  template <class Args>
  void aim(Args& a, int32_t id, uint8_t* place) const {
    const DType type = buffer(id).dtype;
    if (!is_quantized(type)) a.out = reinterpret_cast<float*>(place);
    else if (type == DType::BF16) a.out16 = reinterpret_cast<uint16_t*>(place);
    else a.records = place, a.kind = act_kind(type);
  }

  // This thread's share of the rows of a value: the same rows of every value with as many.
  Range share(int32_t id, int thread) const {
    const int64_t count = rows(id);
    return {static_cast<int32_t>(count * thread / threads), static_cast<int32_t>(count * (thread + 1) / threads)};
  }

  void walk(int thread) const;
  void run(const BoundOp& op, int thread, uint8_t* own) const;
  bool apart(const BoundOp& norm) const { return threads > 1 && rows(norm.record->outs[0]) <= APART_ROWS; }
  void fetch_share(const BoundOp& op, int thread) const;
  void embed(const BoundOp& op, Range r) const;
  void feed(const BoundOp& op, Range r) const;
  void take(const BoundOp& op, Range r) const;
  void concat(const BoundOp& op, Range r) const;
  void norm(const BoundOp& op, int thread, uint8_t* own) const;
  void pool(const BoundOp& op, Range r) const;
  void element(const BoundOp& op, int thread, uint8_t* own) const;
  void rope(const BoundOp& op, Range r) const;
  void kv_write(const BoundOp& op, Range r) const;
  void keep_tops(const LinearArgs& a, int32_t begin, int32_t end, float* tops) const;
  void linears(const BoundOp& op, int thread, uint8_t* own) const;
  void attention(const BoundOp& op, uint8_t* own) const;
  // step_experts.cpp
  void route(const BoundOp& op, Range r) const;
  void dispatch(const BoundOp& op, int thread) const;
  void combine(const BoundOp& op, Range r) const;
  void dot(const BoundOp& op, int thread) const;
  void gate(const BoundOp& op, Range r) const;
  void expert_linears(const BoundOp& op, int thread, uint8_t* own) const;
  // step_latent.cpp
  void head_linear(const BoundOp& op, int thread, uint8_t* own) const;
  void latent_write(const BoundOp& op, Range r) const;
  void latent_attention(const BoundOp& op, uint8_t* own) const;
  void index_topk(const BoundOp& op, int thread, uint8_t* own) const;
  // step_recurrence.cpp
  void conv_state(const BoundOp& op, int thread) const;
  void delta_gates(const BoundOp& op, Range r) const;
  void delta_rule(const BoundOp& op, uint8_t* own) const;
  Counter* counters(const BoundOp& op) const { return program.counters.get() + op.claims; }
  bool claim(const BoundOp& op, int64_t panels, int pieces, int thread, int* victim, Range* out) const;
  void renew_claims(int epoch) const;
};

}  // namespace octavo
