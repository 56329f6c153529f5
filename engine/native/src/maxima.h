// The highest number of each row of a matrix, and where it is.

#pragma once

#include <cstdint>
#include <vector>

#include "linear.h"
#include "parallel.h"

namespace orca {

struct Highest {
    float value;
    int64_t at;
};

// Finds the highest number of rows, and its first place. A NaN counts as the highest. Where rows are fewer than threads,
// these share rows.
class Maxima {
  public:
    // Called before the team begins.
    void begin(int64_t count, int threads);

    // Called by all threads of a team, for the first `width` numbers of these rows of the matrix; null: of all in order.
    void find(const Rows& matrix, int64_t width, const int64_t* rows, Team& team, int thread);

    // Called when all have returned: write what was found, [count].
    void end(float* values, int64_t* places) const;

  private:
    std::vector<Highest> parts_;
    int64_t count_ = 0, parts_per_row_ = 1;
};

}  // namespace orca
