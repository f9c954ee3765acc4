// The process's one thread pool. A job runs on `count` threads: the caller is thread 0, persistent workers are the rest.
//
// Workers spin for a short while after a job (a decode loop's next step arrives within it), then sleep on a futex, so
// that an idle engine burns nothing. Inside a job threads meet at barriers.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace octavo {

// Meeting point of `count` threads. They spin for so long and then sleep until the last one has come.
class Barrier {
 public:
  void reset(int count, std::chrono::microseconds spin) { count_ = count, spin_ = spin; }
  void wait();
  // Comes without waiting for the others. True for the last one.
  bool arrive();

 private:
  int count_ = 1;
  std::chrono::microseconds spin_{0};
  alignas(128) std::atomic<uint32_t> arrived_{0};
  std::atomic<uint32_t> sleepers_{0};
  alignas(128) std::atomic<uint32_t> epoch_{0};
};

class Pool {
 public:
  using Job = void (*)(void* context, int thread);

  static Pool& instance();

  // Runs job(context, t) for t in [0, count) and returns when all are done. Jobs of several callers take turns.
  // Floating point inside a job flushes denormals; the caller's own mode is put back.
  void run(int count, Job job, void* context);
  // For use inside a job.
  void wait() { barrier_.wait(); }
  int workers() const { return static_cast<int>(workers_.size()); }

 private:
  struct alignas(128) Worker {
    std::atomic<uint32_t> generation{0};
    std::atomic<uint32_t> asleep{0};
    std::thread thread;
    int core = -1;  // that it keeps to
  };

  Pool() = default;
  void grow(int workers);
  static void keep(Worker& worker, int core);
  void work(Worker& self, int thread);

  std::mutex mutex_;
  std::vector<std::unique_ptr<Worker>> workers_;
  int process_ = 0;  // that the workers belong to
  std::vector<int> cores_;  // that it may run on
  Barrier barrier_;
  Barrier done_;
  Job job_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace octavo
