// Rows as the kernels for tiles (AMX) read them.

#pragma once

#ifdef __AMX_BF16__

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "amx.h"
#include "linear.h"
#include "team.h"

namespace orca {

constexpr int64_t TILE_BYTES = 64;  // per row of a tile
constexpr int64_t TILE = kTileRows * TILE_BYTES;
constexpr int64_t GROUP_ROWS = 2 * kTileRows;
constexpr int64_t GROUP_SUMS = GROUP_ROWS * PANEL;
constexpr int64_t BLOCK_ROWS = 512;
constexpr int64_t CHUNK_BYTES = 1 << 20;  // of packed rows
constexpr int64_t MANY_GROUPS = 3;        // from this many on, reading weights from memory is no longer what takes time

// Steps of a panel: two tiles each.
inline int64_t depth_steps(const Linear& linear) {
    return padded_depth(linear.format, linear.k) / packing(linear.format) / kTileRows;
}

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
        const int64_t chunks = (groups_ * steps * step_bytes_ + CHUNK_BYTES - 1) / CHUNK_BYTES;
        chunk_ = (steps + chunks - 1) / chunks;
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

}  // namespace orca

#endif
