// Linear layers: which kernel computes which part.

#include "linear.h"

#include <omp.h>

#include "linear_amx.h"
#include "linear_vector.h"

namespace orca {
namespace {

constexpr int64_t FEWEST_TILE_ROWS = 8;  // below, vectors reach the memory's speed, too
constexpr int64_t FEWEST_PANELS = 16;    // of a thread, before rows are shared as well
constexpr int64_t FEWEST_ROWS = 64;

// Threads share columns, so that each weight is read once; where those are few, rows as well.
int64_t row_groups(int64_t m, int64_t columns, int64_t threads) {
    int64_t groups = 1;
    while (threads % (groups * 2) == 0 && m / (groups * 2) >= FEWEST_ROWS && columns * groups / threads < FEWEST_PANELS) {
        groups *= 2;
    }
    return groups;
}

}  // namespace

void linear_team(const Linear& linear, const Rows& x, const Rows& y, int thread, int threads) {
    const int64_t groups = row_groups(x.m, panels(linear.n), threads);
    const Range rows = share(x.m, thread % groups, groups);
    const Range columns = share(panels(linear.n), thread / groups, threads / groups);
    if (rows.begin == rows.end || columns.begin == columns.end) return;
    if (linear.format == F32) return linear_by_vectors<FloatDot, float>(linear, x, y, rows, columns);
#ifdef __AMX_BF16__
    if (x.m >= FEWEST_TILE_ROWS && tiles_permitted()) {
        if (linear.format == INT8) return linear_by_tiles<INT8>(linear, x, y, rows, columns);
        return linear_by_tiles<BF16>(linear, x, y, rows, columns);
    }
#endif
    if (linear.format == INT8) return bytes_by_vectors(linear, x, y, rows, columns);
    linear_by_vectors<BfloatDot, bf16>(linear, x, y, rows, columns);
}

}  // namespace orca

extern "C" void orca_linear(const orca::Linear* linear, const orca::Rows* x, const orca::Rows* y, int threads) {
#pragma omp parallel num_threads(threads)
    orca::linear_team(*linear, *x, *y, omp_get_thread_num(), omp_get_num_threads());
}
