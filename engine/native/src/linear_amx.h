// Linear layers by tiles (AMX): 32 rows times one panel, four tiles of sums.
//
// A tile that comes from the second-level cache takes longer than its products. So of each panel a part of the depth
// stays in the first-level cache while all rows pass, and the sums go and come instead. Rows are packed in chunks of the
// depth that stay in the second-level cache; each weight comes from memory once for `BLOCK_ROWS` of them.

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

constexpr int64_t TILE_BYTES = 64;  // of a row of a tile
constexpr int64_t TILE = kTileRows * TILE_BYTES;
constexpr int64_t GROUP_ROWS = 2 * kTileRows;
constexpr int64_t GROUP_SUMS = GROUP_ROWS * PANEL;
constexpr int64_t GROUP_LINES = 2 * TILE / 64;  // of a step of a group, or of a panel
constexpr int64_t BLOCK_ROWS = 512;
constexpr int64_t CHUNK_BYTES = 1 << 20;  // of packed rows
constexpr int64_t SUMS_BYTES = 1 << 20;   // that wait for the next chunk
constexpr int64_t NEAR_STEPS = 8;         // of a panel in the first-level cache
constexpr int64_t MANY_GROUPS = 3;        // from so many on it pays

inline int64_t depth_steps(const Linear& linear) { return panel_bytes(linear.format, linear.k) / (kTileRows * PANEL * 4); }

// A block of rows as the kernels read them: [chunk of the depth][group of rows][step][2] tiles.
class TiledRows {
  public:
    TiledRows(char* memory, Range rows, int64_t steps)
        : memory_(memory), range_(rows), steps_(steps), groups_((size() + GROUP_ROWS - 1) / GROUP_ROWS) {
        const int64_t fitting = CHUNK_BYTES / (groups_ * 2 * TILE) / NEAR_STEPS * NEAR_STEPS;
        chunk_ = std::min(std::max(fitting, NEAR_STEPS), steps);
    }

    static int64_t bytes(int64_t rows, int64_t steps) {
        return (rows + GROUP_ROWS - 1) / GROUP_ROWS * steps * 2 * TILE;
    }

    // From its rows of x, the first k of each, in BF16.
    void pack(const Rows& x, int64_t k) {
        pack(static_cast<const char*>(x.data) + range_.begin * x.stride * 2, x.stride * 2, k * 2);
    }

    // From rows of `row_bytes`, with zeros behind them.
    void pack(const char* from, int64_t stride_bytes, int64_t row_bytes) {
        const int64_t whole = row_bytes / TILE_BYTES;
        for (int64_t row = 0; row < size(); row++, from += stride_bytes) {
            for (int64_t begin = 0; begin < whole; begin += chunk_) {
                const char* x = from + begin * TILE_BYTES;
                char* to = line(row, begin);
                for (int64_t step = begin; step < std::min(begin + chunk_, whole); step++, x += TILE_BYTES, to += 2 * TILE) {
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

    // What is beyond the last row, in its tiles.
    void clear() {
        const int64_t end = (size() + kTileRows - 1) / kTileRows * kTileRows;
        for (int64_t row = size(); row < end; row++) {
            for (int64_t step = 0; step < steps_; step++) std::memset(line(row, step), 0, TILE_BYTES);
        }
    }

    // 64 bytes of a row of the block.
    char* line(int64_t row, int64_t step) const {
        return at(row / GROUP_ROWS, step) + row % GROUP_ROWS * TILE_BYTES;
    }

    // Steps of a group up to the end of a chunk are side by side.
    char* at(int64_t group, int64_t step) const {
        const int64_t begin = step / chunk_ * chunk_, length = std::min(chunk_, steps_ - begin);
        return memory_ + (begin * groups_ + group * length + step - begin) * 2 * TILE;
    }

    Range range() const { return range_; }  // in x
    int64_t size() const { return range_.end - range_.begin; }
    int64_t steps() const { return steps_; }
    int64_t groups() const { return groups_; }
    int64_t chunk() const { return chunk_; }
    int64_t rows_of(int64_t group) const { return std::min(size() - group * GROUP_ROWS, GROUP_ROWS); }

  private:
    char* const memory_;
    const Range range_;
    const int64_t steps_, groups_;
    int64_t chunk_;
};

#define ORCA_TILE_DOT(sum, a, b)          \
    if constexpr (FORMAT == INT8) {       \
        _tile_dpbssd(sum, a, b);          \
    } else {                              \
        _tile_dpbf16ps(sum, a, b);        \
    }

// Some steps of 16 or 32 rows (`PAIR`) and of one panel, added to sums [32][PANEL], of INT8 as int32; `fresh`: to 0.
// `AHEAD`: the rows come from the second-level cache, and are fetched from there.
template <int32_t FORMAT, bool PAIR, bool AHEAD>
void tiles_times_panel(const char* x, const char* panel, int64_t steps, bool fresh, Fetch& fetch, float* sums) {
    constexpr int64_t ROW = PANEL * 4;
    float* below = sums + kTileRows * PANEL;
    if (fresh) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, sums, ROW);
        _tile_loadd(1, sums + 16, ROW);
        if constexpr (PAIR) {
            _tile_loadd(2, below, ROW);
            _tile_loadd(3, below + 16, ROW);
        }
    }
    for (int64_t step = 0; step < steps; step++, x += 2 * TILE, panel += kTileRows * ROW) {
        _tile_loadd(4, x, TILE_BYTES);
        _tile_loadd(6, panel, ROW);
        _tile_loadd(7, panel + TILE_BYTES, ROW);
        if constexpr (PAIR) _tile_loadd(5, x + TILE, TILE_BYTES);
        if constexpr (AHEAD) {
            for (int64_t line = 0; line < GROUP_LINES; line++) __builtin_prefetch(x + 4 * TILE + line * 64);
        }
        fetch.step();
        ORCA_TILE_DOT(0, 4, 6)
        ORCA_TILE_DOT(1, 4, 7)
        if constexpr (PAIR) {
            ORCA_TILE_DOT(2, 5, 6)
            ORCA_TILE_DOT(3, 5, 7)
        }
    }
    _tile_stored(0, sums, ROW);
    _tile_stored(1, sums + 16, ROW);
    if constexpr (PAIR) {
        _tile_stored(2, below, ROW);
        _tile_stored(3, below + 16, ROW);
    }
}

#undef ORCA_TILE_DOT

// A block of rows times ranges of panels.
template <int32_t FORMAT> class TiledProduct {
  public:
    TiledProduct(const Linear& linear, const TiledRows& x)
        : x_(x),
          weight_(static_cast<const char*>(linear.weight)),
          width_(panel_bytes(linear.format, linear.k)),
          near_(x.groups() < MANY_GROUPS ? x.chunk() : NEAR_STEPS),
          lines_((GROUP_LINES + x.groups() - 1) / x.groups()) {
        const int64_t fitting = SUMS_BYTES / (x.groups() * GROUP_SUMS * static_cast<int64_t>(sizeof(float)));
        at_once_ = x.chunk() == x.steps() ? 1 : std::max<int64_t>(fitting, 1);
    }

    // How many panels it is best to compute together: their sums wait for the rest of the depth.
    int64_t at_once() const { return at_once_; }

    // `store(group, panel, sums)` for each group and panel, sums [rows][PANEL]. Meanwhile the panel `then` is fetched, the
    // next after these, if any (or -1).
    template <class Store> void compute(Range columns, int64_t then, Store store) {
        static thread_local Scratch memory;
        const int64_t panel_sums = x_.groups() * GROUP_SUMS;
        float* sums = memory.get<float>(at_once_ * panel_sums);
        for (int64_t first = columns.begin; first < columns.end; first += at_once_) {
            const Range panels{first, std::min(first + at_once_, columns.end)};
            const int64_t behind = panels.end < columns.end ? panels.end : then;
            for (int64_t begin = 0; begin < x_.steps(); begin += x_.chunk()) {
                const Range chunk{begin, std::min(begin + x_.chunk(), x_.steps())};
                for (int64_t panel = panels.begin; panel < panels.end; panel++) {
                    Fetch fetch = next(panels, panel, chunk, behind);
                    multiply(panel, chunk, fetch, sums + (panel - first) * panel_sums, store);
                }
            }
        }
    }

  private:
    static constexpr int64_t STEP_BYTES = kTileRows * PANEL * 4;  // of a panel

    template <class Store> void multiply(int64_t panel, Range chunk, Fetch& fetch, float* sums, Store& store) {
        for (int64_t begin = chunk.begin; begin < chunk.end; begin += near_) {
            const int64_t steps = std::min(near_, chunk.end - begin);
            const char* weight = weight_ + panel * width_ + begin * STEP_BYTES;
            for (int64_t group = 0; group < x_.groups(); group++) {
                float* own = sums + group * GROUP_SUMS;
                multiply(group, x_.at(group, begin), weight, steps, begin == 0, fetch, own);
                if (begin + steps == x_.steps()) store(group, panel, own);
            }
        }
    }

    void multiply(int64_t group, const char* x, const char* weight, int64_t steps, bool fresh, Fetch& fetch, float* sums) {
        if (x_.rows_of(group) <= kTileRows) {
            tiles_times_panel<FORMAT, false, false>(x, weight, steps, fresh, fetch, sums);
        } else if (x_.groups() < MANY_GROUPS) {
            tiles_times_panel<FORMAT, true, false>(x, weight, steps, fresh, fetch, sums);
        } else {
            tiles_times_panel<FORMAT, true, true>(x, weight, steps, fresh, fetch, sums);
        }
    }

    // What is to be computed after that chunk of a panel.
    Fetch next(Range panels, int64_t panel, Range chunk, int64_t behind) const {
        if (panel + 1 < panels.end) return part(panel + 1, chunk);
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
    const int64_t width_, near_, lines_;
    int64_t at_once_;
};

// A block of rows times a range of panels, into y. `x_scales`: of the block's rows, of INT8.
template <int32_t FORMAT>
void block_times_panels(
    const Linear& linear, const TiledRows& x, const Rows& y, Range columns, [[maybe_unused]] const float* x_scales = nullptr) {
    TiledProduct<FORMAT>(linear, x).compute(columns, -1, [&](int64_t group, int64_t panel, float* sums) {
        const int64_t first = group * GROUP_ROWS;
        for (int64_t row = first; row < first + x.rows_of(group); row++, sums += PANEL) {
            if constexpr (FORMAT == INT8) scale_row<int32_t>(linear, panel, 0, x_scales[row], sums);
            store_row(linear, y, x.range().begin + row, panel, sums);
            if (row + GROUP_ROWS < x.size()) __builtin_prefetch(place_of(y, x.range().begin + row + GROUP_ROWS, panel), 1);
        }
    });
}

// Each thread packs what it reads: what another one has packed would come from that one's cache.
template <int32_t FORMAT>
void block_by_tiles(const Linear& linear, const Rows& x, const Rows& y, Range rows, Range columns) {
    static thread_local Scratch memory;
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
    const TileRegisters configured;
    const int64_t size = rows.end - rows.begin, blocks = (size + BLOCK_ROWS - 1) / BLOCK_ROWS;
    for (int64_t index = 0; index < blocks; index++) {
        const Range part = share(size, index, blocks);
        block_by_tiles<FORMAT>(linear, x, y, {rows.begin + part.begin, rows.begin + part.end}, columns);
    }
}

}  // namespace orca

#endif
