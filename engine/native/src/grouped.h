// A linear layer per group of rows, as the experts of a mixture have them, and the sum of what the experts of a row yield.

#pragma once

#include <cstdint>

#include "linear.h"

struct OrcaGroups {
    const orca::Linear* const* linears;  // [num_groups]
    const int64_t* offsets;              // [num_groups + 1] of the rows of y
    const int64_t* rows;                 // of x, for each row of y; null: the rows of x are those of y
    int64_t num_groups;
};

// The terms of each row of y: rows of x at `places`, times `weights`; a place below 0 holds nothing.
struct OrcaTerms {
    const int64_t* places;  // [y.m, count]
    const float* weights;   // [y.m, count]
    int64_t count;
};

namespace orca {

// Called by all threads of a team: y[i] = linear of its group (x[rows[i]]), x in the format that the layers take, which are
// all of one shape; there is at least one. y is complete when all have returned.
void grouped_linear_team(const OrcaGroups& groups, const Rows& x, const Rows& y, Team& team, int thread);

// The share of one of `threads` threads of the sums of all rows of y, `width` values each: float32, in the order of the
// terms, rounded once.
void combine_team(const Rows& x, const OrcaTerms& terms, const Rows& y, int64_t width, int thread, int threads);

}  // namespace orca
