#include "mlp.h"

#include <algorithm>

#include "activation.h"
#include "linear_part.h"
#include "linear_vector.h"
#include "mlp_amx.h"

namespace orca {
namespace {

constexpr int64_t KEPT_BYTES = 1 << 16;  // of gates that wait for their up values: a small part of a second-level cache

// The columns of a gated MLP, as its second linear layer reads them.
template <class Dot> class Gating {
  public:
    using T = typename Dot::Row;

    Gating(const Mlp& mlp, const PackedRows<Dot>& x, PackedRows<Dot>& gated, const Part& part)
        : mlp_(mlp),
          x_(x),
          gated_(gated),
          blocks_(part.rows),
          columns_(part.columns),
          half_(mlp.down->k / PANEL),
          first_row_(x.rows(part.rows.begin).begin),
          num_rows_(x.rows(part.rows.end - 1).end - first_row_) {}

    void compute() {
        static thread_local Scratch memory;
        const int64_t fitting = KEPT_BYTES / (num_rows_ * PANEL * static_cast<int64_t>(sizeof(T)));
        const int64_t most = std::clamp<int64_t>(fitting, 1, columns_.end - columns_.begin);
        gates_ = memory.get<T>(most * num_rows_ * PANEL);
        PanelProducts<Dot> products(*mlp_.gate_up, x_, blocks_);
        for (int64_t first = columns_.begin; first < columns_.end; first += most) {
            compute({first, std::min(first + most, columns_.end)}, products);
        }
    }

  private:
    // Few panels, or few rows, at a time: weights are read sequentially, and gates are still in the cache.
    void compute(Range panels, PanelProducts<Dot>& products) {
        for (int64_t panel = panels.begin; panel < panels.end; panel++) {
            const int64_t next = panel + 1 < panels.end ? panel + 1 : half_ + panels.begin;
            products.times(panel, next, [&](Range rows, const float* sums) {
                store_rows(panel, sums, rows, gates(panel - panels.begin, rows));
            });
        }
        for (int64_t panel = panels.begin; panel < panels.end; panel++) {
            const int64_t behind = panels.end < columns_.end ? panels.end : -1;
            const int64_t next = panel + 1 < panels.end ? half_ + panel + 1 : behind;
            products.times(half_ + panel, next, [&](Range rows, const float* sums) {
                alignas(64) T values[MOST_ROWS * PANEL];
                store_rows(half_ + panel, sums, rows, values);
                const T* opening = gates(panel - panels.begin, rows);
                gated_row(opening, values, values, (rows.end - rows.begin) * PANEL, mlp_.activation);
                gated_.put(rows, panel * PANEL, values);
            });
        }
    }

    T* gates(int64_t kept, Range rows) const {
        return gates_ + (kept * num_rows_ + rows.begin - first_row_) * PANEL;
    }

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
    const Range blocks_, columns_;
    const int64_t half_, first_row_, num_rows_;
    T* gates_ = nullptr;
};

template <class Dot>
void mlp_by_vectors(
    const Mlp& mlp, const Rows& x, const Rows& y, LinearWork& outer, LinearWork& inner, Team& team, int thread) {
    const Rows nowhere{nullptr, x.m, mlp.down->k, x.format};
    PackedRows<Dot> packed(*mlp.gate_up, x, outer), gated(*mlp.down, nowhere, inner);
    packed.pack(thread, team.size);
    team.barrier();
    const Part opened = part_of(x.m, packed.blocks(), mlp.down->k / PANEL, thread, team.size);
    if (!opened.empty()) Gating<Dot>(mlp, packed, gated, opened).compute();
    team.barrier();
    const Part part = part_of(x.m, gated.blocks(), panels(mlp.down->n), thread, team.size);
    if (!part.empty()) blocks_times_panels(*mlp.down, gated, y, part.rows, part.columns);
}

#ifdef __AMX_BF16__
template <int32_t FORMAT>
void mlp_by_tiles(const Mlp& mlp, const Rows& x, const Rows& y, LinearWork& inner, Team& team, int thread) {
    TiledMlp<FORMAT> tiled(mlp, x, y, inner, thread, team.size);
    tiled.open();
    team.barrier();
    tiled.close();
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
