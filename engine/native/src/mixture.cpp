// A mixture of experts.

#include "mixture.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "elementwise.h"
#include "grouped.h"
#include "number.h"
#include "stage.h"

namespace orca {
namespace {

int64_t bytes_of(int32_t format) { return format == BF16 ? sizeof(bf16) : sizeof(float); }

int64_t inner_width(const OrcaMixture& mixture) { return mixture.down[0]->k; }

// The highest scores of a row, in descending order, and their weights. Of equal ones the first counts as higher.
template <class T> void choose(const OrcaMixture& mixture, const T* scores, int64_t* experts, float* weights) {
    const int64_t choices = mixture.choices;
    for (int64_t choice = 0; choice < choices; choice++) {
        experts[choice] = choice;  // remains where a score is NaN, and makes the weights NaN
        weights[choice] = -std::numeric_limits<float>::infinity();
    }
    for (int64_t expert = 0; expert < mixture.num_experts; expert++) {
        const float score = load(scores + expert);
        if (!(score > weights[choices - 1])) continue;
        int64_t at = choices - 1;
        for (; at > 0 && score > weights[at - 1]; at--) {
            experts[at] = experts[at - 1];
            weights[at] = weights[at - 1];
        }
        experts[at] = expert;
        weights[at] = score;
    }
    const float highest = weights[0];
    float chosen = 0, all = 0;
    for (int64_t choice = 0; choice < choices; choice++) chosen += weights[choice] = std::exp(weights[choice] - highest);
    for (int64_t expert = 0; expert < mixture.num_experts; expert++) all += std::exp(load(scores + expert) - highest);
    // A NaN among scores that are not chosen is in `all`.
    const float total = mixture.normalizes && all == all ? chosen : all;
    for (int64_t choice = 0; choice < choices; choice++) weights[choice] /= total;
}

class Mixing {
  public:
    Mixing(const OrcaMixture& mixture, const Rows& x, MixtureWork& work)
        : mixture_(mixture),
          x_(x),
          work_(work),
          experts_(work.experts.get<int64_t>(0)),
          weights_(work.weights.get<float>(0)),
          places_(work.places.get<int64_t>(0)),
          rows_(work.rows.get<int64_t>(0)),
          offsets_(work.offsets.get<int64_t>(0)),
          first_(work.first.get<const Linear*>(0)),
          second_(work.second.get<const Linear*>(0)) {}

    Rows scores() const { return {work_.scores.get<char>(0), x_.m, mixture_.num_experts, x_.format}; }

    void choose_rows(Range range) {
        for (int64_t row = range.begin; row < range.end; row++) {
            const int64_t at = row * mixture_.choices;
            const int64_t from = row * mixture_.num_experts;
            if (x_.format == BF16) {
                choose(mixture_, work_.scores.get<bf16>(0) + from, experts_ + at, weights_ + at);
            } else {
                choose(mixture_, work_.scores.get<float>(0) + from, experts_ + at, weights_ + at);
            }
        }
    }

    // Sort the pairs of rows and experts by expert, by one thread.
    void route() {
        int64_t* ends = offsets_ + 1 + mixture_.num_experts;  // [num_experts]: where the next pair of each goes
        std::fill_n(ends, mixture_.num_experts, 0);
        for (int64_t pair = 0; pair < pairs(); pair++) ends[experts_[pair]]++;
        int64_t active = 0, total = 0;
        for (int64_t expert = 0; expert < mixture_.num_experts; expert++) {
            const int64_t count = ends[expert];
            ends[expert] = total;
            if (count == 0) continue;
            first_[active] = mixture_.gate_up[expert];
            second_[active] = mixture_.down[expert];
            offsets_[active++] = total;
            total += count;
        }
        offsets_[active] = total;
        for (int64_t pair = 0; pair < pairs(); pair++) {
            const int64_t place = places_[pair] = ends[experts_[pair]]++;
            rows_[place] = pair / mixture_.choices;
        }
        work_.num_active = active;
    }

    int64_t pairs() const { return x_.m * mixture_.choices; }
    OrcaGroups first() const { return {first_, offsets_, rows_, work_.num_active}; }
    OrcaGroups second() const { return {second_, offsets_, nullptr, work_.num_active}; }
    OrcaTerms terms() const { return {places_, weights_, mixture_.choices}; }

    Rows inner() const { return rows_in(work_.inner, 2 * inner_width(mixture_)); }
    Rows gated() const { return rows_in(work_.gated, inner_width(mixture_)); }
    Rows outer() const { return rows_in(work_.outer, mixture_.down[0]->n); }

  private:
    Rows rows_in(Scratch& memory, int64_t width) const { return {memory.get<char>(0), pairs(), width, x_.format}; }

    const OrcaMixture& mixture_;
    const Rows& x_;
    MixtureWork& work_;
    int64_t* const experts_;  // [rows, choices]
    float* const weights_;
    int64_t* const places_;   // the pair of each choice
    int64_t* const rows_;     // the row of each pair
    int64_t* const offsets_;  // where the pairs of each active expert begin
    const Linear** const first_;
    const Linear** const second_;
};

}  // namespace

void MixtureWork::reserve(const OrcaMixture& mixture, int64_t m, int32_t format) {
    const int64_t pairs = m * mixture.choices, size = bytes_of(format), width = inner_width(mixture);
    scores.get<char>(m * mixture.num_experts * size);
    experts.get<int64_t>(pairs);
    weights.get<float>(pairs);
    places.get<int64_t>(pairs);
    rows.get<int64_t>(pairs);
    offsets.get<int64_t>(2 * mixture.num_experts + 1);
    first.get<const Linear*>(mixture.num_experts);
    second.get<const Linear*>(mixture.num_experts);
    inner.get<char>(pairs * 2 * width * size);
    gated.get<char>(pairs * width * size);
    outer.get<char>(pairs * mixture.down[0]->n * size);
}

void mixture_team(
    const OrcaMixture& mixture, const Rows& x, const Rows& y, LinearWork& linear, MixtureWork& work, Team& team,
    int thread) {
    Mixing mixing(mixture, x, work);
    linear_team(*mixture.router, x, mixing.scores(), linear, team, thread);
    for (Stage stage = Stage::of_threads(team, thread); stage.take();) {
        mixing.choose_rows(share(x.m, stage.piece(), team.size()));
    }
    for (Stage stage = Stage::queue(team, thread, 1); stage.take();) mixing.route();
    grouped_linear_team(mixing.first(), x, mixing.inner(), team, thread);
    const Rows gate = mixing.inner(), gated = mixing.gated();
    const Rows up{static_cast<char*>(gate.data) + inner_width(mixture) * bytes_of(x.format), gate.m, gate.stride, gate.format};
    for (Stage stage = Stage::of_threads(team, thread); stage.take();) {
        const int part = static_cast<int>(stage.piece());
        gated_team(gate, up, gated, inner_width(mixture), mixture.activation, part, team.size());
    }
    grouped_linear_team(mixing.second(), gated, mixing.outer(), team, thread);
    for (Stage stage = Stage::of_threads(team, thread); stage.take();) {
        const int part = static_cast<int>(stage.piece());
        combine_team(mixing.outer(), mixing.terms(), y, mixture.down[0]->n, part, team.size());
    }
}

}  // namespace orca
