// Threads that work on one operator together.

#pragma once

#include <algorithm>
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

// What one thread of a team tells the others. Words that several threads write say for which stage they are meant in their
// upper half: a thread that was descheduled in an earlier stage cannot disturb a later one.
struct alignas(64) Member {
  std::atomic<uint64_t> taken;  // pieces of this thread's share, whoever took them
  std::atomic<uint64_t> held;   // the piece that it has offered; 0: none
  alignas(64) std::atomic<uint64_t> done;  // pieces that it completed; read by all that wait
  uint32_t stage;               // in which this thread is; its own
};

// The state that the threads of one parallel region share. They pass the same stages one after another, see stage.h.
class Team {
 public:
  // For at most so many threads, by the one that begins the region. It leads no other team meanwhile.
  explicit Team(int most) {
    static thread_local Member members[kMostThreads];
    members_ = members;
    for (int thread = 0; thread < most; ++thread) {
      members[thread].taken.store(0, std::memory_order_relaxed);
      members[thread].held.store(0, std::memory_order_relaxed);
      members[thread].done.store(0, std::memory_order_relaxed);
      members[thread].stage = 0;
    }
  }

  // By each thread, first of all: the region has so many.
  void join(int threads) { size_.store(threads, std::memory_order_relaxed); }

  int size() const { return size_.load(std::memory_order_relaxed); }

  Member& member(int64_t thread) { return members_[thread]; }

  bool is_over(uint32_t stage) const { return stage_.load(std::memory_order_acquire) > stage; }

  // End a stage that has so many pieces if all are complete; return whether it is over.
  bool end(uint32_t stage, int64_t pieces) {
    if (is_over(stage)) return true;
    int64_t done = 0;
    for (int thread = 0; thread < size(); ++thread) {
      const uint64_t word = members_[thread].done.load(std::memory_order_acquire);
      if (word >> 32 == stage) done += static_cast<uint32_t>(word);
    }
    if (done < pieces) return false;
    if (stage_.compare_exchange_strong(stage, stage + 1) && asleep_.load() > 0) {
      syscall(SYS_futex, &stage_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
    }
    return true;
  }

  // Wait for the end of a stage for a short time; return whether it is over.
  bool ends_soon(uint32_t stage, int64_t pieces) {
    for (int spins = 0; spins < kSpins; ++spins) {
      if (spins % kLook == 0 ? end(stage, pieces) : is_over(stage)) return true;
      pause();
    }
    return false;
  }

  // Sleep until the stage is over: an idle core picks up a thread that was descheduled, a spinning one does not, and uses up
  // the share that this process has of a core beside other programs.
  void sleep_through(uint32_t stage, int64_t pieces) {
    asleep_.fetch_add(1);
    while (!end(stage, pieces)) syscall(SYS_futex, &stage_, FUTEX_WAIT_PRIVATE, stage, nullptr, nullptr, 0);
    asleep_.fetch_sub(1);
  }

  static constexpr int kMostThreads = 256;

 private:
  static constexpr int kSpins = 2048;
  static constexpr int kLook = 16;  // spins for each look at the words that others write

  Member* members_;
  std::atomic<int> size_{1};
  alignas(64) std::atomic<uint32_t> stage_{1};
  std::atomic<int> asleep_{0};
};

// Run `work(team, thread)` on at most `threads` threads. Each begins when it comes, and the others compute its share
// meanwhile; only one that has not left OpenMP's last region yet is waited for.
template <class Work>
inline void run_team(int threads, Work work) {
  const int most = std::min(threads, Team::kMostThreads);
  Team team(most);
#pragma omp parallel num_threads(most)
  {
    team.join(omp_get_num_threads());
    work(team, omp_get_thread_num());
  }
}

}  // namespace orca
