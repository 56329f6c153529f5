// Linear layers by tiles (AMX): 32 rows times one panel, or up to 16 rows times two, four tiles of sums.
//
// Many rows: a part of each panel's depth stays in the first-level cache while all rows pass, and the sums are loaded and
// stored instead. Rows are loaded from the second-level cache without occupying the first one. Each weight is read from
// memory once per `BLOCK_ROWS` rows. Few rows: the speed of reading weights from memory decides, which is higher with two
// panels at a time, because the processor prefetches in each of them.

#pragma once

#ifdef __AMX_BF16__

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "amx.h"
#include "fetch.h"
#include "linear_int8.h"
#include "linear_part.h"
#include "linear_store.h"
#include "team.h"

namespace orca {

constexpr int64_t TILE_BYTES = 64;  // per row of a tile
constexpr int64_t TILE = kTileRows * TILE_BYTES;
constexpr int64_t GROUP_ROWS = 2 * kTileRows;
constexpr int64_t GROUP_SUMS = GROUP_ROWS * PANEL;
constexpr int64_t GROUP_LINES = 2 * TILE / 64;  // per step of a group, or of a panel
constexpr int64_t BLOCK_ROWS = 512;
constexpr int64_t CHUNK_BYTES = 1 << 20;  // of packed rows
constexpr int64_t SUMS_BYTES = 1 << 20;   // of sums that wait for the next chunk
constexpr int64_t NEAR_STEPS = 16;        // of a panel that stay in the first-level cache
constexpr int64_t MANY_GROUPS = 3;        // from this many on it pays off
constexpr int64_t FEW_PANELS = 16;        // of few rows, before those that belong to them
constexpr int64_t AHEAD_LINES = 10;       // of each of two panels that are prefetched before they are computed
constexpr int64_t FAR_LINES = 5;          // of the next two, for each step of rows whose panels are in the cache

inline int64_t depth_steps(const Linear& linear) { return panel_bytes(linear.format, linear.k) / (kTileRows * PANEL * 4); }

// The position of a group of rows, from some step on; distances in bytes.
struct Group {
    const char* rows;
    int64_t stride;  // between two rows
    int64_t step;    // to the next step
    int64_t below;   // to the lower 16 rows
};

// A block of rows as the kernels read them: [chunk of the depth][group of rows][step][2] tiles, or the rows in place. Up
// to 16 rows form tiles of that many rows.
class TiledRows {
  public:
    TiledRows(char* memory, Range rows, int64_t steps)
        : memory_(memory),
          range_(rows),
          steps_(steps),
          groups_((size() + GROUP_ROWS - 1) / GROUP_ROWS),
          step_bytes_(size() <= kTileRows ? size() * TILE_BYTES : 2 * TILE) {
        const int64_t fitting = CHUNK_BYTES / (groups_ * step_bytes_) / NEAR_STEPS * NEAR_STEPS;
        chunk_ = std::min(std::max(fitting, NEAR_STEPS), steps);
    }

    static int64_t bytes(int64_t rows, int64_t steps) {
        return (rows + GROUP_ROWS - 1) / GROUP_ROWS * steps * 2 * TILE;
    }

    // Pack the first k values of its rows of x, in BF16. Whole groups of many rows are read in place, if the tile unit can
    // read them there, and if they do not evict each other from the caches.
    void pack(const Rows& x, int64_t k) {
        const char* from = static_cast<const char*>(x.data) + range_.begin * x.stride * 2;
        const int64_t stride = x.stride * 2, row_bytes = k * 2;
        const bool apart = stride % 64 != 0 || stride / 64 % 8 != 0;
        if (groups_ < MANY_GROUPS || row_bytes % TILE_BYTES != 0 || !apart) return pack(from, stride, row_bytes);
        direct_ = from;
        direct_stride_ = stride;
        direct_groups_ = size() / GROUP_ROWS;
        pack(from, stride, row_bytes, direct_groups_ * GROUP_ROWS);
    }

    // Pack rows of `row_bytes`, padded with zeros, from row `first` on.
    void pack(const char* from, int64_t stride_bytes, int64_t row_bytes, int64_t first = 0) {
        const int64_t whole = row_bytes / TILE_BYTES;
        from += first * stride_bytes;
        for (int64_t row = first; row < size(); row++, from += stride_bytes) {
            for (int64_t begin = 0; begin < whole; begin += chunk_) {
                const char* x = from + begin * TILE_BYTES;
                char* to = line(row, begin);
                for (int64_t step = begin; step < std::min(begin + chunk_, whole); step++, x += TILE_BYTES, to += step_bytes_) {
                    _mm512_store_si512(to, _mm512_loadu_si512(x));
                }
            }
            if (whole == steps_) continue;
            char* last = line(row, whole);
            std::memset(last, 0, TILE_BYTES);
            std::memcpy(last, from + whole * TILE_BYTES, row_bytes - whole * TILE_BYTES);
        }
        clear();
    }

    // Clear the tiles' rows beyond the last row.
    void clear() {
        if (size() <= kTileRows) return;
        const int64_t end = (size() + kTileRows - 1) / kTileRows * kTileRows;
        for (int64_t row = size(); row < end; row++) {
            for (int64_t step = 0; step < steps_; step++) std::memset(line(row, step), 0, TILE_BYTES);
        }
    }

    // 64 bytes of a row of the block.
    char* line(int64_t row, int64_t step) const {
        return at(row / GROUP_ROWS, step) + row % GROUP_ROWS * TILE_BYTES;
    }

    // The group from a step to the end of its chunk.
    Group group(int64_t index, int64_t step) const {
        if (index >= direct_groups_) return {at(index, step), TILE_BYTES, step_bytes_, TILE};
        const char* rows = direct_ + index * GROUP_ROWS * direct_stride_ + step * TILE_BYTES;
        return {rows, direct_stride_, TILE_BYTES, kTileRows * direct_stride_};
    }

    Range range() const { return range_; }  // in x
    int64_t size() const { return range_.end - range_.begin; }
    int64_t steps() const { return steps_; }
    int64_t groups() const { return groups_; }
    int64_t chunk() const { return chunk_; }
    int64_t rows_of(int64_t group) const { return std::min(size() - group * GROUP_ROWS, GROUP_ROWS); }

  private:
    char* at(int64_t group, int64_t step) const {
        const int64_t begin = step / chunk_ * chunk_, length = std::min(chunk_, steps_ - begin);
        return memory_ + (begin * groups_ + group * length + step - begin) * step_bytes_;
    }

    char* const memory_;
    const Range range_;
    const int64_t steps_, groups_;
    const int64_t step_bytes_;  // few rows are not padded, so that they stay in the first-level cache
    int64_t chunk_;
    const char* direct_ = nullptr;
    int64_t direct_stride_ = 0, direct_groups_ = 0;
};

// The tiles for products of that many rows: whole ones from 16 on.
inline TileShapes shapes_of(int64_t rows) {
    TileShapes shapes;
    if (rows < kTileRows) std::fill_n(shapes.rows, 5, static_cast<uint8_t>(rows));  // four of sums and one of rows
    return shapes;
}

#define ORCA_TILE_DOT(sum, a, b)          \
    if constexpr (FORMAT == INT8) {       \
        _tile_dpbssd(sum, a, b);          \
    } else {                              \
        _tile_dpbf16ps(sum, a, b);        \
    }

// Tiles 0 and 1 are sums [up to 16][PANEL] that continue those at `first`, or start from 0 (null); with `FOUR`, 2 and 3
// are the sums `apart` numbers from them.
template <bool FOUR> inline void load_sums(const float* first, int64_t apart) {
    constexpr int64_t ROW = PANEL * 4;
    if (first == nullptr) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        return;
    }
    _tile_stream_loadd(0, first, ROW);
    _tile_stream_loadd(1, first + 16, ROW);
    if constexpr (FOUR) {
        _tile_stream_loadd(2, first + apart, ROW);
        _tile_stream_loadd(3, first + apart + 16, ROW);
    }
}

template <bool FOUR> inline void store_sums(float* first, int64_t apart) {
    constexpr int64_t ROW = PANEL * 4;
    _tile_stored(0, first, ROW);
    _tile_stored(1, first + 16, ROW);
    if constexpr (FOUR) {
        _tile_stored(2, first + apart, ROW);
        _tile_stored(3, first + apart + 16, ROW);
    }
}

// Some steps of 16 or 32 rows (`PAIR`) and of one panel: sums `to` [32][PANEL], for INT8 as int32, which continue the sums
// `from`, or start from 0.
template <int32_t FORMAT, bool PAIR>
void tiles_times_panel(const Group& x, const char* panel, int64_t steps, const float* from, Fetch& fetch, float* to) {
    constexpr int64_t ROW = PANEL * 4, LOWER = kTileRows * PANEL;
    load_sums<PAIR>(from, LOWER);
    const char* rows = x.rows;
    for (int64_t step = 0; step < steps; step++, rows += x.step, panel += kTileRows * ROW) {
        _tile_stream_loadd(4, rows, x.stride);
        _tile_loadd(6, panel, ROW);
        _tile_loadd(7, panel + TILE_BYTES, ROW);
        if constexpr (PAIR) _tile_stream_loadd(5, rows + x.below, x.stride);
        fetch.step();
        ORCA_TILE_DOT(0, 4, 6)
        ORCA_TILE_DOT(1, 4, 7)
        if constexpr (PAIR) {
            ORCA_TILE_DOT(2, 5, 6)
            ORCA_TILE_DOT(3, 5, 7)
        }
    }
    store_sums<PAIR>(to, LOWER);
}

// One panel, or two that are `apart` bytes from each other, from some step on. They are prefetched into the first-level
// cache: lines that the tile unit loads from the second one delay other lines on their way from memory.
struct PanelPair {
    const char* first;
    int64_t apart;

    void fetch(int64_t begin, int64_t end) const {
        const char* at = first + begin * 64;
        const char* other = at + apart;
#pragma GCC unroll 1
        for (int64_t line = begin; line < end; line++, at += 64, other += 64) {
            __builtin_prefetch(at, 0, 3);
            asm volatile("" : "+r"(other));
            __builtin_prefetch(other, 0, 3);
        }
    }
};

// Some steps of up to 16 rows and of one panel or two (`TWO`), added to sums [rows][PANEL] of each, which are `sums_apart`
// numbers apart; with `fresh`, to 0. `COLD`: the panels are read from memory. The next ones are prefetched from `then` on.
template <int32_t FORMAT, bool TWO, bool COLD>
void tile_times_panels(
    const Group& x, PanelPair panels, PanelPair then, int64_t steps, bool fresh, float* sums, int64_t sums_apart) {
    constexpr int64_t ROW = PANEL * 4;
    load_sums<TWO>(fresh ? nullptr : sums, sums_apart);
    const char* rows = x.rows;
    for (int64_t step = 0; step < steps; step++, rows += x.step, panels.first += kTileRows * ROW) {
        const char* other = panels.first + panels.apart;
        _tile_loadd(4, rows, TILE_BYTES);
        if constexpr (COLD) {
            panels.fetch(AHEAD_LINES, AHEAD_LINES + GROUP_LINES);
        } else {
            then.fetch(step * FAR_LINES, (step + 1) * FAR_LINES);
        }
        _tile_stream_loadd(6, panels.first, ROW);
        ORCA_TILE_DOT(0, 4, 6)
        if constexpr (TWO) {
            _tile_stream_loadd(7, other, ROW);
            ORCA_TILE_DOT(2, 4, 7)
        }
        _tile_stream_loadd(6, panels.first + TILE_BYTES, ROW);
        ORCA_TILE_DOT(1, 4, 6)
        if constexpr (TWO) {
            _tile_stream_loadd(7, other + TILE_BYTES, ROW);
            ORCA_TILE_DOT(3, 4, 7)
        }
    }
    store_sums<TWO>(sums, sums_apart);
}

#undef ORCA_TILE_DOT

// A block of rows times ranges of panels.
template <int32_t FORMAT> class TiledProduct {
  public:
    TiledProduct(const Linear& linear, const TiledRows& x)
        : x_(x),
          weight_(static_cast<const char*>(linear.weight)),
          width_(panel_bytes(linear.format, linear.k)),
          many_(x.groups() >= MANY_GROUPS),
          lines_((GROUP_LINES + x.groups() - 1) / x.groups()) {
        const int64_t fitting = SUMS_BYTES / (x.groups() * GROUP_SUMS * static_cast<int64_t>(sizeof(float)));
        at_once_ = x.chunk() == x.steps() ? (many_ ? 1 : 2) : std::max<int64_t>(fitting, 2);
    }

    // How many panels it is best to compute before others.
    int64_t at_once() const { return many_ ? at_once_ : std::max(at_once_, FEW_PANELS); }

    // Call `store(group, panel, sums)` for each group and panel, sums [rows][PANEL], panels in order. Meanwhile `then`, the
    // next panel after these (-1: none), is prefetched.
    template <class Store> void compute(Range columns, int64_t then, Store store) {
        static thread_local Scratch memory;
        const int64_t panel_sums = x_.groups() * GROUP_SUMS, width = many_ ? 1 : 2;
        float* both = memory.get<float>(2 * at_once_ * panel_sums);
        waiting_ = {0, 0};
        for (int64_t first = columns.begin; first < columns.end; first += at_once_) {
            const Range panels{first, std::min(first + at_once_, columns.end)};
            float* sums = both + (first - columns.begin) / at_once_ % 2 * at_once_ * panel_sums;
            const int64_t behind = panels.end < columns.end ? panels.end : then;
            for (int64_t begin = 0; begin < x_.steps(); begin += x_.chunk()) {
                const Range chunk{begin, std::min(begin + x_.chunk(), x_.steps())};
                for (int64_t panel = panels.begin; panel < panels.end; panel += width) {
                    const Range own{panel, std::min(panel + width, panels.end)};
                    Fetch fetch = next(panels, own.end, chunk, behind);
                    float* place = sums + (panel - first) * panel_sums;
                    many_ ? multiply_many(panel, chunk, fetch, place, store) : multiply_few(own, chunk, fetch, place, store);
                }
            }
        }
        put_waiting(store);
    }

  private:
    static constexpr int64_t STEP_BYTES = kTileRows * PANEL * 4;  // of a panel

    template <class Store> void multiply_many(int64_t panel, Range chunk, Fetch& fetch, float* sums, Store& store) {
        alignas(64) float last[GROUP_SUMS];
        for (int64_t begin = chunk.begin; begin < chunk.end; begin += NEAR_STEPS) {
            const int64_t steps = std::min(NEAR_STEPS, chunk.end - begin);
            const bool is_last = begin + steps == x_.steps();
            const char* weight = weight_ + panel * width_ + begin * STEP_BYTES;
            for (int64_t group = 0; group < x_.groups(); group++) {
                float* own = sums + group * GROUP_SUMS;
                multiply(group, begin, weight, steps, begin == 0 ? nullptr : own, fetch, is_last ? last : own);
                if (is_last) store(group, panel, last);
            }
        }
    }

    void multiply(
        int64_t group, int64_t begin, const char* weight, int64_t steps, const float* from, Fetch& fetch, float* to) {
        if (x_.rows_of(group) <= kTileRows) {
            tiles_times_panel<FORMAT, false>(x_.group(group, begin), weight, steps, from, fetch, to);
        } else {
            tiles_times_panel<FORMAT, true>(x_.group(group, begin), weight, steps, from, fetch, to);
        }
    }

    // The first 16 rows load the panels, the others find them in the second-level cache.
    template <class Store> void multiply_few(Range panels, Range chunk, const Fetch& fetch, float* sums, Store& store) {
        const int64_t panel_sums = x_.groups() * GROUP_SUMS, tiles = (x_.size() + kTileRows - 1) / kTileRows;
        const bool two = panels.end - panels.begin == 2, is_last = chunk.end == x_.steps();
        const PanelPair own{weight_ + panels.begin * width_ + chunk.begin * STEP_BYTES, two ? width_ : 0};
        PanelPair then = fetch.end == fetch.at ? own : PanelPair{fetch.at, width_};
        for (int64_t tile = 0; tile < tiles; tile++) {
            Group x = x_.group(tile / 2, chunk.begin);
            x.rows += tile % 2 * x.below;
            float* to = sums + tile * kTileRows * PANEL;
            const int64_t steps = chunk.end - chunk.begin;
            if (tile == 0) {
                multiply_tile<true>(two, x, own, then, steps, chunk.begin == 0, to, panel_sums);
                then.first += AHEAD_LINES * 64;
            } else {
                multiply_tile<false>(two, x, own, then, steps, chunk.begin == 0, to, panel_sums);
                then.first += steps * FAR_LINES * 64;
            }
        }
        if (!is_last) return;
        put_waiting(store);
        waiting_ = panels;
        waiting_sums_ = sums;
    }

    // Sums of few rows wait for the next ones: a read of memory to which a tile was just stored stalls, and nothing is
    // requested from memory meanwhile.
    template <class Store> void put_waiting(Store& store) {
        for (int64_t panel = waiting_.begin; panel < waiting_.end; panel++) {
            for (int64_t group = 0; group < x_.groups(); group++, waiting_sums_ += GROUP_SUMS) {
                store(group, panel, waiting_sums_);
            }
        }
        waiting_ = {0, 0};
    }

    template <bool COLD>
    static void multiply_tile(
        bool two, const Group& x, PanelPair own, PanelPair then, int64_t steps, bool fresh, float* to, int64_t apart) {
        if (two) {
            tile_times_panels<FORMAT, true, COLD>(x, own, then, steps, fresh, to, apart);
        } else {
            tile_times_panels<FORMAT, false, COLD>(x, own, then, steps, fresh, to, apart);
        }
    }

    // The memory to be computed after that chunk of the panels before `panel`.
    Fetch next(Range panels, int64_t panel, Range chunk, int64_t behind) const {
        if (panel < panels.end) return part(panel, chunk);
        if (chunk.end < x_.steps()) {
            return part(panels.begin, {chunk.end, std::min(chunk.end + x_.chunk(), x_.steps())});
        }
        return behind < 0 ? Fetch{weight_, weight_, 0} : part(behind, {0, x_.chunk()});
    }

    Fetch part(int64_t panel, Range chunk) const {
        const char* weight = weight_ + panel * width_;
        return {weight + chunk.begin * STEP_BYTES, weight + chunk.end * STEP_BYTES, lines_};
    }

    const TiledRows& x_;
    const char* const weight_;
    const int64_t width_;
    const bool many_;
    const int64_t lines_;
    int64_t at_once_;
    Range waiting_{0, 0};  // panels whose sums have not been stored yet
    float* waiting_sums_ = nullptr;
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
        block_times_panels<BF16>(linear, packed, y, columns);
    }
}

template <int32_t FORMAT>
void linear_by_tiles(const Linear& linear, const Rows& x, const Rows& y, Range rows, Range columns) {
    const int64_t size = rows.end - rows.begin, blocks = (size + BLOCK_ROWS - 1) / BLOCK_ROWS;
    for (int64_t index = 0; index < blocks; index++) {
        const Range part = share(size, index, blocks);
        block_by_tiles<FORMAT>(linear, x, y, {rows.begin + part.begin, rows.begin + part.end}, columns);
    }
}

}  // namespace orca

#endif
