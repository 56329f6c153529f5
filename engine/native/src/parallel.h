// Threads that work on one operator together.

#pragma once

#include <atomic>
#include <climits>
#include <cstdint>
#include <linux/futex.h>
#include <omp.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace orca {

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// The state that the threads of one parallel region share.
class Team {
 public:
  // All threads arrive before any continues. Short waits spin. A thread that waits longer sleeps, because a computing
  // thread may have been descheduled: an idle core picks that thread up, a spinning one does not, and uses up the share
  // that this process has of a core beside other programs.
  void barrier() {
    const uint32_t now = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
      arrived_.store(0, std::memory_order_relaxed);
      next_.store(0, std::memory_order_relaxed);
      phase_.store(now + 1);
      if (asleep_.load() > 0) syscall(SYS_futex, &phase_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
      return;
    }
    for (int spins = 0; spins < kSpins; ++spins) {
      if (phase_.load(std::memory_order_acquire) != now) return;
      pause();
    }
    asleep_.fetch_add(1);
    while (phase_.load() == now) syscall(SYS_futex, &phase_, FUTEX_WAIT_PRIVATE, now, nullptr, nullptr, 0);
    asleep_.fetch_sub(1);
  }

  // Take the next piece of work; counts from 0 again after each barrier.
  int64_t take() { return next_.fetch_add(1, std::memory_order_relaxed); }

  // The piece that will be taken next, by any thread.
  int64_t next() const { return next_.load(std::memory_order_relaxed); }

  int size = 1;

 private:
  static constexpr int kSpins = 2048;

  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
  std::atomic<int> asleep_{0};
  alignas(64) std::atomic<int64_t> next_{0};
};

// Run `work(team, thread)` on at most `threads` threads.
template <class Work>
inline void run_team(int threads, Work work) {
  Team team;
#pragma omp parallel num_threads(threads)
  {
#pragma omp single
    team.size = omp_get_num_threads();
    work(team, omp_get_thread_num());
  }
}

}  // namespace orca
