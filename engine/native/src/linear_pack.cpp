// Packs weights, and unpacks rows of them.

#include <omp.h>

#include <algorithm>
#include <cstring>

#include "linear.h"
#include "linear_compact.h"
#include "number.h"
#include "team.h"

namespace orca {
namespace {

// The position of value (row, i) of a weight, in values: `row` is the column in the panel layout.
inline int64_t place(int32_t format, int64_t k, int64_t row, int64_t i) {
    const int64_t group = packing(format);
    return row / PANEL * PANEL * padded_depth(format, k) + (i / group * PANEL + row % PANEL) * group + i % group;
}

template <class T> void pack(const T* from, int64_t n, int64_t k, int32_t format, T* to, int thread, int threads) {
    const int64_t depth = padded_depth(format, k);
    const Range part = share(panels(n), thread, threads);
    for (int64_t panel = part.begin; panel < part.end; panel++) {
        T* at = to + panel * PANEL * depth;
        const int64_t rows = std::min(PANEL, n - panel * PANEL);
        if (rows < PANEL || k < depth) std::memset(at, 0, PANEL * depth * sizeof(T));
        const T* rows_at = from + panel * PANEL * k;
        const int64_t group = packing(format), whole = k / group * group;
        for (int64_t i = 0; i < whole; i += group, at += PANEL * group) {
            for (int64_t row = 0; row < rows; row++) std::memcpy(at + row * group, rows_at + row * k + i, 4);
        }
        for (int64_t i = whole; i < k; i++) {
            for (int64_t row = 0; row < rows; row++) at[row * group + i - whole] = rows_at[row * k + i];
        }
    }
}

template <class T> void gather_compact_row(const Linear& linear, int64_t row, T* to) {
    const char* panel = panel_of(linear, row / PANEL);
    const uint8_t* upper = reinterpret_cast<const uint8_t*>(panel);
    const uint8_t* pairs = reinterpret_cast<const uint8_t*>(panel + COMPACT_HEAD);
    for (int64_t i = 0; i < linear.k; i++) {
        const int64_t half = row % PANEL / HALF, at = compact_place(row, i % 4);
        const uint8_t* pair = pairs + i / 4 * COMPACT_PAIR;
        const int code = half ? pair[at] >> 4 : pair[at] & (CODES - 1);
        store(to + i, widen(static_cast<bf16>(upper[code] << 8 | pair[64 * (1 + half) + at])));
    }
    for (const Outlier& each : outliers_of(linear, row / PANEL)) {
        if (each.column == row % PANEL) store(to + each.depth, widen(each.value));
    }
}

template <class T> void gather_row(const Linear& linear, int64_t row, T* to) {
    if (linear.format == COMPACT_BF16) return gather_compact_row(linear, row, to);
    for (int64_t i = 0; i < linear.k; i++) {
        const int64_t at = place(linear.format, linear.k, row, i);
        float value;
        if (linear.format == BF16) {
            value = widen(static_cast<const bf16*>(linear.weight)[at]);
        } else if (linear.format == F32) {
            value = static_cast<const float*>(linear.weight)[at];
        } else {
            value = static_cast<const int8_t*>(linear.weight)[at] * linear.scales[row];
        }
        store(to + i, value);
    }
}

}  // namespace

void gather_team(const Linear& linear, const int64_t* ids, const Rows& y, int thread, int threads) {
    const Range rows = share(y.m, thread, threads);
    for (int64_t row = rows.begin; row < rows.end; row++) {
        if (y.format == BF16) {
            gather_row(linear, ids[row], static_cast<bf16*>(y.data) + row * y.stride);
        } else {
            gather_row(linear, ids[row], static_cast<float*>(y.data) + row * y.stride);
        }
    }
}

}  // namespace orca

extern "C" int64_t orca_linear_bytes(int32_t format, int64_t n, int64_t k) {
    return orca::panels(n) * orca::panel_bytes(format, k);
}

// Pack [n, k], contiguous, in the format of the panels.
extern "C" void orca_linear_pack(int32_t format, const void* from, int64_t n, int64_t k, void* to, int threads) {
#pragma omp parallel num_threads(threads)
    {
        const int thread = omp_get_thread_num(), team = omp_get_num_threads();
        if (format == orca::BF16) {
            orca::pack(static_cast<const uint16_t*>(from), n, k, format, static_cast<uint16_t*>(to), thread, team);
        } else if (format == orca::F32) {
            orca::pack(static_cast<const float*>(from), n, k, format, static_cast<float*>(to), thread, team);
        } else {
            orca::pack(static_cast<const int8_t*>(from), n, k, format, static_cast<int8_t*>(to), thread, team);
        }
    }
}

extern "C" void orca_linear_gather(
    const orca::Linear* linear, const int64_t* ids, const orca::Rows* y, int threads) {
#pragma omp parallel num_threads(threads)
    orca::gather_team(*linear, ids, *y, omp_get_thread_num(), omp_get_num_threads());
}
