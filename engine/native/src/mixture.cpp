// A mixture of experts.

#include "mixture.h"

#include <algorithm>

#include "choose.h"
#include "gate.h"
#include "grouped.h"
#include "number.h"
#include "stage.h"
#include "vector.h"

namespace orca {
namespace {

int64_t inner_width(const OrcaMixture& mixture) { return mixture.down[0]->k; }

// A router in F32 takes rows of any format.
bool widens(const OrcaMixture& mixture, int32_t format) { return mixture.router->format == F32 && format != F32; }

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

    Rows scores() const {
        return {work_.scores.get<char>(0), x_.m, mixture_.routing.num_experts, mixture_.score_format};
    }

    // The rows as the router takes them.
    Rows routed() const {
        if (!widens(mixture_, x_.format)) return x_;
        return {work_.wide.get<char>(0), x_.m, mixture_.router->k, F32};
    }

    void widen_rows(Range range) {
        for (int64_t row = range.begin; row < range.end; row++) {
            const bf16* from = static_cast<const bf16*>(x_.data) + row * x_.stride;
            float* to = work_.wide.get<float>(0) + row * mixture_.router->k;
            for (int64_t i = 0; i < mixture_.router->k; i += kLanes) {
                const int64_t count = std::min<int64_t>(mixture_.router->k - i, kLanes);
                put_numbers(to + i, take_numbers(from + i, count), count);
            }
        }
    }

    void choose_rows(Range range) {
        const Rows all = scores();
        for (int64_t row = range.begin; row < range.end; row++) {
            const int64_t at = row * mixture_.routing.choices;
            const char* from = static_cast<const char*>(all.data) + row * all.stride * bytes_of(all.format);
            choose(mixture_.routing, from, all.format, experts_ + at, weights_ + at);
        }
    }

    // Sort the pairs of rows and experts by expert, by one thread.
    void route() {
        int64_t* ends = offsets_ + 1 + mixture_.routing.num_experts;  // [num_experts]: where the next pair of each goes
        std::fill_n(ends, mixture_.routing.num_experts, 0);
        for (int64_t pair = 0; pair < pairs(); pair++) ends[experts_[pair]]++;
        int64_t active = 0, total = 0;
        for (int64_t expert = 0; expert < mixture_.routing.num_experts; expert++) {
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
            rows_[place] = pair / mixture_.routing.choices;
        }
        work_.num_active = active;
    }

    int64_t pairs() const { return x_.m * mixture_.routing.choices; }
    OrcaGroups first() const { return {first_, offsets_, rows_, work_.num_active}; }
    OrcaGroups second() const { return {second_, offsets_, nullptr, work_.num_active}; }
    OrcaTerms terms() const { return {places_, weights_, mixture_.routing.choices}; }

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
    const int64_t pairs = m * mixture.routing.choices, size = bytes_of(format), width = inner_width(mixture);
    if (widens(mixture, format)) wide.get<float>(m * mixture.router->k);
    scores.get<char>(m * mixture.routing.num_experts * bytes_of(mixture.score_format));
    experts.get<int64_t>(pairs);
    weights.get<float>(pairs);
    places.get<int64_t>(pairs);
    rows.get<int64_t>(pairs);
    offsets.get<int64_t>(2 * mixture.routing.num_experts + 1);
    first.get<const Linear*>(mixture.routing.num_experts);
    second.get<const Linear*>(mixture.routing.num_experts);
    inner.get<char>(pairs * 2 * width * size);
    gated.get<char>(pairs * width * size);
    outer.get<char>(pairs * mixture.down[0]->n * size);
    shared.reserve(mixture.shared, m, format);
}

void mixture_team(
    const OrcaMixture& mixture, const Rows& x, const Rows& y, LinearWork& linear, MixtureWork& work, Team& team,
    int thread) {
    Mixing mixing(mixture, x, work);
    if (widens(mixture, x.format)) {
        for (Stage stage = Stage::of_threads(team, thread); stage.take();) {
            mixing.widen_rows(share(x.m, stage.piece(), team.size()));
        }
    }
    linear_team(*mixture.router, mixing.routed(), mixing.scores(), linear, team, thread);
    for (Stage stage = Stage::of_threads(team, thread); stage.take();) {
        mixing.choose_rows(share(x.m, stage.piece(), team.size()));
    }
    for (Stage stage = Stage::queue(team, thread, 1); stage.take();) mixing.route();
    grouped_linear_team(mixing.first(), x, mixing.inner(), team, thread);
    const Rows gate = mixing.inner(), gated = mixing.gated();
    const Rows up{static_cast<char*>(gate.data) + inner_width(mixture) * bytes_of(x.format), gate.m, gate.stride, gate.format};
    for (Stage stage = Stage::of_threads(team, thread); stage.take();) {
        const int part = static_cast<int>(stage.piece());
        gate_team(mixture.gate, gate, up, gated, inner_width(mixture), part, team.size());
    }
    grouped_linear_team(mixing.second(), gated, mixing.outer(), team, thread);
    shared_expert_team(mixture.shared, x, work.shared, team, thread);
    for (Stage stage = Stage::of_threads(team, thread); stage.take();) {
        const int part = static_cast<int>(stage.piece());
        combine_team(mixing.outer(), mixing.terms(), y, mixture.down[0]->n, part, team.size());
        add_shared_expert(mixture.shared, work.shared, y, part, team.size());
    }
}

}  // namespace orca

extern "C" void orca_mixture(const OrcaMixture* mixture, const orca::Rows* x, const orca::Rows* y, int threads) {
    thread_local orca::LinearWork linear_memory;
    thread_local orca::MixtureWork mixture_memory;
    orca::LinearWork& linear = linear_memory;
    orca::MixtureWork& work = mixture_memory;
    linear.reserve(*mixture->router, x->m);
    work.reserve(*mixture, x->m, x->format);
    orca::run_team(
        threads, [&](orca::Team& team, int thread) { mixture_team(*mixture, *x, *y, linear, work, team, thread); });
}
