// How fast memory reads here, for benchmarks that compare kernels with it.
#include <nanobind/nanobind.h>

#include <chrono>
#include <cstring>

#include "pool.h"

namespace nb = nanobind;

namespace octavo {
namespace {

struct Reading {
  const uint8_t* base;
  const int64_t* offsets;
  int64_t count, bytes;
  int threads;
  int64_t ahead;             // the piece so many further on is fetched while one is read; 0: none
  uint64_t sums[1024];       // so that no read is idle
};

typedef uint64_t words __attribute__((vector_size(16), may_alias));

void read_pieces(void* context, int thread) {
  auto& r = *static_cast<Reading*>(context);
  words sum[4] = {};
  const int64_t begin = r.count * thread / r.threads, end = r.count * (thread + 1) / r.threads;
  for (int64_t i = begin; i < end; ++i) {
    const uint8_t *at = r.base + r.offsets[i], *next = r.ahead > 0 && i + r.ahead < end ? r.base + r.offsets[i + r.ahead] : nullptr;
    for (int64_t byte = 0; byte < r.bytes; byte += 64) {
      if (next) __builtin_prefetch(next + byte, 0, 2);
      const auto* line = reinterpret_cast<const words*>(at + byte);
      sum[0] ^= line[0], sum[1] ^= line[1], sum[2] ^= line[2], sum[3] ^= line[3];
    }
  }
  const words all = sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
  r.sums[thread] = all[0] ^ all[1];
}

// Seconds that `threads` take to read `count` pieces of `bytes` (whole cache lines), at base + offsets[i].
double read_seconds(uintptr_t base, uintptr_t offsets, int64_t count, int64_t bytes, int threads, int64_t ahead) {
  nb::gil_scoped_release release;
  Reading r{};
  r.base = reinterpret_cast<const uint8_t*>(base), r.offsets = reinterpret_cast<const int64_t*>(offsets);
  r.count = count, r.bytes = bytes, r.threads = threads, r.ahead = ahead;
  const auto begin = std::chrono::steady_clock::now();
  Pool::instance().run(threads, read_pieces, &r);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

void bind_memory(nb::module_& m) {
  m.def("read_seconds", &read_seconds, nb::arg("base"), nb::arg("offsets"), nb::arg("count"), nb::arg("bytes"),
        nb::arg("threads"), nb::arg("ahead"));
}

}  // namespace octavo
