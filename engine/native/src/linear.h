// Linear layers with packed weights: y = x W^T + bias.
//
// One layout serves all row counts: panels of 32 columns, each contiguous over the whole depth. Within a panel, values
// of successive depth are grouped by 4 bytes: [K/2][32][2] bf16, [K][32] float32, [K/4][32][4] int8. Dot product
// instructions read this order, and its 16-column halves are AMX tiles. Depth is padded with zeros to whole tiles,
// columns to whole panels.

#pragma once

#include <cstddef>
#include <cstdint>

#include "number.h"
#include "parallel.h"
#include "team.h"

namespace orca {

constexpr int64_t PANEL = 32;

// A weight that a panel of COMPACT_BF16 does not represent.
struct Outlier {
    int32_t depth;
    uint16_t column;  // of the panel
    bf16 value;
};

// A packed weight of n columns (outputs) and k inputs; bias may be null. INT8 has a scale and the sum of its weights per
// column, padded to whole panels. COMPACT_BF16 has outliers, sorted by panel, and where those of each panel begin.
struct Linear {
    const void* weight;
    const float* scales;
    const int32_t* sums;
    const Outlier* outliers;
    const int32_t* first_outlier;
    const float* bias;
    int64_t n;
    int64_t k;
    int32_t format;
};

// m rows in BF16 or F32; `stride` in elements.
struct Rows {
    void* data;
    int64_t m;
    int64_t stride;
    int32_t format;
};

template <class T> inline T* row_of(const Rows& all, int64_t row, int64_t column) {
    return static_cast<T*>(all.data) + row * all.stride + column;
}

inline int64_t panels(int64_t n) { return (n + PANEL - 1) / PANEL; }

// Values per 4 bytes, and the depth that panels are padded to.
inline int64_t packing(int32_t format) { return format == F32 ? 1 : format == INT8 ? 4 : 2; }
inline int64_t padded_depth(int32_t format, int64_t k) {
    const int64_t tile = 16 * packing(format);
    return (k + tile - 1) / tile * tile;
}

constexpr int64_t COMPACT_HEAD = 64;
constexpr int64_t COMPACT_PAIR = 3 * 64;  // bytes of two steps

// Distance between two panels in bytes.
inline int64_t panel_bytes(int32_t format, int64_t k) {
    const int64_t steps = padded_depth(format, k) / packing(format);
    return format == COMPACT_BF16 ? COMPACT_HEAD + steps / 2 * COMPACT_PAIR : steps * PANEL * 4;
}

inline const char* panel_of(const Linear& linear, int64_t panel) {
    return static_cast<const char*>(linear.weight) + panel * panel_bytes(linear.format, linear.k);
}

// Memory that a team shares: rows of x as the kernels read them, except with AMX, where each thread packs its own.
struct LinearWork {
    Scratch values;
    Scratch scales;

    // Called before the team begins: reserve enough for m rows.
    void reserve(const Linear& linear, int64_t m);
};

// Called by all threads of a team, with the same work. y is complete when all have returned. x must be in the weight's
// format, or for INT8 in BF16 or F32.
void linear_team(const Linear& linear, const Rows& x, const Rows& y, LinearWork& work, Team& team, int thread);

// Whether vector instructions compute `linear` instead of the tile unit.
bool by_vectors(const Linear& linear);

// The share of one of `threads` threads of an embedding that shares the weight: y[i] = W[ids[i]].
void gather_team(const Linear& linear, const int64_t* ids, const Rows& y, int thread, int threads);

}  // namespace orca
