// Threads, barriers, sleep and wake. See pool.h.
#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>

#include "denormals.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace octavo {
namespace {

constexpr int SPINS_BEFORE_YIELD = 2048;
constexpr auto SPIN_BETWEEN_JOBS = std::chrono::microseconds(200);

void pause_core() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

long futex(std::atomic<uint32_t>& word, int operation, uint32_t value) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, nullptr, nullptr, 0);
}

}  // namespace

void Barrier::wait() {
  if (count_ == 1) return;
  const uint32_t epoch = epoch_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(count_)) {
    arrived_.store(0, std::memory_order_relaxed);
    epoch_.store(epoch + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; epoch_.load(std::memory_order_acquire) == epoch; ++spins) {
    if (spins < SPINS_BEFORE_YIELD) pause_core();
    else sched_yield();
  }
}

Pool& Pool::instance() {
  static Pool* pool = new Pool();  // never destroyed: a daemon thread may be inside it when the process exits
  return *pool;
}

void Pool::grow(int workers) {
  if (process_ != getpid()) {  // threads do not survive a fork: what is left of them is let go of, never destroyed
    new std::vector<std::unique_ptr<Worker>>(std::move(workers_));
    workers_.clear();
    process_ = getpid();
  }
  while (static_cast<int>(workers_.size()) < workers) {
    auto worker = std::make_unique<Worker>();
    Worker* self = worker.get();
    const int thread = static_cast<int>(workers_.size()) + 1;
    worker->thread = std::thread([this, self, thread] { work(*self, thread); });
    workers_.push_back(std::move(worker));
  }
}

void Pool::run(int count, Job job, void* context) {
  std::lock_guard<std::mutex> lock(mutex_);
  FlushDenormals flush;
  grow(count - 1);
  job_ = job, context_ = context;
  barrier_.reset(count);
  done_.reset(count);
  for (int i = 0; i < count - 1; ++i) {
    Worker& worker = *workers_[i];
    worker.generation.fetch_add(1, std::memory_order_seq_cst);
    if (worker.asleep.load(std::memory_order_seq_cst)) futex(worker.generation, FUTEX_WAKE_PRIVATE, 1);
  }
  job(context, 0);
  done_.wait();
}

void Pool::work(Worker& self, int thread) {
  FlushDenormals flush;
  uint32_t seen = 0;
  for (;;) {
    const auto limit = std::chrono::steady_clock::now() + SPIN_BETWEEN_JOBS;
    for (int spins = 0; self.generation.load(std::memory_order_acquire) == seen; ++spins) {
      pause_core();
      if (spins % 64 == 63 && std::chrono::steady_clock::now() > limit) {
        self.asleep.store(1, std::memory_order_seq_cst);
        while (self.generation.load(std::memory_order_seq_cst) == seen) futex(self.generation, FUTEX_WAIT_PRIVATE, seen);
        self.asleep.store(0, std::memory_order_relaxed);
      }
    }
    ++seen;
    job_(context_, thread);
    done_.wait();
  }
}

}  // namespace octavo
