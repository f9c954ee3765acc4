// A session: programs over one set of weights, caches and block tables; one call runs one step of one program.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "header.h"
#include "latent.h"
#include "linear.h"
#include "memory.h"
#include "ops.h"
#include "program.h"
#include "states.h"
#include "weights.h"

namespace octavo {

// Fewer attention tasks than this per thread are cut into parts.
constexpr int32_t FEW_TASKS = 2;

struct SessionLimits {
  int32_t max_tokens, max_rows, max_seqs, max_blocks, num_blocks, block_tokens, threads, num_snapshots;
};

// One operator, ready to run: the pointers of its weights are fixed at open, those of its buffers before each step.
struct BoundOp {
  const OpRecord* record;
  LinearArgs linears[3];
  int32_t linear_count = 0;
  int32_t panels = 0;  // of all its linears; of one expert
  int32_t experts = 0;
  int32_t claims = 0;  // which set of counters hands out its panels or tasks
  const BoundOp* eats = nullptr;   // linear: the norm or quantize before it that it alone reads; see Step::apart
  const BoundOp* feeds = nullptr;  // that linear
  CacheView cache{};
  LatentView latent{};
  const float* vector = nullptr;        // norm: its weight; embed: what is added to every row; plain matrix; sinks
  const float* bias = nullptr;          // norm, route, plain matrix
  const PackedLinear* table = nullptr;  // embed
  StateView state{};
  std::vector<float> turned;  // conv_state: its weight [taps, channels]
  int32_t feed = 0;           // which of its program's feeds
  float* tops = nullptr;                // linear: where the largest of each of its panels goes, row by row
};

// Hands out `count` items to threads: each takes its own contiguous share in ascending order, piece by piece, and then
// helps the others. One counter per thread: how much of its share is taken.
struct alignas(128) Counter {
  std::atomic<int32_t> taken{0};
};

struct LoadedProgram;

// Rows of exports, one export under another, that a program reads by source_row.
struct Feed {
  struct Source {
    const LoadedProgram* program;
    const BufferRecord* buffer;
  };
  std::vector<Source> sources;
  std::vector<const uint8_t*> rows;  // of this step: where each token's stands
  std::vector<uint8_t> held;         // those of the program itself, which the step writes anew
};

// Ops between two barriers use different sets of counters; a set is used again after so many stretches between barriers.
constexpr int32_t CLAIM_EPOCHS = 4;

// Rows for which every thread computes a norm for itself, before the linear that alone reads it: a barrier less, and
// nothing to fetch from another core.
constexpr int32_t APART_ROWS = 2;

struct LoadedProgram {
  ProgramRecord record;
  std::vector<BoundOp> ops;
  std::vector<Feed> feeds;
  Mapping arena;
  std::vector<size_t> region_at;
  int32_t T = 0, R = 0, N = 0;     // of the last run
  std::vector<int32_t> groups;     // program group -> session group
  std::unique_ptr<Counter[]> counters;  // sets of one per thread
  int32_t sets = 1;  // between two barriers
  std::vector<uint64_t> nanoseconds;  // per op, while profiling
};

class Session {
 public:
  Session(Isa isa, const SessionLimits& limits);

  // Opening, in this order: every weight, every program, then finish.
  WeightStore& weights() { return weights_; }
  void add_program(const int32_t* words, size_t count);
  void finish();

  // Throws std::runtime_error for a header that the limits or the tables contradict; nothing has run then.
  void run(int32_t program, const int32_t* words, size_t count);

  // tops: the largest of each panel's results, row by row; null where a value is not a linear's.
  struct View {
    const float* data;
    int32_t rows, width;
    const float* tops;
    int32_t tops_width;
  };
  // A value that outlives its step. Its place is that of the last run of its program.
  struct Export {
    const LoadedProgram* program;
    const BufferRecord* buffer;
    std::vector<float> tops;
    View view() const;
  };
  const Export& exported(const std::string& name) const;

  uint8_t* cache_data() const { return cache_.data(); }
  size_t block_bytes() const { return block_bytes_; }
  const SessionLimits& limits() const { return limits_; }
  void set_profiling(bool on) { profiling_ = on; }
  std::vector<std::pair<std::string, double>> profile(int32_t program) const;
  // Bytes that each weight is streamed as, padding included.
  std::vector<std::pair<std::string, size_t>> weight_bytes() const;
  uint64_t steps() const { return steps_; }
  uint64_t barriers() const { return barriers_; }

 private:
  struct Tensor {
    int32_t group, kv_heads, d;
    CacheLayout layout;
    CacheType type;
    size_t offset, stride;  // bytes to its first page in a block, from page to page; 0: no place yet
  };

  const HeldWeight& weight(const ProgramRecord& program, int32_t id) const;
  void bind_ops(LoadedProgram& program);
  void bind_table(const ProgramRecord& program, BoundOp& op);
  void bind_tops(const LoadedProgram& program, BoundOp& op);
  void bind_claims(LoadedProgram& program) const;
  size_t bind_apart(LoadedProgram& program) const;
  void bind_linears(const ProgramRecord& program, BoundOp& op);
  void bind_experts(const ProgramRecord& program, BoundOp& op);
  void bind_plain(const ProgramRecord& program, BoundOp& op);
  void bind_recurrence(const ProgramRecord& program, BoundOp& op);
  void place_caches(const ProgramRecord& program);
  void bind_cache(const ProgramRecord& program, BoundOp& op);
  // session_feeds.cpp
  Feed::Source find_export(const BufferRecord& wanted) const;
  void bind_feed(LoadedProgram& program, BoundOp& op);
  static void find_rows(LoadedProgram& program, const Header& h);
  // session_latent.cpp
  void place_rows(const ProgramRecord& program);
  void bind_latent(const ProgramRecord& program, BoundOp& op);
  void bind_heads(const ProgramRecord& program, BoundOp& op);
  size_t latent_needs(const ProgramRecord& program, const BoundOp& op, size_t* segment);
  void copy_rows(const Header& h, const Tensor& t);
  void place(LoadedProgram& program, int32_t T, int32_t R, int32_t N);
  void check_header(const LoadedProgram& program, const Header& h) const;
  void check_tables(const Header& h) const;
  void apply_tables(const Header& h);
  void apply_copies(const Header& h);
  void make_tiles(const Header& h);
  static void cut_tiles(const Header& h, int32_t most, std::vector<Tile>& tiles);

  Isa isa_;
  SessionLimits limits_;
  WeightStore weights_;
  std::vector<std::unique_ptr<LoadedProgram>> programs_;
  std::vector<std::string> groups_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, Export> exports_;
  std::vector<std::vector<int32_t>> tables_;  // per group [max_seqs][max_blocks]
  size_t block_bytes_ = 0;
  States states_;
  Mapping cache_;
  Mapping scratch_;
  size_t scratch_bytes_ = 0, linear_scratch_ = 0, expert_scratch_ = 0, delta_scratch_ = 0;
  std::map<int32_t, std::vector<Tile>> tiles_;         // by query heads per KV head
  std::map<int32_t, std::vector<Tile>> latent_tiles_;  // by rows of a tile, at most
  Mapping scores_;                                     // of an index: one row for each thread, one for each task in parts
  Mapping partial_;  // results of segments of attention tasks in parts
  std::vector<int32_t> arrived_;
  int32_t segments_ = 1, max_segments_ = 1;
  bool profiling_ = false;
  uint64_t steps_ = 0, barriers_ = 0;
};

}  // namespace octavo
