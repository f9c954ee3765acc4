// Recurrent state of a session: what stands in slots, snapshots and tails, and how a step's requests walk over it.
//
// One slot, one snapshot holds the state of every layer side by side, so that starting from a snapshot is one copy. Of
// each slot there are two tails: drafts go to the one that the same step does not replay.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "header.h"
#include "memory.h"
#include "program.h"
#include "recurrence.h"

namespace octavo {

class States {
 public:
  // Throws std::runtime_error for one name with two sizes.
  void add(const StateRecord& record);
  void open(int32_t slots, int32_t snapshots, int32_t tail);

  StateView view(const std::string& name) const;

  // Throws std::runtime_error for what the header asks and is not there.
  void check(const Header& h) const;
  // Starts slots from snapshots or from nothing, moves accepted drafts in their tails, and lines up the requests.
  void prepare(const Header& h);
  const std::vector<Sequence>& sequences() const { return sequences_; }

  float* snapshot(int32_t number) const { return floats(snapshots_) + (number - 1) * stride_; }
  size_t stride() const { return stride_; }

 private:
  struct Place {
    size_t floats, tail, at, tail_at;  // sizes, and where in a slot and in a token of a tail
  };

  static float* floats(const Mapping& m) { return reinterpret_cast<float*>(m.data()); }
  float* slot(int32_t number) const { return floats(slots_) + number * stride_; }
  float* tail(int32_t slot, int32_t side, int32_t token) const {
    return floats(tails_) + ((static_cast<size_t>(slot) * 2 + side) * tail_ + token) * tail_stride_;
  }

  std::map<std::string, Place> places_;
  size_t stride_ = 0, tail_stride_ = 0;  // floats
  int32_t num_snapshots_ = 0, tail_ = 0;
  Mapping slots_, snapshots_, tails_;
  std::vector<int32_t> side_, base_;  // per slot: the tail written last, and the index of its first token
  std::vector<Sequence> sequences_;
};

}  // namespace octavo
