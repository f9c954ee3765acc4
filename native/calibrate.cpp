// Measures what this machine allows, on the pool that runs steps: reading by footprint, products, barriers.
//
// A sample is one job of all threads, timed by thread 0 from a barrier to a barrier and long enough for the clock. What
// to make of the samples is src/octavo/runner/calibration.py's to say.
#include "calibrate.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "linear.h"
#include "memory.h"
#include "pool.h"

namespace nb = nanobind;

namespace octavo {

namespace portable {
extern const CalibrationKernels calibration_table;
}
#if defined(__x86_64__)
namespace avx2 {
extern const CalibrationKernels calibration_table;
}
namespace avx512 {
extern const CalibrationKernels calibration_table;
}
namespace amx {
extern const CalibrationKernels calibration_table;
}
#endif

namespace {

constexpr double SHORTEST = 300e-6;  // seconds of one sample
constexpr size_t MOST_SAMPLES = 64;
constexpr size_t PAGE = 4096;

const CalibrationKernels& kernels(Isa isa) {
  if (!isa_supported(isa)) throw std::invalid_argument("calibration: this processor lacks the class");
#if defined(__x86_64__)
  if (isa == Isa::AVX2) return avx2::calibration_table;
  if (isa == Isa::AVX512 || isa == Isa::AMX_MODEL) return avx512::calibration_table;
  if (isa == Isa::AMX) return amx::calibration_table;
#endif
  return portable::calibration_table;
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Runs work(thread) `times` times on every thread at once; seconds from the first's start to the last's end.
template <class Work>
double timed(int threads, int64_t times, const Work& work) {
  struct Job {
    const Work* work;
    int64_t times;
    double seconds;
  } job = {&work, times, 0.0};
  Pool::instance().run(
      threads,
      [](void* context, int thread) {
        Job& j = *static_cast<Job*>(context);
        Pool::instance().wait();
        const double begin = now();
        for (int64_t i = 0; i < j.times; ++i) (*j.work)(thread);
        Pool::instance().wait();
        if (thread == 0) j.seconds = now() - begin;
      },
      &job);
  return job.seconds;
}

// Seconds of one work(thread) on all threads, sampled for about `seconds`. Two jobs warm up and size the rest.
template <class Work>
std::vector<double> sample(int threads, double seconds, const Work& work) {
  std::vector<double> out;
  const double end = now() + seconds;
  const double first = timed(threads, 1, work), once = std::min(first, timed(threads, 1, work));
  const int64_t times = std::clamp<int64_t>(static_cast<int64_t>(SHORTEST / std::max(once, 1e-9)) + 1, 1, 1 << 20);
  do out.push_back(timed(threads, times, work) / static_cast<double>(times));
  while (now() < end && out.size() < MOST_SAMPLES);
  return out;
}

class Calibrator {
 public:
  // bytes: of the largest footprint. The threads that will read a share of it are the first to write it.
  Calibrator(int isa, int threads, size_t bytes)
      : kernels_(kernels(static_cast<Isa>(isa))), bytes_((bytes + PAGE - 1) / PAGE * PAGE), memory_(bytes_) {
    if (threads < 1 || bytes_ < PAGE * STREAMS * static_cast<size_t>(threads)) throw std::invalid_argument("calibration: too little");
    timed(threads, 1, [&](int thread) {
      const size_t begin = bytes_ * thread / threads / PAGE * PAGE, end = bytes_ * (thread + 1) / threads / PAGE * PAGE;
      std::memset(memory_.data() + begin, 1, end - begin);
    });
  }

  // Seconds for one byte of a pass over `bytes`, each thread over its own share, STREAMS runs of it side by side. unit 0: the
  // runs are as long as the share allows; else of so many bytes, in random order.
  std::vector<double> read(int threads, size_t bytes, size_t unit, double seconds) const {
    if (threads < 1 || bytes > bytes_ || bytes < PAGE * STREAMS * static_cast<size_t>(threads) || unit % READ_ALIGN)
      throw std::invalid_argument("calibration: no such footprint");
    const size_t each = bytes / threads / (PAGE * STREAMS) * PAGE * STREAMS;
    const size_t run = unit ? unit : each / STREAMS;
    std::vector<std::vector<const uint8_t*>> runs(threads);
    uint64_t noise = 1;
    for (int t = 0; t < threads; ++t) {
      std::vector<const uint8_t*>& mine = runs[t];
      for (size_t at = 0; at + run <= each; at += run) mine.push_back(memory_.data() + each * t + at);
      for (size_t i = mine.size(); unit && i > 1; --i) {
        noise = noise * 6364136223846793005u + 1442695040888963407u;
        std::swap(mine[i - 1], mine[(noise >> 33) % i]);
      }
      mine.resize(mine.size() / STREAMS * STREAMS);
    }
    const size_t read = runs[0].size() * run * threads;
    std::vector<double> out = sample(threads, seconds, [&](int thread) {
      const std::vector<const uint8_t*>& mine = runs[thread];
      uint64_t seen = 0;
      for (size_t i = 0; i < mine.size(); i += STREAMS) seen |= kernels_.read(mine.data() + i, run);
      asm volatile("" ::"r"(seen));
    });
    for (double& s : out) s /= static_cast<double>(read);
    return out;
  }

  // Seconds for one operation of all threads together, a multiply-add being two; empty where the class has no such
  // product.
  std::vector<double> products(int threads, int product, double seconds) const {
    if (threads < 1 || product < 0 || product >= PRODUCTS) throw std::invalid_argument("calibration: no such product");
    double (*run)(int64_t) = kernels_.products[product];
    if (!run) return {};
    constexpr int64_t ROUNDS = 512;
    const double operations = run(1) * ROUNDS * threads;
    std::vector<double> out = sample(threads, seconds, [&](int) { run(ROUNDS); });
    for (double& s : out) s /= operations;
    return out;
  }

  // Seconds of one barrier.
  std::vector<double> barriers(int threads, double seconds) const {
    return sample(threads, seconds, [](int) { Pool::instance().wait(); });
  }

 private:
  const CalibrationKernels& kernels_;
  size_t bytes_;
  Mapping memory_;
};

}  // namespace

void bind_calibrate(nb::module_& m) {
  nb::class_<Calibrator>(m, "Calibrator")
      .def(nb::init<int, int, size_t>())
      .def("read", &Calibrator::read, nb::call_guard<nb::gil_scoped_release>())
      .def("products", &Calibrator::products, nb::call_guard<nb::gil_scoped_release>())
      .def("barriers", &Calibrator::barriers, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace octavo
