// What becomes of accumulated sums: bias, rounding, the place in y.

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

// One row of one panel; `sums` are PANEL values.
inline void store_row(const Linear& linear, const Rows& y, int64_t row, int64_t panel, const float* sums) {
    const int64_t column = panel * PANEL;
    const int64_t count = linear.n - column < PANEL ? linear.n - column : PANEL;
    const float* bias = linear.bias == nullptr ? nullptr : linear.bias + column;
    const int64_t place = row * y.stride + column;
#ifdef __AVX512BF16__
    if (y.format == BF16 && count == PANEL) {
        __m512 low = _mm512_loadu_ps(sums), high = _mm512_loadu_ps(sums + 16);
        if (bias != nullptr) {
            low = _mm512_add_ps(low, _mm512_loadu_ps(bias));
            high = _mm512_add_ps(high, _mm512_loadu_ps(bias + 16));
        }
        _mm512_storeu_si512(static_cast<bf16*>(y.data) + place, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        return;
    }
#endif
    if (y.format == BF16) {
        store_row(sums, bias, static_cast<bf16*>(y.data) + place, count);
    } else {
        store_row(sums, bias, static_cast<float*>(y.data) + place, count);
    }
}

}  // namespace orca
