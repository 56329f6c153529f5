// The highest number of a row, and where it is.

#pragma once

#include <cstdint>

#include "linear.h"
#include "team.h"

namespace orca {

struct Highest {
    float value;
    int64_t at;
};

// The first place of the highest number of some columns of a row; with a NaN, that of the first one.
Highest highest_of(const Rows& rows, int64_t row, Range columns);

// The highest of `count` adjacent parts of a row.
Highest highest_of(const Highest* parts, int64_t count);

}  // namespace orca
