// The gates of experts: activations, and one that clamps both of its operands.

#pragma once

#include "linear.h"

struct OrcaGate {
    int32_t activation;  // orca::Activation
    float alpha, limit;  // of CLAMPED_SWISH
};

namespace orca {

// The share of one of `threads` threads of y = activation(gate) * up over `width` values, rounded once; CLAMPED_SWISH: gate,
// at most `limit`, times the logistic function of alpha * gate, times 1 + up, which is clamped to both sides.
void gate_team(const OrcaGate& kind, const Rows& gate, const Rows& up, const Rows& y, int64_t width, int thread, int threads);

}  // namespace orca
