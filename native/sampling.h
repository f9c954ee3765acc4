// Choosing tokens: one pure function of a row of logits, a request's parameters and counts, and the noise's key.
//
// Order: logits -> bias, repetition, presence and frequency penalties, allowed ids, bans, grammar mask ->
// temperature -> min-p -> top-k -> top-p, each on the mass that the one before leaves -> argmax of d + Gumbel noise,
// where d = (logit - max) / temperature. Ties: lower id.
#pragma once
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sampling_kernels.h"

namespace octavo {

constexpr int TOPS_WIDTH = 32;         // logits whose largest a session keeps beside them
constexpr double GREEDY_BELOW = 1e-5;  // temperatures under this take the largest logit

struct SamplingOptions {
  double temperature, top_p, min_p;
  int32_t top_k;  // <= 0: off
  float presence, frequency, repetition;
  uint64_t seed;
  std::vector<std::pair<int32_t, float>> bias;
  std::vector<int32_t> allowed;  // used when has_allowed
  bool has_allowed;
};

// Changes to a row of logits. A block of SCAN_BLOCK is copied when it is first read, or written through operator[]: of
// the blocks that penalties change, hardly any are read.
class Edits {
 public:
  void begin(const LogitRow& row);
  int32_t count() const { return row_.n; }
  // The logit as it stands; not of an id that was `set`.
  float at(int32_t id) const { return row_.place(id / SCAN_BLOCK)[id]; }
  void fetch(int32_t id) const { __builtin_prefetch(row_.x + id); }  // ahead of `at`
  void set(int32_t id, float value);                                 // once an id
  float& operator[](int32_t id);
  void fill(float value);  // all of them
  // The row as changed, with the largest logits of its blocks; valid until the next begin.
  LogitRow end(const SamplingKernels& kernels);

 private:
  struct Change {
    int32_t id;
    float value;
    int32_t next;  // change of the same block, or -1
  };
  const float* copy(int block);
  LogitRow row_;
  std::vector<float> copies_, block_max_;
  std::vector<uint8_t> states_;
  std::vector<int32_t> last_;  // by block: its last change
  std::vector<Change> changes_;
};

// What one request carries from step to step: its options, and how often each token occurred.
class SamplingState {
 public:
  SamplingState(SamplingOptions options, const std::vector<int32_t>& prompt);

  const SamplingOptions options;
  bool counts() const { return options.repetition != 1.0f || options.presence != 0.0f || options.frequency != 0.0f; }
  size_t num_output() const { return output_.size(); }
  int32_t last_output() const { return output_.empty() ? -1 : output_.back(); }
  void append(int32_t token);   // one more output token
  void truncate(size_t length); // output tokens from `length` on are taken back

  // logits[id] for every id that occurred; `extra` are output tokens beyond those appended.
  void penalize(Edits& logits, const std::vector<int32_t>& extra) const;

 private:
  struct Seen {
    int32_t id, prompt, output;
  };
  Seen& seen(int32_t id);
  float penalized(float logit, int32_t output) const;
  std::vector<Seen> seen_;
  std::unordered_map<int32_t, int32_t> place_;  // id -> index in seen_
  std::vector<int32_t> output_;
};

struct RowRequest {
  const SamplingState* state;
  const float* logits;
  uint32_t index;               // absolute index of the sampled token
  const float* tops = nullptr;  // the largest of each TOPS_WIDTH logits (SamplingKernels::tops), or null
  std::vector<int32_t> extra;   // draft tokens before this row
  std::vector<int32_t> banned;
  const uint32_t* mask = nullptr;  // bit id & 31 of word id / 32 set: allowed; may be null
  int32_t top = -1;             // log-probabilities of the chosen token and the `top` largest; -1: none
  bool processed = false;       // of the distribution that is sampled, instead of the raw logits
};

struct LogprobEntry {
  int32_t id;
  float logprob;
  int32_t rank;  // from 1, in the order logit descending, id ascending
};

struct RowChoice {
  int32_t id = -1;
  bool finite = false;  // false: NaN or +inf among the logits, or no token that could be chosen
  std::vector<LogprobEntry> logprobs;
};

// isa as sampling_kernels. `vocab` at most MAX_VOCABULARY.
RowChoice choose(const RowRequest& row, int vocab, int isa);

// Calls row(context, i) for i in [0, count), on as many threads of the pool as the work is worth. Nothing may throw.
void each_row(size_t count, int vocab, int threads, void (*row)(void* context, size_t at), void* context);

// `target` first, then the `top` largest; empty when the row is not finite.
std::vector<LogprobEntry> raw_logprobs(const float* logits, const float* tops, int vocab, int32_t target, int top,
                                       int isa);

}  // namespace octavo
