#include "choose.h"

#include <algorithm>
#include <limits>

#include "number.h"
#include "team.h"
#include "vector.h"

namespace orca {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

// The places of the `count` highest of n keys, in descending order.
void highest_of(const float* keys, int64_t n, int64_t count, int64_t* places) {
    int64_t held = 0;
    for (int64_t place = 0; place < n; place++) {
        if (held == count && !(keys[place] > keys[places[held - 1]])) continue;
        int64_t at = held < count ? held++ : count - 1;
        for (; at > 0 && keys[place] > keys[places[at - 1]]; at--) places[at] = places[at - 1];
        places[at] = place;
    }
}

// Apply `compute` to all lanes of x; returns the sum of the results.
template <class Compute> float transform(const float* x, float* y, int64_t n, Compute compute) {
    f32x16 sum{};
    for (int64_t i = 0; i < n; i += kLanes) {
        const int64_t count = std::min<int64_t>(n - i, kLanes);
        put_numbers(y + i, compute(take_numbers(x + i, count)), count);
        sum += take_numbers(y + i, count);
    }
    return sum_of(sum);
}

// Returns the sum of all chances, which is NaN if a score is.
float to_chances(const OrcaRouting& routing, const float* scores, float* chances) {
    const int64_t n = routing.num_experts;
    if (routing.scoring == SIGMOID) {
        return transform(scores, chances, n, [](f32x16 score) { return 1.0f / (1.0f + exp_of(-score)); });
    }
    float highest = scores[0];
    for (int64_t expert = 1; expert < n; expert++) highest = scores[expert] > highest ? scores[expert] : highest;
    const float all = transform(scores, chances, n, [&](f32x16 score) { return exp_of(score - highest); });
    return transform(chances, chances, n, [&](f32x16 power) { return power / all; });
}

// Leave only the experts of chosen groups.
void limit_to_groups(const OrcaRouting& routing, float* keys) {
    static thread_local Scratch sum_memory, place_memory;
    const int64_t size = routing.num_experts / routing.groups;
    float* sums = sum_memory.get<float>(routing.groups);
    int64_t* chosen = place_memory.get<int64_t>(routing.groups);
    for (int64_t group = 0; group < routing.groups; group++) {
        int64_t best[2];
        const float* own = keys + group * size;
        highest_of(own, size, 2, best);
        sums[group] = own[best[0]] + own[best[1]];
    }
    highest_of(sums, routing.groups, routing.chosen_groups, chosen);
    std::sort(chosen, chosen + routing.chosen_groups);
    for (int64_t group = 0, next = 0; group < routing.groups; group++) {
        if (next < routing.chosen_groups && chosen[next] == group) {
            next++;
        } else {
            std::fill_n(keys + group * size, size, kNone);
        }
    }
}

}  // namespace

void choose(const OrcaRouting& routing, const void* scores, int32_t format, int64_t* experts, float* weights) {
    static thread_local Scratch memory;
    const int64_t n = routing.num_experts, choices = routing.choices;
    float* keys = memory.get<float>(2 * n);
    float* chances = keys + n;
    for (int64_t i = 0; i < n; i++) {
        keys[i] = format == BF16 ? load(static_cast<const bf16*>(scores) + i) : load(static_cast<const float*>(scores) + i);
    }
    const float all = to_chances(routing, keys, chances);
    // Scores have the order of their chances, of which many may be equal.
    if (routing.correction != nullptr || routing.groups > 1) std::copy_n(chances, n, keys);
    for (int64_t i = 0; routing.correction != nullptr && i < n; i++) keys[i] += routing.correction[i];
    if (routing.groups > 1) limit_to_groups(routing, keys);
    highest_of(keys, n, choices, experts);
    float chosen = 0;
    for (int64_t choice = 0; choice < choices; choice++) chosen += weights[choice] = chances[experts[choice]];
    const float total = !routing.normalizes ? 1.0f : chosen < routing.least_sum ? routing.least_sum : chosen;
    for (int64_t choice = 0; choice < choices; choice++) {
        weights[choice] = all == all ? weights[choice] / total * routing.factor : all;
    }
}

}  // namespace orca
