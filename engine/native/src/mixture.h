// A mixture of experts: a router chooses a few gated MLPs for each row, and what they yield is added by weight.

#pragma once

#include "choose.h"
#include "gate.h"
#include "linear.h"
#include "shared_expert.h"

struct OrcaMixture {
    const orca::Linear* router;          // of num_experts columns, in F32 or the rows' format
    const orca::Linear* const* gate_up;  // [num_experts]: gate and up side by side
    const orca::Linear* const* down;     // [num_experts]
    OrcaRouting routing;
    OrcaGate gate;
    OrcaSharedExpert shared;
    int32_t score_format;  // F32 or that of the rows
};

namespace orca {

// Memory that a team shares.
struct MixtureWork {
    Scratch wide, scores, experts, weights, places, rows, offsets, first, second, inner, gated, outer;
    SharedExpertWork shared;
    int64_t num_active;  // experts that any row has chosen

    // Called before the team begins: reserve enough for m rows in that format.
    void reserve(const OrcaMixture& mixture, int64_t m, int32_t format);
};

// Called by all threads of a team; `linear` has room for m rows of the router. y is complete when all have returned.
void mixture_team(
    const OrcaMixture& mixture, const Rows& x, const Rows& y, LinearWork& linear, MixtureWork& work, Team& team,
    int thread);

}  // namespace orca
