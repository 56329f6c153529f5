// Rounding x to 8 bits, and sums of products back.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "linear.h"
#include "number.h"
#include "team.h"

namespace orca {

// Rows of int8 (plus an offset), and what one step of each row is worth.
struct Quantized {
    const uint8_t* values;
    const float* scales;
};

template <class T> float quantize_row(const T* x, int64_t k, int32_t offset, uint8_t* to) {
    float largest = 0;
    bool finite = true;
    for (int64_t i = 0; i < k; i++) {
        const float size = std::fabs(load(x + i));
        finite &= size <= 3.4028235e38f;
        largest = size > largest ? size : largest;
    }
    const float steps = largest > 1e-30f ? 127.0f / largest : 0.0f;
    for (int64_t i = 0; i < k; i++) {
        to[i] = static_cast<uint8_t>(static_cast<int32_t>(std::floor((finite ? load(x + i) : 0.0f) * steps + 0.5f)) + offset);
    }
    return finite ? largest / 127.0f : NAN;
}

// In memory of this thread, until its next call: each row `depth` values, zeros behind the k of x. A row with an
// infinite number or NaN comes out as NaN.
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

// Sums of products, as T, of one row and panel, in place to float32; x had `offset` added to it.
template <class T>
inline void scale_row(const Linear& linear, int64_t panel, int32_t offset, float x_scale, float* sums) {
    const float* scales = linear.scales + panel * PANEL;
    const int32_t* weights = linear.sums + panel * PANEL;
    T products[PANEL];
    std::memcpy(products, sums, sizeof products);
    for (int64_t i = 0; i < PANEL; i++) {
        sums[i] = static_cast<float>(products[i] - static_cast<T>(offset * weights[i])) * (scales[i] * x_scale);
    }
}

}  // namespace orca
