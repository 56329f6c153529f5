// Linear layers by tiles (AMX): 32 rows times one panel, or up to 16 rows times two, four tiles of sums.
//
// More than 16 rows: a part of each panel's depth stays in the first-level cache while all rows pass, and the sums are
// loaded and stored instead. Rows are loaded from the second-level cache without occupying the first one. Each weight is
// read from memory once per `BLOCK_ROWS` rows. Fewer: the speed of reading weights from memory decides, which is higher with
// two panels at a time, because the processor prefetches in each of them. Compact panels are unpacked ahead of the products.

#pragma once

#ifdef __AMX_BF16__

#include <algorithm>
#include <cstring>

#include "amx.h"
#include "compact_tiles.h"
#include "fetch.h"
#include "linear_int8.h"
#include "linear_part.h"
#include "linear_store.h"
#include "stage.h"
#include "team.h"
#include "tile_products.h"
#include "tiled_rows.h"

namespace orca {

constexpr int64_t SUMS_BYTES = 1 << 20;  // of sums that wait for the next chunk
constexpr int64_t FEW_PANELS = 16;       // of few rows, before those that belong to them
constexpr int64_t NEAR_STEPS = 12;       // of a panel that stay in the first-level cache, at most
constexpr int64_t FEW_NEAR_STEPS = 4;    // the same, where memory is waited for: the next ones stay there, too

// Memory of this thread for unpacked panels, valid until its next call.
inline char* unpacked_memory(int64_t bytes) {
    static thread_local Scratch memory;
    return memory.get<char>(bytes);
}

// A block of rows times ranges of panels.
template <int32_t FORMAT> class TiledProduct {
  public:
    TiledProduct(const Linear& linear, const TiledRows& x)
        : linear_(linear),
          x_(x),
          weight_(static_cast<const char*>(linear.weight)),
          width_(panel_bytes(linear.format, linear.k)),
          many_(x.size() > kTileRows),
          near_(x.groups() < MANY_GROUPS ? FEW_NEAR_STEPS : NEAR_STEPS) {
        const int64_t fitting = SUMS_BYTES / (x.groups() * GROUP_SUMS * static_cast<int64_t>(sizeof(float)));
        at_once_ = x.chunk() == x.steps() ? (many_ ? 1 : 2) : std::max<int64_t>(fitting, 2);
        if (FORMAT == COMPACT_BF16 && many_) unpacking_ = unpacked_memory(2 * near_ * PANEL_STEP);
    }

    // How many panels it is best to compute before others.
    int64_t at_once() const { return x_.groups() >= MANY_GROUPS ? at_once_ : std::max(at_once_, FEW_PANELS); }

    // Call `store(group, panel, sums)` for each group and panel, sums [rows][PANEL], panels in order. Meanwhile `then`, the
    // next panel after these (-1: none), is prefetched.
    template <class Store> void compute(Range columns, int64_t then, Store store) {
        static thread_local Scratch memory;
        const int64_t panel_sums = x_.groups() * GROUP_SUMS, width = many_ ? 1 : 2;
        float* both = memory.get<float>(2 * at_once_ * panel_sums);
        for (int64_t first = columns.begin; first < columns.end; first += at_once_) {
            const Range panels{first, std::min(first + at_once_, columns.end)};
            float* sums = both + (first - columns.begin) / at_once_ % 2 * at_once_ * panel_sums;
            const int64_t behind = panels.end < columns.end ? panels.end : then;
            for (int64_t begin = 0; begin < x_.steps(); begin += x_.chunk()) {
                const Range chunk{begin, std::min(begin + x_.chunk(), x_.steps())};
                for (int64_t panel = panels.begin; panel < panels.end; panel += width) {
                    const Range own{panel, std::min(panel + width, panels.end)};
                    const Piece next = after(panels, own.end, chunk, behind);
                    float* place = sums + (panel - first) * panel_sums;
                    many_ ? multiply_many({panel, chunk}, next, place, store) : multiply_few(own, chunk, next, place, store);
                }
            }
        }
        store_later({}, store);
    }

  private:
    static constexpr int32_t KERNEL = FORMAT == COMPACT_BF16 ? BF16 : FORMAT;

    // Steps of a panel (-1: none).
    struct Piece {
        int64_t panel;
        Range steps;
    };

    struct Sums {
        Range panels;
        Range groups;
        float* first;
    };

    // A part of a panel stays in the first-level cache while all groups pass, and the next part is made ready meanwhile.
    template <class Store> void multiply_many(Piece piece, Piece then, float* sums, Store& store) {
        const int64_t parts = parts_of(piece.steps);
        for (int64_t index = 0; index < parts; index++) {
            const Range steps = part(piece.steps, index);
            const bool is_last = steps.end == x_.steps();
            const Piece next = index + 1 < parts ? Piece{piece.panel, part(piece.steps, index + 1)}
                                                 : Piece{then.panel, part(then.steps, 0)};
            const char* weight = ready({piece.panel, steps});
            auto ahead = making_ready(next, steps.end - steps.begin);
            for (int64_t group = 0; group < x_.groups(); group++) {
                float* own = sums + group * GROUP_SUMS;
                float* to = is_last ? last_[turn_ ^= 1] : own;
                multiply(group, steps, weight, steps.begin == 0 ? nullptr : own, ahead, to);
                if (is_last) store_later({{piece.panel, piece.panel + 1}, {group, group + 1}, to}, store);
            }
            if constexpr (FORMAT == COMPACT_BF16) {
                ahead.finish();
                unpacked_ = next;
                which_ ^= 1;
            }
        }
    }

    int64_t parts_of(Range steps) const { return (steps.end - steps.begin + near_ - 1) / near_; }

    Range part(Range steps, int64_t index) const {
        const Range own = share(steps.end - steps.begin, index, parts_of(steps));
        return {steps.begin + own.begin, steps.begin + own.end};
    }

    // The tiles of a piece that may have been made ready.
    const char* ready(Piece piece) {
        if constexpr (FORMAT == COMPACT_BF16) {
            if (unpacked_.panel != piece.panel || unpacked_.steps.begin != piece.steps.begin) {
                UnpackingSteps(linear_, piece.panel, piece.steps, 1, near(which_)).finish();
            }
            return near(which_);
        } else {
            return address(piece.panel, piece.steps.begin);
        }
    }

    // What makes a piece ready while all groups pass some steps of another one.
    auto making_ready(Piece piece, int64_t steps) {
        const int64_t calls = steps * x_.groups();
        const bool none = piece.panel < 0;
        if constexpr (FORMAT == COMPACT_BF16) {
            return UnpackingSteps(linear_, none ? 0 : piece.panel, none ? Range{0, 0} : piece.steps, calls, near(which_ ^ 1));
        } else {
            if (none) return Fetch{weight_, weight_, 0};
            const int64_t lines = (STEP_LINES + x_.groups() - 1) / x_.groups();
            return Fetch{address(piece.panel, piece.steps.begin), address(piece.panel, piece.steps.end), lines};
        }
    }

    char* near(int which) const { return unpacking_ + which * near_ * PANEL_STEP; }

    template <class Ahead>
    void multiply(int64_t group, Range steps, const char* weight, const float* from, Ahead& ahead, float* to) {
        const Group x = x_.group(group, steps.begin);
        if (x_.rows_of(group) <= kTileRows) {
            tiles_times_panel<KERNEL, false>(x, weight, steps.end - steps.begin, from, ahead, to);
        } else {
            tiles_times_panel<KERNEL, true>(x, weight, steps.end - steps.begin, from, ahead, to);
        }
    }

    template <class Store> void multiply_few(Range panels, Range chunk, Piece next, float* sums, Store& store) {
        if (panels.end - panels.begin == 2) {
            multiply_few<true>(panels.begin, chunk, next, sums);
        } else {
            multiply_few<false>(panels.begin, chunk, next, sums);
        }
        if (chunk.end == x_.steps()) store_later({panels, {0, 1}, sums}, store);
    }

    template <bool TWO> void multiply_few(int64_t panel, Range chunk, [[maybe_unused]] Piece next, float* sums) {
        const Group x = x_.group(0, chunk.begin);
        const int64_t steps = chunk.end - chunk.begin;
        const PanelPair own{address(panel, chunk.begin), TWO ? width_ : 0};
        if constexpr (FORMAT == COMPACT_BF16) {
            const PanelPair then = next.panel < 0 ? own : PanelPair{address(next.panel, next.steps.begin), width_};
            char* memory = unpacked_memory(2 * UnpackedPanels<TWO>::APART);
            const UnpackedPanels<TWO> panels(linear_, panel, chunk, then, memory);
            tile_times_panels<KERNEL, TWO>(x, panels, steps, chunk.begin == 0, sums, GROUP_SUMS);
        } else {
            tile_times_panels<KERNEL, TWO>(x, ColdPanels{own}, steps, chunk.begin == 0, sums, GROUP_SUMS);
        }
    }

    const char* address(int64_t panel, int64_t step) const {
        const char* start = weight_ + panel * width_;
        return FORMAT == COMPACT_BF16 ? start + COMPACT_HEAD + step * COMPACT_STEP : start + step * PANEL_STEP;
    }

    // Sums, [panels][groups][32][PANEL], wait for the next ones: a read of memory to which a tile was just stored stalls, and
    // nothing is requested from memory meanwhile.
    template <class Store> void store_later(Sums sums, Store& store) {
        float* from = waiting_.first;
        for (int64_t panel = waiting_.panels.begin; panel < waiting_.panels.end; panel++) {
            for (int64_t group = waiting_.groups.begin; group < waiting_.groups.end; group++, from += GROUP_SUMS) {
                store(group, panel, from);
            }
        }
        waiting_ = sums;
    }

    // What is computed after that chunk of the panels before `panel`.
    Piece after(Range panels, int64_t panel, Range chunk, int64_t behind) const {
        if (panel < panels.end) return {panel, chunk};
        if (chunk.end < x_.steps()) {
            return {panels.begin, {chunk.end, std::min(chunk.end + x_.chunk(), x_.steps())}};
        }
        return {behind, {0, x_.chunk()}};
    }

    const Linear& linear_;
    const TiledRows& x_;
    const char* const weight_;
    const int64_t width_;
    const bool many_;
    const int64_t near_;  // steps of a panel that all rows pass at a time
    int64_t at_once_;
    Sums waiting_{};
    alignas(64) float last_[2][GROUP_SUMS];
    int turn_ = 0;
    Piece unpacked_{-1, {0, 0}};
    int which_ = 0;  // part of `unpacking_` has it
    char* unpacking_ = nullptr;
};

// Stores a block of rows of sums to y. `x_scales` are those of the block's rows, for INT8.
template <int32_t FORMAT> class StoredRows {
  public:
    StoredRows(const Linear& linear, const TiledRows& x, const Rows& y, const float* x_scales)
        : linear_(linear), x_(x), y_(y), x_scales_(x_scales) {}

    void operator()(int64_t group, int64_t panel, float* sums) const {
        for (int64_t row = 0; row < x_.rows_of(group); row++, sums += PANEL) {
            if constexpr (FORMAT == INT8) {
                scale_row<int32_t>(linear_, panel, 0, x_scales_[group * GROUP_ROWS + row], sums);
            }
            store_row(linear_, panel, sums, y_.format, place_of(y_, x_.range().begin + group * GROUP_ROWS + row, panel));
        }
    }

  private:
    const Linear& linear_;
    const TiledRows& x_;
    const Rows& y_;
    const float* const x_scales_;
};

// The same for few rows, via a buffer that stays in the cache: stores to many scattered lines would delay the weights that
// are being loaded. Each row gets its part of several panels in one piece.
template <int32_t FORMAT> class GatheredRows {
  public:
    GatheredRows(const Linear& linear, const TiledRows& x, const Rows& y, Range columns, const float* x_scales)
        : linear_(linear),
          x_(x),
          y_(y),
          columns_(columns),
          x_scales_(x_scales),
          line_(PANEL * (y.format == BF16 ? sizeof(bf16) : sizeof(float))) {
        static thread_local Scratch memory;
        lines_ = memory.get<char>(MOST_PANELS * x.size() * line_);
    }

    void operator()(int64_t group, int64_t panel, float* sums) const {
        const int64_t first = group * GROUP_ROWS, index = (panel - columns_.begin) % MOST_PANELS;
        for (int64_t row = first; row < first + x_.rows_of(group); row++, sums += PANEL) {
            if constexpr (FORMAT == INT8) scale_row<int32_t>(linear_, panel, 0, x_scales_[row], sums);
            store_row(linear_, panel, sums, y_.format, lines_ + (index * x_.size() + row) * line_);
        }
        const bool is_last = index + 1 == MOST_PANELS || panel + 1 == columns_.end;
        if (is_last && group + 1 == x_.groups()) write({panel - index, panel + 1});
    }

  private:
    static constexpr int64_t MOST_PANELS = 64;

    void write(Range panels) const {
        const int64_t whole = std::min(panels.end, linear_.n / PANEL) - panels.begin;
        for (int64_t row = 0; row < x_.size(); row++) {
            const char* from = lines_ + row * line_;
            char* to = place_of(y_, x_.range().begin + row, panels.begin);
            for (int64_t panel = 0; panel < whole; panel++, from += x_.size() * line_, to += line_) {
                for (int64_t at = 0; at < line_; at += 64) std::memcpy(to + at, from + at, 64);
            }
            if (whole < panels.end - panels.begin) std::memcpy(to, from, linear_.n % PANEL * line_ / PANEL);
        }
    }

    const Linear& linear_;
    const TiledRows& x_;
    const Rows& y_;
    const Range columns_;
    const float* const x_scales_;
    const int64_t line_;  // bytes of a row of a panel
    char* lines_;         // [MOST_PANELS][rows] of them
};

// Write a block of rows times a range of panels to y.
template <int32_t FORMAT>
void block_times_panels(
    const Linear& linear, const TiledRows& x, const Rows& y, Range columns, const float* x_scales = nullptr) {
    TiledProduct<FORMAT> product(linear, x);
    if (x.groups() < MANY_GROUPS) {
        product.compute(columns, -1, GatheredRows<FORMAT>(linear, x, y, columns, x_scales));
    } else {
        product.compute(columns, -1, StoredRows<FORMAT>(linear, x, y, x_scales));
    }
}

// Each thread packs the rows that it reads: rows packed by another thread would come from that one's cache.
template <int32_t FORMAT>
void block_by_tiles(const Linear& linear, const Rows& x, const Rows& y, Range rows, Range columns) {
    static thread_local Scratch memory;
    const TileRegisters configured(shapes_of(rows.end - rows.begin));
    const int64_t steps = depth_steps(linear), bytes = steps * TILE_BYTES;
    TiledRows packed(memory.get<char>(TiledRows::bytes(rows.end - rows.begin, steps)), rows, steps);
    if constexpr (FORMAT == INT8) {
        const Quantized rounded = quantize_rows(x, rows, bytes, 0, linear.k);
        packed.pack(reinterpret_cast<const char*>(rounded.values), bytes, bytes);
        block_times_panels<INT8>(linear, packed, y, columns, rounded.scales);
    } else {
        packed.pack(x, linear.k);
        block_times_panels<FORMAT>(linear, packed, y, columns);
    }
}

// Any number of rows, block by block.
template <int32_t FORMAT>
void rows_by_tiles(const Linear& linear, const Rows& x, const Rows& y, Range rows, Range columns) {
    const int64_t size = rows.end - rows.begin, blocks = (size + BLOCK_ROWS - 1) / BLOCK_ROWS;
    for (int64_t index = 0; index < blocks; index++) {
        const Range block = share(size, index, blocks);
        block_by_tiles<FORMAT>(linear, x, y, {rows.begin + block.begin, rows.begin + block.end}, columns);
    }
}

template <int32_t FORMAT>
void linear_by_tiles(const Linear& linear, const Rows& x, const Rows& y, Team& team, int thread) {
    for (Stage stage = Stage::of_threads(team, thread); stage.take();) {
        const Part part = part_of(x.m, x.m, panels(linear.n), stage.piece(), team.size());
        if (!part.empty()) rows_by_tiles<FORMAT>(linear, x, y, part.rows, part.columns);
    }
}

}  // namespace orca

#endif
