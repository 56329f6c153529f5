#include "mlp.h"

#include <algorithm>

#include "activation.h"
#include "linear_part.h"
#include "linear_vector.h"
#include "mlp_amx.h"
#include "stage.h"

namespace orca {
namespace {

// The columns of a gated MLP, as its second linear layer reads them.
template <class Dot> class Gating {
  public:
    using T = typename Dot::Row;

    Gating(const Mlp& mlp, const PackedRows<Dot>& x, PackedRows<Dot>& gated) : mlp_(mlp), x_(x), gated_(gated) {}

    void compute(Team& team, int thread) {
        static thread_local Scratch memory;
        const int64_t half = mlp_.down->k / PANEL, groups = shared_row_groups(x_.m(), half, team.size());
        const Range blocks = share(x_.blocks(), thread % groups, groups);
        const int64_t first_row = x_.rows(blocks.begin).begin;
        T* gates = memory.get<T>((x_.rows(blocks.end - 1).end - first_row) * PANEL);
        PanelProducts<Dot> products(*mlp_.gate_up, x_, blocks);
        for (Stage stage(team, thread, {half, groups}); stage.take();) {
            stage.offer();
            const int64_t panel = stage.piece();
            products.times(panel, half + panel, [&](Range rows, const float* sums) {
                store_rows(panel, sums, rows, gates + (rows.begin - first_row) * PANEL);
                return true;
            });
            products.times(half + panel, stage.next(), [&](Range rows, const float* sums) {
                if (!stage.claim()) return false;
                alignas(64) T values[MOST_ROWS * PANEL];
                store_rows(half + panel, sums, rows, values);
                const T* opening = gates + (rows.begin - first_row) * PANEL;
                gated_row(opening, values, values, (rows.end - rows.begin) * PANEL, mlp_.activation);
                gated_.put(rows, panel * PANEL, values);
                return true;
            });
        }
    }

  private:
    // [rows][PANEL], rounded as in y.
    void store_rows(int64_t panel, const float* sums, Range rows, T* to) const {
        constexpr int32_t FORMAT = sizeof(T) == sizeof(float) ? F32 : BF16;
        for (int64_t row = rows.begin; row < rows.end; row++, sums += PANEL, to += PANEL) {
            store_row(*mlp_.gate_up, panel, sums, FORMAT, to);
        }
    }

    const Mlp& mlp_;
    const PackedRows<Dot>& x_;
    PackedRows<Dot>& gated_;
};

template <class Dot>
void mlp_by_vectors(
    const Mlp& mlp, const Rows& x, const Rows& y, LinearWork& outer, LinearWork& inner, Team& team, int thread) {
    const Rows nowhere{nullptr, x.m, mlp.down->k, x.format};
    PackedRows<Dot> packed(*mlp.gate_up, x, outer), gated(*mlp.down, nowhere, inner);
    packed.pack(team, thread);
    Gating<Dot>(mlp, packed, gated).compute(team, thread);
    rows_times_panels(*mlp.down, gated, y, team, thread);
}

#ifdef __AMX_BF16__
template <int32_t FORMAT>
void mlp_by_tiles(const Mlp& mlp, const Rows& x, const Rows& y, LinearWork& inner, Team& team, int thread) {
    const auto part = [&](int64_t index) { return TiledMlp<FORMAT>(mlp, x, y, inner, index, team.size()); };
    for (Stage stage = Stage::of_threads(team, thread); stage.take();) part(stage.piece()).open();
    for (Stage stage = Stage::of_threads(team, thread); stage.take();) part(stage.piece()).close();
}
#endif

}  // namespace

bool Mlp::fits(int64_t m) const {
    return m > 0 && gate_up->format == down->format && down->format != INT8 && down->k % PANEL == 0;
}

void mlp_team(
    const Mlp& mlp, const Rows& x, const Rows& y, LinearWork& outer, LinearWork& inner, Team& team, int thread) {
#ifdef __AMX_BF16__
    if (mlp.down->format == COMPACT_BF16) return mlp_by_tiles<COMPACT_BF16>(mlp, x, y, inner, team, thread);
    if (!by_vectors(*mlp.down)) return mlp_by_tiles<BF16>(mlp, x, y, inner, team, thread);
#elif defined(ORCA_COMPACT)
    if (mlp.down->format == COMPACT_BF16) return mlp_by_vectors<CompactDot>(mlp, x, y, outer, inner, team, thread);
#endif
    if (mlp.down->format == F32) return mlp_by_vectors<FloatDot>(mlp, x, y, outer, inner, team, thread);
    mlp_by_vectors<BfloatDot>(mlp, x, y, outer, inner, team, thread);
}

}  // namespace orca

// Return whether the operator fits; if not, nothing was done.
extern "C" int orca_mlp(
    const orca::Linear* gate_up, const orca::Linear* down, const orca::Rows* x, const orca::Rows* y, int32_t activation,
    int threads) {
    const orca::Mlp mlp{gate_up, down, activation};
    if (!mlp.fits(x->m)) return 0;
    thread_local orca::LinearWork outer_memory, inner_memory;
    orca::LinearWork &outer = outer_memory, &inner = inner_memory;
    outer.reserve(*gate_up, x->m);
    inner.reserve(*down, x->m);
    orca::run_team(threads, [&](orca::Team& team, int thread) { mlp_team(mlp, *x, *y, outer, inner, team, thread); });
    return 1;
}
