// Stores accumulated sums: adds the bias, rounds, and writes them to y.

#pragma once

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#include "linear.h"
#include "number.h"

namespace orca {

template <class T> inline void store_row(const float* sums, const float* bias, T* to, int64_t count) {
    if (bias != nullptr) {
        for (int64_t i = 0; i < count; i++) store(to + i, sums[i] + bias[i]);
    } else if (count == PANEL) {
        for (int64_t i = 0; i < PANEL; i++) store(to + i, sums[i]);
    } else {
        for (int64_t i = 0; i < count; i++) store(to + i, sums[i]);
    }
}

// Store one row of one panel from `to` on, in a format of rows; `sums` are PANEL values.
inline void store_row(const Linear& linear, int64_t panel, const float* sums, int32_t format, void* to) {
    const int64_t column = panel * PANEL;
    const int64_t count = linear.n - column < PANEL ? linear.n - column : PANEL;
    const float* bias = linear.bias == nullptr ? nullptr : linear.bias + column;
#ifdef __AVX512BF16__
    if (format == BF16 && count == PANEL) {
        __m512 low = _mm512_loadu_ps(sums), high = _mm512_loadu_ps(sums + 16);
        if (bias != nullptr) {
            low = _mm512_add_ps(low, _mm512_loadu_ps(bias));
            high = _mm512_add_ps(high, _mm512_loadu_ps(bias + 16));
        }
        _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        return;
    }
#endif
    if (format == BF16) {
        store_row(sums, bias, static_cast<bf16*>(to), count);
    } else {
        store_row(sums, bias, static_cast<float*>(to), count);
    }
}

// The address of one row and panel in y.
inline char* place_of(const Rows& y, int64_t row, int64_t panel) {
    const int64_t index = row * y.stride + panel * PANEL;
    return static_cast<char*>(y.data) + index * (y.format == BF16 ? sizeof(bf16) : sizeof(float));
}

// The same, stored to its address in y.
inline void store_row(const Linear& linear, const Rows& y, int64_t row, int64_t panel, const float* sums) {
    store_row(linear, panel, sums, y.format, place_of(y, row, panel));
}

}  // namespace orca
