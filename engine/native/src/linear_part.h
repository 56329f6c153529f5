// Distribution of a linear layer over threads.

#pragma once

#include <algorithm>

#include "team.h"

namespace orca {

constexpr int64_t FEWEST_PANELS = 16;  // per thread, before rows are shared as well
constexpr int64_t FEWEST_ROWS = 64;

// One thread's part of the `rows`, or of blocks of them, and of the panels.
struct Part {
    Range rows;
    Range columns;

    bool empty() const { return rows.begin == rows.end || columns.begin == columns.end; }
};

// Threads share columns, so that each weight is read once. If columns are few, they share rows as well: returns the number
// of groups.
inline int64_t row_groups(int64_t m, int64_t columns, int64_t threads) {
    int64_t groups = 1;
    while (threads % (groups * 2) == 0 && m / (groups * 2) >= FEWEST_ROWS && columns * groups / threads < FEWEST_PANELS) {
        groups *= 2;
    }
    return groups;
}

// The same where threads of a group take over from each other: none is alone in it.
inline int64_t shared_row_groups(int64_t m, int64_t columns, int64_t threads) {
    return std::min(row_groups(m, columns, threads), std::max<int64_t>(threads / 2, 1));
}

inline Part part_of(int64_t m, int64_t rows, int64_t columns, int64_t thread, int64_t threads) {
    const int64_t groups = row_groups(m, columns, threads);
    return {share(rows, thread % groups, groups), share(columns, thread / groups, threads / groups)};
}

}  // namespace orca
