// Checks stage.h; prints what is wrong, and returns whether anything is.

#include "stage.h"

#include <csignal>
#include <cstdio>
#include <pthread.h>
#include <sched.h>
#include <vector>

using namespace orca;

namespace {

int num_wrong = 0;

void check(bool holds, const char* what) {
  if (holds) return;
  std::printf("wrong: %s\n", what);
  ++num_wrong;
}

void until(const std::atomic<bool>& happened) {
  while (!happened.load()) sched_yield();
}

// A thread begins a piece and does not return before the other one has passed that stage and a later one.
void overtaken() {
  std::vector<int> stored(8, 0);
  std::atomic<bool> held{false}, passed{false};
  bool claimed = true;
  run_team(2, [&](Team& team, int thread) {
    for (Stage stage(team, thread, {8}); stage.take();) {
      stage.offer();
      if (thread == 1) {
        held.store(true);
        until(passed);
        claimed = stage.claim();
        if (!claimed) continue;
      } else {
        until(held);
        if (!stage.claim()) continue;
      }
      ++stored[stage.piece()];
    }
    for (Stage stage = Stage::of_threads(team, thread); stage.take();) ++stored[stage.piece()];
    if (thread == 0) passed.store(true);
  });
  check(!claimed, "a thread stores a piece that another one has taken over");
  for (int piece = 0; piece < 8; ++piece) check(stored[piece] == (piece < 2 ? 2 : 1), "each piece is stored once");
}

// A thread comes when the other one has passed some stages, then both compute.
void late() {
  std::atomic<bool> passed{false};
  std::atomic<int> done[2]{}, together{0};
  run_team(2, [&](Team& team, int thread) {
    if (thread == 1) until(passed);
    for (int number = 0; number < 5; ++number) {
      for (Stage stage = Stage::queue(team, thread, number); stage.take();) ++done[thread];
    }
    passed.store(true);
    for (Stage stage = Stage::of_threads(team, thread); stage.take();) {
      ++together;
      while (together.load() < 2) sched_yield();
    }
  });
  check(done[0] == 0 + 1 + 2 + 3 + 4 && done[1] == 0, "who is late has nothing to do in stages that are over");
}

std::atomic<bool> interrupted{false}, released{false};

// Whether a thread of this process sleeps.
bool sleeps(pid_t thread) {
  char path[64], state = 0;
  std::snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
  std::FILE* file = std::fopen(path, "r");
  if (file == nullptr) return false;
  const int found = std::fscanf(file, "%*d (%*[^)]) %c", &state);
  std::fclose(file);
  return found == 1 && state == 'S';
}

// A thread that has not even begun the region keeps nobody from computing all of it.
void absent() {
  pthread_t other{};
  pid_t other_id = 0;
  run_team(2, [&](Team&, int thread) {
    if (thread == 1) other = pthread_self(), other_id = static_cast<pid_t>(syscall(SYS_gettid));
  });
  while (!sleeps(other_id)) sched_yield();  // it has left the region, and waits for the next
  signal(SIGUSR1, [](int) {
    interrupted.store(true);
    until(released);
  });
  pthread_kill(other, SIGUSR1);
  until(interrupted);
  std::atomic<int> done{0};
  run_team(2, [&](Team& team, int thread) {
    for (int number = 0; number < 3; ++number) {
      for (Stage stage(team, thread, {4}); stage.take();) ++done;
    }
    if (thread == 0) released.store(true);
  });
  check(done == 12, "pieces are computed once, whoever comes late");
}

// Once claimed, a piece is waited for.
void claimed() {
  std::atomic<bool> claims{false};
  std::atomic<int> stored{0};
  int seen = -1;
  run_team(2, [&](Team& team, int thread) {
    for (Stage stage(team, thread, {2}); stage.take();) {
      stage.offer();
      if (thread == 0) until(claims);
      check(stage.claim(), "nobody takes over a claimed piece");
      claims.store(true);
      if (thread == 1) usleep(2000);
      ++stored;
    }
    if (thread == 0) seen = stored.load();
  });
  check(seen == 2, "a stage ends when its pieces are complete");
}

uint64_t mixed(uint64_t value) {
  value ^= value >> 33;
  value *= 0xff51afd7ed558ccdull;
  return value ^ value >> 33;
}

// Every stage computes its items from all items of the one before, in buffers that are used again: a result that is stored
// late, or twice after a change, spoils the end.
void hurried(int threads, int64_t groups, int64_t items, uint64_t seed) {
  constexpr int kStages = 60;
  std::vector<uint64_t> buffers[2] = {std::vector<uint64_t>(items * groups, 1), std::vector<uint64_t>(items * groups, 1)};
  const auto value_of = [&](const std::vector<uint64_t>& from, int number, int64_t item) {
    uint64_t sum = number;
    for (const uint64_t each : from) sum += mixed(each + item);
    return sum;
  };
  std::vector<uint64_t> expected = buffers[0];
  for (int number = 0; number < kStages; ++number) {
    std::vector<uint64_t> next(expected.size());
    for (size_t item = 0; item < next.size(); ++item) next[item] = value_of(expected, number, item);
    expected = next;
  }
  run_team(threads, [&](Team& team, int thread) {
    const int64_t groups_here = team.size() % groups ? 1 : groups;
    uint64_t draw = mixed(seed + thread);
    for (int number = 0; number < kStages; ++number) {
      const std::vector<uint64_t>& from = buffers[number % 2];
      std::vector<uint64_t>& to = buffers[(number + 1) % 2];
      const bool all = groups_here == 1;
      const Division division{all ? items * groups : items, groups_here, number % 5 == 4 && all};
      for (Stage stage(team, thread, division); stage.take();) {
        if (number % 3 != 1) stage.offer();
        const int64_t item = (all ? 0 : thread % groups * items) + stage.piece();
        const uint64_t found = value_of(from, number, item);
        draw = mixed(draw + 1);
        if (draw % 16 == 0) usleep(draw / 16 % 300);
        if (stage.claim()) to[item] = found;
      }
    }
  });
  check(buffers[kStages % 2] == expected, "stages compute the same on any number of threads");
}

}  // namespace

int main() {
  overtaken();
  late();
  absent();
  claimed();
  for (uint64_t seed = 0; seed < 40; ++seed) {
    for (const int threads : {1, 2, 3, 4, 8}) hurried(threads, seed % 2 + 1, seed % 7 + 1, seed);
  }
  return num_wrong > 0;
}
