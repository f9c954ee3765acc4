// Packing by all threads. See weights.h.
#include "weights.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <tuple>

#include "pool.h"

namespace octavo {
namespace {

constexpr size_t SUM_CHUNK = size_t{1} << 20;

// Runs work(thread, item) for every item, each by whichever thread is free.
template <class Work>
void share(int32_t threads, int32_t count, const Work& work) {
  struct Job {
    const Work& work;
    int32_t count;
    std::atomic<int32_t> next{0};
  } job{work, count};
  Pool::instance().run(
      std::max(1, std::min(threads, count)),
      [](void* context, int thread) {
        Job& job = *static_cast<Job*>(context);
        for (int32_t item; (item = job.next.fetch_add(1, std::memory_order_relaxed)) < job.count;) job.work(thread, item);
      },
      &job);
}

LogicalTensor logical(const BlockFormat& f, int32_t m, int32_t n, const BlockArrays& parts) {
  return {f.kind,
          m,
          n,
          f.group,
          f.offset,
          parts.data,
          parts.scale,
          parts.bias,
          reinterpret_cast<const uint16_t*>(parts.super_scale),
          reinterpret_cast<const uint16_t*>(parts.super_bias),
          f.scale,
          f.has_bias ? BiasCode::VALUE : BiasCode::NONE};
}

// Where the parts of some blocks begin within one buffer, and what they take together.
struct Places {
  size_t scale, bias, super_scale, super_bias, end;

  Places(const BlockFormat& f, size_t blocks) {
    const auto after = [blocks](size_t begin, size_t bytes) { return (begin + blocks * bytes + 63) / 64 * 64; };
    scale = after(0, f.data_bytes());
    bias = after(scale, f.scale_bytes());
    super_scale = after(bias, f.has_bias ? f.scale_bytes() : 0);
    super_bias = after(super_scale, f.super_bytes());
    end = after(super_bias, f.has_bias ? f.super_bytes() : 0);
  }

  BlockArrays in(uint8_t* buffer, const BlockFormat& f) const {
    return {buffer, f.group ? buffer + scale : nullptr, f.has_bias ? buffer + bias : nullptr,
            f.two_level() ? buffer + super_scale : nullptr, f.two_level() && f.has_bias ? buffer + super_bias : nullptr};
  }
};

// The same parts from their block `first` on.
BlockArrays advanced(const BlockArrays& a, const BlockFormat& f, size_t first) {
  const auto at = [first](uint8_t* part, size_t bytes) { return part ? part + first * bytes : nullptr; };
  return {at(a.data, f.data_bytes()), at(a.scale, f.scale_bytes()), at(a.bias, f.scale_bytes()),
          at(a.super_scale, f.super_bytes()), at(a.super_bias, f.super_bytes())};
}

}  // namespace

void WeightStore::make_room(const std::string& name, const LogicalTensor& like, int32_t count) {
  if (count < 1) throw std::invalid_argument("a stack of nothing");
  HeldWeight held;
  held.count = count;
  held.matrix.data = pieces_.take(count * packed_bytes(like));
  describe_linear(like, held.matrix);
  held_[name] = held;
}

void WeightStore::fill(const std::string& name, const LogicalTensor& rows, int32_t first) {
  const HeldWeight& held = held_.at(name);
  const PackedLinear& whole = held.matrix;
  PackedLinear part{};
  describe_linear(rows, part);
  const auto like = [](const PackedLinear& w) {
    return std::make_tuple(w.kind, w.n, w.group, w.offset, w.scale_code, w.bias_code);
  };
  if (like(part) != like(whole) || first < 0 || first + part.panels > held.count * whole.panels)
    throw std::invalid_argument("rows that do not fit the weight");
  share(threads_, part.panels, [&](int, int32_t p) {
    pack_panel(rows, p, whole.data + (size_t)(first + p) * whole.panel_bytes);
  });
}

void WeightStore::add_vector(const std::string& name, const float* data, int32_t length) {
  auto* copy = reinterpret_cast<float*>(pieces_.take(length * sizeof(float)));
  std::memcpy(copy, data, length * sizeof(float));
  borrow_vector(name, copy, length);
}

void WeightStore::reserve(const std::string& name, const StoredMatrix& s, int32_t count) {
  if (s.n % s.format->elements) throw std::invalid_argument("rows are not whole blocks");
  make_room(name, logical(*s.format, s.m, s.n, {}), count);
}

void WeightStore::pack(const std::string& name, const StoredMatrix& s, int32_t begin, int32_t end, int32_t number) {
  const BlockFormat& f = *s.format;
  const PackedLinear& whole = held_.at(name).matrix;
  uint8_t* const target = whole.data + static_cast<size_t>(number) * whole.panels * whole.panel_bytes;
  const size_t row_blocks = s.n / f.elements, row_bytes = row_blocks * f.bytes;
  const Places places(f, PANEL * row_blocks);
  for (std::vector<uint8_t>& held : scratch_) held.resize(std::max(held.size(), places.end + 64));
  share(threads_, end - begin, [&](int thread, int32_t item) {
    const int32_t row0 = (begin + item) % whole.panels * PANEL, rows = std::min(PANEL, s.m - row0);
    const uint8_t* data = s.data + (begin + item) / whole.panels * s.apart;
    const auto buffer = (reinterpret_cast<uintptr_t>(scratch_[thread].data()) + 63) / 64 * 64;
    const BlockArrays parts = places.in(reinterpret_cast<uint8_t*>(buffer), f);
    if (s.order) {
      for (int32_t r = 0; r < rows; ++r)
        f.unpack(data + s.order[row0 + r] * row_bytes, row_blocks, advanced(parts, f, r * row_blocks));
    } else {
      f.unpack(data + row0 * row_bytes, rows * row_blocks, parts);
    }
    pack_panel(logical(f, rows, s.n, parts), 0, target + (begin + item) * whole.panel_bytes);
  });
}

void WeightStore::packed() { scratch_.assign(threads_, {}); }

void WeightStore::borrow_matrix(const std::string& name, const LogicalTensor& like, uint8_t* data, size_t bytes,
                                int32_t count) {
  if (count < 1 || bytes % count || packed_bytes(like) != bytes / count) throw std::invalid_argument("has another size");
  HeldWeight held;
  held.count = count;
  held.matrix.data = data;
  describe_linear(like, held.matrix);
  held_[name] = held;
}

void WeightStore::borrow_vector(const std::string& name, const float* data, int32_t length) {
  HeldWeight held;
  held.vector = data, held.length = length;
  held_[name] = held;
}

const HeldWeight* WeightStore::find(const std::string& name) const {
  const auto at = held_.find(name);
  return at == held_.end() ? nullptr : &at->second;
}

// Every chunk for itself, in eight lanes of odd multiplications; then the chunks in order.
uint64_t checksum(const uint8_t* data, size_t bytes, int32_t threads) {
  constexpr uint64_t PRIME = 0x9E3779B185EBCA87u;
  constexpr int LANES = 8;
  std::vector<uint64_t> sums((bytes + SUM_CHUNK - 1) / SUM_CHUNK);
  share(threads, static_cast<int32_t>(sums.size()), [&](int, int32_t chunk) {
    const uint8_t* at = data + chunk * SUM_CHUNK;
    const size_t size = std::min(SUM_CHUNK, bytes - chunk * SUM_CHUNK);
    uint64_t lanes[LANES] = {1, 2, 3, 4, 5, 6, 7, 8}, words[LANES];
    for (size_t i = 0; i < size; i += sizeof words) {
      if (size - i < sizeof words) std::memset(words, 0, sizeof words);
      std::memcpy(words, at + i, std::min(sizeof words, size - i));
      for (int lane = 0; lane < LANES; ++lane) lanes[lane] = ((lanes[lane] ^ words[lane]) * PRIME) ^ (lanes[lane] >> 29);
    }
    uint64_t sum = size;
    for (const uint64_t lane : lanes) sum = (sum ^ lane ^ (lane >> 32)) * PRIME;
    sums[chunk] = sum;
  });
  uint64_t sum = bytes;
  for (const uint64_t one : sums) sum = ((sum ^ one) * PRIME) ^ (sum >> 29);
  return sum;
}

}  // namespace octavo
