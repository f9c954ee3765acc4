// Memory that is zero until touched and on huge pages where the system grants them.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

namespace octavo {

// One mapping. Pages are taken from the system when they are first written.
class Mapping {
 public:
  Mapping() = default;
  explicit Mapping(size_t bytes) : bytes_((bytes + HUGE - 1) / HUGE * HUGE) {
    if (bytes_ == 0) return;
    // HUGE more than asked, to start on a huge page.
    raw_ = mmap(nullptr, bytes_ + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw_ == MAP_FAILED) {
      raw_ = nullptr;
      throw std::bad_alloc();
    }
    data_ = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(raw_) + HUGE - 1) / HUGE * HUGE);
    madvise(data_, bytes_, MADV_HUGEPAGE);
  }
  Mapping(Mapping&& other) noexcept { *this = std::move(other); }
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(raw_, other.raw_), std::swap(data_, other.data_), std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping() {
    if (raw_) munmap(raw_, bytes_ + HUGE);
  }
  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  static constexpr size_t HUGE = size_t{2} << 20;
  void* raw_ = nullptr;
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

// Pieces that live as long as the whole: weights.
class Pieces {
 public:
  uint8_t* take(size_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    if (maps_.empty() || used_ + bytes > maps_.back().bytes()) {
      maps_.emplace_back(bytes > CHUNK ? bytes : CHUNK);
      used_ = 0;
    }
    uint8_t* piece = maps_.back().data() + used_;
    used_ += bytes;
    return piece;
  }

 private:
  static constexpr size_t CHUNK = size_t{16} << 20;
  std::vector<Mapping> maps_;
  size_t used_ = 0;
};

}  // namespace octavo
