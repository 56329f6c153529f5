// Linear layers with packed weights: y = x W^T + bias.
//
// One layout serves all row counts: panels of 32 columns, each contiguous over the whole depth. Within a panel, values
// of successive depth stand together by 4 bytes: [K/2][32][2] bf16, [K][32] float32, [K/4][32][4] int8. That is what dot
// product instructions read, and its 16-column halves are tiles of AMX. Depth is padded with zeros to whole tiles,
// columns to whole panels.

#pragma once

#include <cstddef>
#include <cstdint>

namespace orca {

constexpr int64_t PANEL = 32;

enum Format : int32_t { BF16 = 0, F32 = 1, INT8 = 2 };

// A packed weight of n columns (outputs) and k inputs; bias may be null. INT8 has a scale and the sum of its weights per
// column, padded to whole panels.
struct Linear {
    const void* weight;
    const float* scales;
    const int32_t* sums;
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

inline int64_t panels(int64_t n) { return (n + PANEL - 1) / PANEL; }

// Values per 4 bytes, and the depth that panels are padded to.
inline int64_t packing(int32_t format) { return format == F32 ? 1 : format == BF16 ? 2 : 4; }
inline int64_t padded_depth(int32_t format, int64_t k) {
    const int64_t tile = 16 * packing(format);
    return (k + tile - 1) / tile * tile;
}

// Distance of two panels in bytes.
inline int64_t panel_bytes(int32_t format, int64_t k) { return padded_depth(format, k) / packing(format) * PANEL * 4; }

// The share of one of `threads` threads: call it in all of them. There is no barrier inside: y is complete when all are
// through. x has to be in the weight's format, or for INT8 in BF16 or F32.
void linear_team(const Linear& linear, const Rows& x, const Rows& y, int thread, int threads);

// As before, for the rows of the weight: y[i] = W[ids[i]], the lookup of an embedding that shares it.
void gather_team(const Linear& linear, const int64_t* ids, const Rows& y, int thread, int threads);

}  // namespace orca
