// Threads, barriers, sleep and wake. See pool.h.
#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <optional>

#include "denormals.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace octavo {
namespace {

using std::chrono::microseconds;

constexpr microseconds SPIN_BETWEEN_JOBS(200);
// At a barrier. With a core for each thread, the one that is waited for comes back at once or, preempted by another
// process, after a time slice: sleeping would give this core away as well, and getting it back takes longer. With fewer
// cores than threads it may be waiting for this very core.
constexpr microseconds SPIN_OWN_CORE(20'000), SPIN_SHARED_CORE(1);

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

// Whether the word left `value` within the time.
bool spin_while(const std::atomic<uint32_t>& word, uint32_t value, microseconds time) {
  constexpr int LOOKS = 64;  // between two looks at the clock
  std::chrono::steady_clock::time_point end{};
  for (int spins = 0; word.load(std::memory_order_acquire) == value; ++spins) {
    pause_core();
    if (spins % LOOKS != LOOKS - 1) continue;
    const auto now = std::chrono::steady_clock::now();
    if (spins < LOOKS) end = now + time;
    else if (now > end) return false;
  }
  return true;
}

std::vector<int> usable_cores() {
  std::vector<int> cores;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &set)) cores.push_back(i);
  return cores;
}

cpu_set_t only(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  return set;
}

// Keeps the calling thread to a core, where the system allows it, and gives it back the ones it had.
class Stay {
 public:
  explicit Stay(int core) {
    const cpu_set_t mine = only(core);
    held_ = sched_getaffinity(0, sizeof before_, &before_) == 0 && sched_setaffinity(0, sizeof mine, &mine) == 0;
  }
  ~Stay() {
    if (held_) sched_setaffinity(0, sizeof before_, &before_);
  }
  Stay(const Stay&) = delete;
  Stay& operator=(const Stay&) = delete;

 private:
  cpu_set_t before_;
  bool held_;
};

}  // namespace

bool Barrier::arrive() {
  const auto count = static_cast<uint32_t>(count_);  // before this thread counts: the next job may set another one then
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < count) return false;
  arrived_.store(0, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst)) futex(epoch_, FUTEX_WAKE_PRIVATE, INT_MAX);
  return true;
}

void Barrier::wait() {
  if (count_ == 1) return;
  const uint32_t epoch = epoch_.load(std::memory_order_acquire);
  if (arrive() || spin_while(epoch_, epoch, spin_)) return;
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (epoch_.load(std::memory_order_seq_cst) == epoch) futex(epoch_, FUTEX_WAIT_PRIVATE, epoch);
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
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
    cores_ = usable_cores();
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
  const auto cores = static_cast<int>(cores_.size());
  const microseconds spin = count <= cores ? SPIN_OWN_CORE : SPIN_SHARED_CORE;
  // As many threads as cores: each keeps to its own. The scheduler may else wake a worker on the core where the caller
  // spins for it, and a step of hundreds of barriers takes seconds. With cores to spare it finds them itself.
  std::optional<Stay> stay;
  if (count > 1 && count == cores) {
    stay.emplace(cores_[0]);
    for (int i = 0; i < count - 1; ++i) keep(*workers_[i], cores_[i + 1]);
  }
  barrier_.reset(count, spin);
  done_.reset(count, spin);
  for (int i = 0; i < count - 1; ++i) {
    Worker& worker = *workers_[i];
    worker.generation.fetch_add(1, std::memory_order_seq_cst);
    if (worker.asleep.load(std::memory_order_seq_cst)) futex(worker.generation, FUTEX_WAKE_PRIVATE, 1);
  }
  job(context, 0);
  done_.wait();
}

void Pool::keep(Worker& worker, int core) {
  if (worker.core == core) return;
  const cpu_set_t its = only(core);
  pthread_setaffinity_np(worker.thread.native_handle(), sizeof its, &its);
  worker.core = core;
}

void Pool::work(Worker& self, int thread) {
  FlushDenormals flush;
  uint32_t seen = 0;
  for (;;) {
    if (!spin_while(self.generation, seen, SPIN_BETWEEN_JOBS)) {
      self.asleep.store(1, std::memory_order_seq_cst);
      while (self.generation.load(std::memory_order_seq_cst) == seen) futex(self.generation, FUTEX_WAIT_PRIVATE, seen);
      self.asleep.store(0, std::memory_order_relaxed);
    }
    ++seen;
    job_(context_, thread);
    done_.arrive();
  }
}

}  // namespace octavo
