// A team of threads that run the same function together and wait for each other at barriers.
//
// The thread that calls run() is worker 0. Waiting spins for a short while (barriers come every few microseconds inside a
// step) and then sleeps on a futex, so an idle team uses no processor time. With more threads than processors spinning
// would only keep the others from running, so such a team goes to sleep almost at once. A team of as many threads as there
// are processors binds each to its own while it runs: left alone, two of them meet on one processor after a pause, and
// every barrier then takes until one of them goes to sleep.
#pragma once
#include <stdint.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

namespace octavo {

class Team {
 public:
  explicit Team(int num_threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls body(thread) on every thread and returns when all have finished. `body` must not throw.
  template <class Body>
  void run(Body&& body) {
    auto call = [](void* argument, int thread) { (*static_cast<std::remove_reference_t<Body>*>(argument))(thread); };
    run_task({call, const_cast<void*>(static_cast<const void*>(&body))});
  }

  // Inside run(): returns once all threads have called it. What any of them wrote before is visible after.
  void barrier();

 private:
  struct Task {
    void (*call)(void*, int);
    void* argument;
  };
  using Clock = std::chrono::steady_clock;

  void run_task(Task task);
  void work(int thread);
  void stop();
  void start_workers();
  void advance(std::atomic<uint32_t>& counter);
  void wait_for_change(std::atomic<uint32_t>& counter, uint32_t seen, Clock::duration spin);

  const int num_threads_;
  Clock::duration barrier_spin_;
  Clock::duration idle_spin_;
  std::vector<int> processors_;  // of each thread; empty: wherever the system puts them
  std::mutex run_mutex_;         // two callers take turns
  std::vector<std::thread> workers_;
  Task task_{};
  bool stopping_ = false;

  // Each on its own cache line: all of them are written while others spin on them.
  alignas(128) std::atomic<uint32_t> started_{0};     // counts calls of run()
  alignas(128) std::atomic<uint32_t> arrived_{0};     // threads at the current barrier
  alignas(128) std::atomic<uint32_t> generation_{0};  // counts barriers passed
  alignas(128) std::atomic<int> sleepers_{0};
};

}  // namespace octavo
