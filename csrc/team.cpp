#include "team.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "error.h"

namespace octavo {
namespace {

constexpr auto barrier_spin = std::chrono::microseconds(50);
constexpr auto idle_spin = std::chrono::microseconds(200);  // bridges the caller's work between two steps
constexpr auto crowded_spin = std::chrono::nanoseconds(500);
constexpr int pauses_per_look_at_clock = 32;

void pause_processor() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void futex_wait(std::atomic<uint32_t>& counter, uint32_t seen) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&counter), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& counter) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&counter), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

std::vector<int> usable_processors() {
  cpu_set_t set;
  std::vector<int> processors;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return processors;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &set)) processors.push_back(processor);
  }
  return processors;
}

void bind_to(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  sched_setaffinity(0, sizeof set, &set);
}

// Brings the calling thread to a processor and keeps it there while this lives. Does nothing for a negative one, nor, to
// spare the system calls, where the thread is there already: it has no reason to leave while the others keep theirs busy.
class BoundToProcessor {
 public:
  explicit BoundToProcessor(int processor) : bound_(processor >= 0 && sched_getcpu() != processor) {
    if (!bound_) return;
    bound_ = sched_getaffinity(0, sizeof before_, &before_) == 0;
    if (bound_) bind_to(processor);
  }
  ~BoundToProcessor() {
    if (bound_) sched_setaffinity(0, sizeof before_, &before_);
  }

 private:
  bool bound_;
  cpu_set_t before_;
};

// Signals belong to the caller's threads (Python's main thread), never to the team's.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

Team::Team(int num_threads) : num_threads_(num_threads) {
  if (num_threads < 1 || num_threads > 1024) {
    throw Error("the number of threads is " + std::to_string(num_threads) + "; it must be from 1 to 1024");
  }
  std::vector<int> processors = usable_processors();
  bool crowded = num_threads > int(processors.size());
  if (num_threads > 1 && num_threads == int(processors.size())) processors_ = std::move(processors);
  barrier_spin_ = crowded ? Clock::duration(crowded_spin) : Clock::duration(barrier_spin);
  idle_spin_ = crowded ? Clock::duration(crowded_spin) : Clock::duration(idle_spin);
  try {
    start_workers();
  } catch (...) {
    stop();
    throw Error("cannot start " + std::to_string(num_threads) + " threads");
  }
}

Team::~Team() { stop(); }

void Team::start_workers() {
  SignalsBlocked signals_blocked;
  for (int thread = 1; thread < num_threads_; ++thread) {
    workers_.emplace_back(&Team::work, this, thread);
    char name[24];
    snprintf(name, sizeof name, "octavo-%d", thread);
    pthread_setname_np(workers_.back().native_handle(), name);
  }
}

void Team::stop() {
  stopping_ = true;
  advance(started_);
  for (std::thread& worker : workers_) worker.join();
}

void Team::run_task(Task task) {
  std::lock_guard<std::mutex> lock(run_mutex_);
  BoundToProcessor bound(processors_.empty() ? -1 : processors_[0]);
  task_ = task;
  if (num_threads_ > 1) advance(started_);
  task.call(task.argument, 0);
  barrier();
}

void Team::work(int thread) {
  if (!processors_.empty()) bind_to(processors_[size_t(thread)]);
  for (uint32_t seen = 0;; ++seen) {
    wait_for_change(started_, seen, idle_spin_);
    if (stopping_) return;
    task_.call(task_.argument, thread);
    barrier();
  }
}

void Team::barrier() {
  if (num_threads_ == 1) return;
  // No one can pass this barrier before this thread arrives, so the generation read here is the current one.
  uint32_t generation = generation_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == uint32_t(num_threads_)) {
    arrived_.store(0, std::memory_order_relaxed);
    advance(generation_);
  } else {
    wait_for_change(generation_, generation, barrier_spin_);
  }
}

// The increment and the look at `sleepers_` are sequentially consistent, as are their opposites in wait_for_change: either
// the sleeper sees the new count or this thread sees the sleeper.
void Team::advance(std::atomic<uint32_t>& counter) {
  counter.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) futex_wake_all(counter);
}

void Team::wait_for_change(std::atomic<uint32_t>& counter, uint32_t seen, Clock::duration spin) {
  for (Clock::time_point end{};;) {
    for (int i = 0; i < pauses_per_look_at_clock; ++i) {
      if (counter.load(std::memory_order_acquire) != seen) return;
      pause_processor();
    }
    Clock::time_point now = Clock::now();
    if (end == Clock::time_point{}) end = now + spin;
    if (now >= end) break;
  }
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (counter.load(std::memory_order_seq_cst) == seen) futex_wait(counter, seen);
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace octavo
