// See states.h.
#include "states.h"

#include <cstring>
#include <stdexcept>

namespace octavo {
namespace {

[[noreturn]] void fail(const std::string& message) { throw std::runtime_error(message); }

size_t whole_lines(size_t floats) { return (floats + 15) / 16 * 16; }

}  // namespace

void States::add(const StateRecord& record) {
  const auto floats = static_cast<size_t>(record.floats), tail = static_cast<size_t>(record.tail);
  const auto [at, fresh] = places_.try_emplace(record.name, Place{floats, tail, stride_, tail_stride_});
  if (!fresh) {
    if (at->second.floats != floats || at->second.tail != tail) fail("state " + record.name + " has two sizes");
    return;
  }
  stride_ += whole_lines(floats), tail_stride_ += whole_lines(tail);
}

void States::open(int32_t slots, int32_t snapshots, int32_t tail) {
  num_snapshots_ = snapshots, tail_ = tail;
  slots_ = Mapping(slots * stride_ * sizeof(float));
  snapshots_ = Mapping(snapshots * stride_ * sizeof(float));
  tails_ = Mapping(static_cast<size_t>(slots) * 2 * tail * tail_stride_ * sizeof(float));
  side_.assign(slots, 0), base_.assign(slots, 0);
}

StateView States::view(const std::string& name) const {
  const Place& place = places_.at(name);
  StateView v{};
  v.slots = floats(slots_) + place.at, v.snapshots = floats(snapshots_) + place.at, v.tails = floats(tails_) + place.tail_at;
  v.stride = stride_, v.tail_token = tail_stride_, v.tail_side = tail_ * tail_stride_, v.tail_slot = 2 * v.tail_side;
  return v;
}

void States::check(const Header& h) const {
  std::vector<bool> read(num_snapshots_ + 1), written(num_snapshots_ + 1);
  for (int32_t n = 0; n < h.N; ++n) {
    const int32_t rows = h.row_begin[n + 1] - h.row_begin[n];
    if (h.firm[n] < 0 || h.firm[n] > rows || rows - h.firm[n] > tail_) fail("header: more drafts than a slot's tail holds");
    if (h.replay[n] < 0 || h.replay[n] > tail_ || h.replay[n] > h.context[n]) fail("header: replay out of range");
    if (h.restore[n] < 0 || h.restore[n] > num_snapshots_) fail("header: restore names no snapshot");
    if (h.replay[n] && (h.restore[n] || base_[h.slot[n]] != h.context[n] - h.replay[n])) fail("header: the tail is another's");
    read[h.restore[n]] = true;
  }
  for (int32_t i = 0; i < h.S; ++i) {
    const int32_t *now = h.snapshots + 3 * i, *before = now - 3;
    if (now[0] < 0 || now[0] >= h.N || now[1] < 1 || now[1] > h.replay[now[0]] + h.firm[now[0]]) fail("header: snapshot out of range");
    if (i && (before[0] > now[0] || (before[0] == now[0] && before[1] >= now[1]))) fail("header: snapshots out of order");
    if (now[2] < 1 || now[2] > num_snapshots_ || read[now[2]] || written[now[2]]) fail("header: a snapshot that is in use");
    written[now[2]] = true;
  }
  for (int32_t c = 0; c < h.C; ++c) {
    const int32_t* copy = h.copies + 3 * c;
    for (const int32_t index : {copy[1] - base_[copy[0]], copy[2] - base_[copy[0]]}) {
      if (index < 0 || index >= tail_) fail("header: a copy outside of the tail");
    }
  }
}

void States::prepare(const Header& h) {
  for (int32_t c = 0; c < h.C; ++c) {  // targets rise and lie before their sources
    const int32_t *copy = h.copies + 3 * c, slot = copy[0], base = base_[slot];
    std::memcpy(tail(slot, side_[slot], copy[2] - base), tail(slot, side_[slot], copy[1] - base), tail_stride_ * sizeof(float));
  }
  sequences_.resize(h.N);
  for (int32_t n = 0, taken = 0; n < h.N; ++n) {
    const int32_t number = h.slot[n], row = h.row_begin[n], rows = h.row_begin[n + 1] - row, first = taken;
    if (h.restore[n]) std::memcpy(slot(number), snapshot(h.restore[n]), stride_ * sizeof(float));
    else if (h.context[n] == 0) std::memset(slot(number), 0, stride_ * sizeof(float));
    while (taken < h.S && h.snapshots[3 * taken] == n) ++taken;
    sequences_[n] = {number, row, h.firm[n], rows - h.firm[n], h.replay[n], side_[number], h.snapshots + 3 * first, taken - first};
    side_[number] = 1 - side_[number];
    base_[number] = h.context[n] + h.firm[n];
  }
}

}  // namespace octavo
