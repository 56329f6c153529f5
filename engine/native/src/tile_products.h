// Products of tiles (AMX): 16 or 32 rows times one panel, or up to 16 rows times two.

#pragma once

#ifdef __AMX_BF16__

#include <immintrin.h>

#include "tiled_rows.h"

namespace orca {

constexpr int64_t PANEL_STEP = 2 * TILE;  // bytes of a step of a panel
constexpr int64_t STEP_LINES = PANEL_STEP / 64;
constexpr int64_t AHEAD_LINES = 10;  // of each of two panels that are prefetched before they are computed

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
// `from`, or start from 0. Each step is one of `Ahead`, too, which prepares the next weights.
template <int32_t FORMAT, bool PAIR, class Ahead>
void tiles_times_panel(const Group& x, const char* panel, int64_t steps, const float* from, Ahead& shared, float* to) {
    constexpr int64_t ROW = PANEL * 4, LOWER = kTileRows * PANEL;
    load_sums<PAIR>(from, LOWER);
    const char* rows = x.rows;
    Ahead ahead = shared;  // in registers
    for (int64_t step = 0; step < steps; step++, rows += x.step, panel += PANEL_STEP) {
        _tile_stream_loadd(4, rows, x.stride);
        _tile_loadd(6, panel, ROW);
        _tile_loadd(7, panel + TILE_BYTES, ROW);
        if constexpr (PAIR) _tile_stream_loadd(5, rows + x.below, x.stride);
        ahead.step();
        ORCA_TILE_DOT(0, 4, 6)
        ORCA_TILE_DOT(1, 4, 7)
        if constexpr (PAIR) {
            ORCA_TILE_DOT(2, 5, 6)
            ORCA_TILE_DOT(3, 5, 7)
        }
    }
    shared = ahead;
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

// Panels that are read from memory as they are.
struct ColdPanels {
    PanelPair own;

    // The panels at a step; steps are taken in order.
    PanelPair at(int64_t step) const {
        const PanelPair now{own.first + step * PANEL_STEP, own.apart};
        now.fetch(AHEAD_LINES, AHEAD_LINES + STEP_LINES);
        return now;
    }
};

// Some steps of up to 16 rows and of one panel or two (`TWO`), added to sums [rows][PANEL] of each, which are `sums_apart`
// numbers apart; with `fresh`, to 0.
template <int32_t FORMAT, bool TWO, class Panels>
void tile_times_panels(const Group& x, Panels panels, int64_t steps, bool fresh, float* sums, int64_t sums_apart) {
    constexpr int64_t ROW = PANEL * 4;
    load_sums<TWO>(fresh ? nullptr : sums, sums_apart);
    const char* rows = x.rows;
    for (int64_t step = 0; step < steps; step++, rows += x.step) {
        _tile_loadd(4, rows, TILE_BYTES);
        const PanelPair now = panels.at(step);
        const char* other = now.first + now.apart;
        _tile_stream_loadd(6, now.first, ROW);
        ORCA_TILE_DOT(0, 4, 6)
        if constexpr (TWO) {
            _tile_stream_loadd(7, other, ROW);
            ORCA_TILE_DOT(2, 4, 7)
        }
        _tile_stream_loadd(6, now.first + TILE_BYTES, ROW);
        ORCA_TILE_DOT(1, 4, 6)
        if constexpr (TWO) {
            _tile_stream_loadd(7, other + TILE_BYTES, ROW);
            ORCA_TILE_DOT(3, 4, 7)
        }
    }
    store_sums<TWO>(sums, sums_apart);
}

#undef ORCA_TILE_DOT

}  // namespace orca

#endif
