// Linear layers by tiles (AMX): 32 rows times one panel, four tiles of sums.

#pragma once

#ifdef __AMX_BF16__

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "amx.h"
#include "fetch.h"
#include "linear_int8.h"
#include "linear_store.h"
#include "team.h"

namespace orca {

constexpr int64_t TILE_BYTES = 64;  // of a row of a tile
constexpr int64_t TILE = kTileRows * TILE_BYTES;
constexpr int64_t BLOCK_BYTES = 1 << 19;  // of packed x: it stays in the second-level cache

// `count` rows of x as tiles [rows/16][depth][16][64 bytes], with zeros beyond the rows and their `bytes`.
inline void pack_tiles(const char* x, int64_t stride_bytes, int64_t count, int64_t bytes, int64_t tiles, char* to) {
    for (int64_t row = 0; row < (count + kTileRows - 1) / kTileRows * kTileRows; row++) {
        char* at = to + row / kTileRows * tiles * TILE + row % kTileRows * TILE_BYTES;
        if (row >= count) {
            for (int64_t tile = 0; tile < tiles; tile++) std::memset(at + tile * TILE, 0, TILE_BYTES);
            continue;
        }
        const char* from = x + row * stride_bytes;
        const int64_t whole = bytes / TILE_BYTES;
        for (int64_t tile = 0; tile < whole; tile++) {
            _mm512_store_si512(at + tile * TILE, _mm512_loadu_si512(from + tile * TILE_BYTES));
        }
        if (whole < tiles) {
            std::memset(at + whole * TILE, 0, TILE_BYTES);
            std::memcpy(at + whole * TILE, from + whole * TILE_BYTES, bytes - whole * TILE_BYTES);
        }
    }
}

#define ORCA_TILE_DOT(sum, a, b)          \
    if constexpr (FORMAT == INT8) {       \
        _tile_dpbssd(sum, a, b);          \
    } else {                              \
        _tile_dpbf16ps(sum, a, b);        \
    }

// 16 or 32 rows (`pair`) times one panel: sums [32][PANEL], of INT8 as int32.
template <int32_t FORMAT>
void tiles_times_panel(const char* a, const char* panel, int64_t tiles, bool pair, Fetch& fetch, float* sums) {
    constexpr int64_t ROW = PANEL * 4;
    const char* b = a + tiles * TILE;
    _tile_zero(0);
    _tile_zero(1);
    if (pair) {
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t tile = 0; tile < tiles; tile++) {
            const char* at = panel + tile * kTileRows * ROW;
            _tile_loadd(4, a + tile * TILE, TILE_BYTES);
            _tile_loadd(6, at, ROW);
            _tile_loadd(7, at + TILE_BYTES, ROW);
            _tile_loadd(5, b + tile * TILE, TILE_BYTES);
            fetch.step();
            ORCA_TILE_DOT(0, 4, 6)
            ORCA_TILE_DOT(1, 4, 7)
            ORCA_TILE_DOT(2, 5, 6)
            ORCA_TILE_DOT(3, 5, 7)
        }
        _tile_stored(2, sums + kTileRows * PANEL, ROW);
        _tile_stored(3, sums + kTileRows * PANEL + 16, ROW);
    } else {
        for (int64_t tile = 0; tile < tiles; tile++) {
            const char* at = panel + tile * kTileRows * ROW;
            _tile_loadd(4, a + tile * TILE, TILE_BYTES);
            _tile_loadd(6, at, ROW);
            _tile_loadd(7, at + TILE_BYTES, ROW);
            fetch.step();
            ORCA_TILE_DOT(0, 4, 6)
            ORCA_TILE_DOT(1, 4, 7)
        }
    }
    _tile_stored(0, sums, ROW);
    _tile_stored(1, sums + 16, ROW);
}

#undef ORCA_TILE_DOT

template <int32_t FORMAT>
void linear_by_tiles(const Linear& linear, const Rows& x, const Rows& y, Range rows, Range columns) {
    static thread_local Scratch scratch;
    const TileRegisters configured;
    const int64_t width = panel_bytes(linear.format, linear.k);
    const int64_t tiles = width / (kTileRows * PANEL * 4);
    const int64_t m = rows.end - rows.begin;
    const int64_t most = std::max<int64_t>(BLOCK_BYTES / (tiles * TILE_BYTES) / 32 * 32, 32);
    const int64_t blocks = (m + most - 1) / most;
    alignas(64) float sums[2 * kTileRows * PANEL];
    const char* weight = static_cast<const char*>(linear.weight);
    const char* last = weight + columns.end * width;
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t begin = rows.begin + std::min(block * most, m);
        const int64_t count = std::min(most, rows.end - begin);
        char* packed = scratch.get<char>((count + 31) / 32 * 32 * tiles * TILE_BYTES);
        const float* x_scales = nullptr;
        if constexpr (FORMAT == INT8) {
            const Quantized rounded = quantize_rows(x, {begin, begin + count}, tiles * TILE_BYTES, 0, linear.k);
            x_scales = rounded.scales;
            pack_tiles(reinterpret_cast<const char*>(rounded.values), tiles * TILE_BYTES, count, tiles * TILE_BYTES,
                       tiles, packed);
        } else {
            const char* from = static_cast<const char*>(x.data) + begin * x.stride * 2;
            pack_tiles(from, x.stride * 2, count, linear.k * 2, tiles, packed);
        }
        const int64_t groups = (count + 31) / 32;
        for (int64_t panel = columns.begin; panel < columns.end; panel++) {
            const char* at = weight + panel * width;
            Fetch fetch{at + width, last, (32 + groups - 1) / groups};
            for (int64_t group = 0; group < groups; group++) {
                const int64_t left = std::min<int64_t>(count - group * 32, 32);
                tiles_times_panel<FORMAT>(packed + group * 2 * tiles * TILE, at, tiles, left > kTileRows, fetch, sums);
                for (int64_t r = 0; r < left; r++) {
                    if (x_scales != nullptr) {
                        scale_row<int32_t>(linear, panel, 0, x_scales[group * 32 + r], sums + r * PANEL);
                    }
                    store_row(linear, y, begin + group * 32 + r, panel, sums + r * PANEL);
                }
            }
        }
    }
}

}  // namespace orca

#endif
