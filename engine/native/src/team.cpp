// Names the threads of a team.

#include <cstdint>
#include <sys/syscall.h>
#include <unistd.h>

#include "parallel.h"

// Write the kernel's ids of the threads that compute together with the calling one, which is the first; return their number.
extern "C" int orca_team(int32_t* ids, int threads) {
  int size = 0;
  orca::run_team(threads, [&](orca::Team& team, int thread) {
    ids[thread] = static_cast<int32_t>(syscall(SYS_gettid));
    if (thread == 0) size = team.size();
  });
  return size;
}
