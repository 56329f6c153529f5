// Rounds x to 8 bits, and scales sums of products back.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "linear.h"
#include "number.h"
#include "team.h"
#include "vector.h"

namespace orca {

// Rows of int8 (plus an offset), and the step size of each row.
struct Quantized {
    const uint8_t* values;
    const float* scales;
};

template <class T> float quantize_row(const T* x, int64_t k, int32_t offset, uint8_t* to) {
    f32x16 largest_sizes{}, not_finite{};
    for (int64_t i = 0; i < k; i += kLanes) {
        const f32x16 values = take_numbers(x + i, std::min<int64_t>(k - i, kLanes));
        largest_sizes = largest(largest_sizes, bits<f32x16>(bits<u32x16>(values) & 0x7fffffffu));
        not_finite += values * 0.0f;
    }
    const bool finite = sum_of(not_finite) == 0.0f;
    const float most = finite ? largest_of(largest_sizes) : 0.0f;
    const float steps = most > 1e-30f ? 127.0f / most : 0.0f;
    for (int64_t i = 0; i < k; i += kLanes) {
        const int64_t count = std::min<int64_t>(k - i, kLanes);
        const f32x16 values = finite ? take_numbers(x + i, count) : f32x16{};
        // Above 0, truncating rounds down.
        const i32x16 rounded = __builtin_convertvector(values * steps + 128.5f, i32x16) + (offset - 128);
        const u8x16 bytes = __builtin_convertvector(rounded, u8x16);
        std::memcpy(to + i, &bytes, count);
    }
    return finite ? most / 127.0f : NAN;
}

// Quantize into memory of this thread, valid until its next call: `depth` values per row, zeros after the k of x. A row
// with an infinite number or NaN becomes NaN.
inline Quantized quantize_rows(const Rows& x, Range rows, int64_t depth, int32_t offset, int64_t k) {
    static thread_local Scratch value_memory, scale_memory;
    const int64_t count = rows.end - rows.begin;
    uint8_t* values = value_memory.get<uint8_t>(count * depth);
    float* scales = scale_memory.get<float>(count);
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = (rows.begin + i) * x.stride;
        uint8_t* to = values + i * depth;
        scales[i] = x.format == BF16 ? quantize_row(static_cast<const bf16*>(x.data) + at, k, offset, to)
                                     : quantize_row(static_cast<const float*>(x.data) + at, k, offset, to);
        std::memset(to + k, 0, depth - k);
    }
    return {values, scales};
}

// Convert sums of products of one row and panel, as T, to float32 in place; x had `offset` added to it.
template <class T>
inline void scale_row(const Linear& linear, int64_t panel, int32_t offset, float x_scale, float* sums) {
    const float* scales = linear.scales + panel * PANEL;
    const int32_t* weights = linear.sums + panel * PANEL;
    T products[PANEL];
    std::memcpy(products, sums, sizeof products);
    for (int64_t i = 0; i < PANEL; i++) {
        // In this order: the product of both scales may be too small for a float, although that of all three is not.
        sums[i] = static_cast<float>(products[i] - static_cast<T>(offset * weights[i])) * scales[i] * x_scale;
    }
}

}  // namespace orca
