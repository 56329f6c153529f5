// Which experts of a mixture compute a row, and by which weights their results are added.

#pragma once

#include <cstdint>

struct OrcaRouting {
    const float* correction;  // [num_experts] or null: added to the chances to choose by, but not to the weights
    int64_t num_experts, choices;
    int64_t groups, chosen_groups;  // experts are chosen of the groups whose two highest have the highest sums
    float factor;                   // of all weights
    float least_sum;                // by which normalized weights are divided
    int32_t scoring;                // orca::Scoring
    int32_t normalizes;             // whether the weights of the chosen ones add up to `factor`
};

namespace orca {

// How scores become chances.
enum Scoring : int32_t { SOFTMAX = 0, SIGMOID = 1 };

// The experts with the highest chances of a row, in descending order, and their weights; of equal ones the first counts as
// higher. `scores` [num_experts] are BF16 or F32. If one is NaN, all weights are, and the experts are any.
void choose(const OrcaRouting& routing, const void* scores, int32_t format, int64_t* experts, float* weights);

}  // namespace orca
