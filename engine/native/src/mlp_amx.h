// Gated MLPs by tiles (AMX): the output of the first layer is packed for the second one as it is computed.

#pragma once

#ifdef __AMX_BF16__

#include "activation.h"
#include "linear_amx.h"
#include "mlp.h"

namespace orca {

template <int32_t FORMAT> class TiledMlp {
  public:
    TiledMlp(const Mlp& mlp, const Rows& x, const Rows& y, LinearWork& inner, int64_t thread, int threads)
        : mlp_(mlp),
          x_(x),
          y_(y),
          gated_(inner.values.get<char>(0)),
          half_(mlp.down->k / PANEL),
          groups_((x.m + GROUP_ROWS - 1) / GROUP_ROWS) {
        const int64_t sharing =
            std::max(row_groups(x.m, half_, threads), row_groups(x.m, panels(mlp.down->n), threads));
        blocks_ = sharing * ((x.m + sharing * BLOCK_ROWS - 1) / (sharing * BLOCK_ROWS));
        opened_ = part_of(x.m, blocks_, half_, thread, threads);
        closed_ = part_of(x.m, blocks_, panels(mlp.down->n), thread, threads);
    }

    // One thread's share of the first layer, all of which must be complete before the second.
    void open() {
        if (opened_.empty()) return;
        for (int64_t index = opened_.rows.begin; index < opened_.rows.end; index++) open(rows(index));
    }

    void close() {
        if (closed_.empty()) return;
        for (int64_t index = closed_.rows.begin; index < closed_.rows.end; index++) close(rows(index));
    }

  private:
    Range rows(int64_t block) const {
        const Range groups = share(groups_, block, blocks_);
        return {groups.begin * GROUP_ROWS, std::min(groups.end * GROUP_ROWS, x_.m)};
    }

    TiledRows gated(Range rows) const {
        const int64_t steps = depth_steps(*mlp_.down);
        return {gated_ + rows.begin * steps * TILE_BYTES, rows, steps};
    }

    void open(Range rows) {
        static thread_local Scratch x_memory, gate_memory;
        const TileRegisters configured(shapes_of(rows.end - rows.begin));
        const int64_t steps = depth_steps(*mlp_.gate_up);
        TiledRows x(x_memory.get<char>(TiledRows::bytes(rows.end - rows.begin, steps)), rows, steps);
        x.pack(x_, mlp_.gate_up->k);
        TiledRows gated = this->gated(rows);
        if (opened_.columns.begin == 0) gated.clear();
        TiledProduct<FORMAT> product(*mlp_.gate_up, x);
        const int64_t most = product.at_once(), panel_values = x.groups() * GROUP_SUMS;
        bf16* gates = gate_memory.get<bf16>(most * panel_values);
        for (int64_t first = opened_.columns.begin; first < opened_.columns.end; first += most) {
            const Range gate{first, std::min(first + most, opened_.columns.end)};
            const Range up{half_ + gate.begin, half_ + gate.end};
            const auto place = [&](int64_t group, int64_t panel) {
                return gates + (panel - first) * panel_values + group * GROUP_SUMS;
            };
            product.compute(gate, up.begin, [&](int64_t group, int64_t panel, const float* sums) {
                store_rows(x.rows_of(group), panel, sums, place(group, panel));
            });
            const int64_t then = gate.end < opened_.columns.end ? gate.end : -1;
            product.compute(up, then, [&](int64_t group, int64_t panel, const float* sums) {
                bf16 values[GROUP_SUMS];
                const int64_t count = x.rows_of(group);
                store_rows(count, panel, sums, values);
                // A row of a panel is a row of a tile.
                bf16* to = reinterpret_cast<bf16*>(gated.line(group * GROUP_ROWS, panel - half_));
                gated_row(place(group, panel - half_), values, to, count * PANEL, mlp_.activation);
            });
        }
    }

    void close(Range rows) {
        const TileRegisters configured(shapes_of(rows.end - rows.begin));
        block_times_panels<FORMAT>(*mlp_.down, gated(rows), y_, closed_.columns);
    }

    // [count][PANEL], rounded as in y.
    void store_rows(int64_t count, int64_t panel, const float* sums, bf16* to) const {
        for (int64_t row = 0; row < count; row++) {
            store_row(*mlp_.gate_up, panel, sums + row * PANEL, BF16, to + row * PANEL);
        }
    }

    const Mlp& mlp_;
    const Rows& x_;
    const Rows& y_;
    char* const gated_;
    const int64_t half_, groups_;
    int64_t blocks_;
    Part opened_, closed_;
};

}  // namespace orca

#endif
