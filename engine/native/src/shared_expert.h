// An expert beside those of a mixture, which computes all rows.

#pragma once

#include "linear.h"

struct OrcaSharedExpert {
    const orca::Linear* gate_up;  // side by side; null: there is none
    const orca::Linear* down;
    const orca::Linear* weight;  // one column, whose logistic function multiplies the result; or null
    int32_t activation;
};

namespace orca {

// Memory that a team shares.
struct SharedExpertWork {
    LinearWork outer, inner;
    Scratch gate_up, gated, rows, weights;

    // Called before the team begins: reserve enough for m rows in that format.
    void reserve(const OrcaSharedExpert& expert, int64_t m, int32_t format);
};

// Called by all threads of a team: compute the rows to be added into `work`, complete when all have returned.
void shared_expert_team(const OrcaSharedExpert& expert, const Rows& x, SharedExpertWork& work, Team& team, int thread);

// The share of one of `threads` threads of y += those rows: the share that `combine_team` has.
void add_shared_expert(const OrcaSharedExpert& expert, SharedExpertWork& work, const Rows& y, int thread, int threads);

}  // namespace orca
