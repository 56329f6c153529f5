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
