// A gated MLP whose inner rows are never stored as rows: y = (activation(x G^T) * (x U^T)) D^T.

#pragma once

#include "linear.h"

namespace orca {

struct Mlp {
    const Linear* gate_up;  // G and U side by side
    const Linear* down;
    int32_t activation;

    // Whether `mlp_team` supports m rows of it. Rounding to 8 bits needs whole rows.
    bool fits(int64_t m) const;
};

// Called by all threads of a team. `outer` has room for m rows as `gate_up` reads them, `inner` as `down` does. y is
// complete when all have returned. The result equals that of the linear layers and `gated_team` in sequence.
void mlp_team(
    const Mlp& mlp, const Rows& x, const Rows& y, LinearWork& outer, LinearWork& inner, Team& team, int thread);

}  // namespace orca
