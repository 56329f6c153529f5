// Activations of gated MLPs.

#pragma once

#include <algorithm>
#include <cmath>

#include "vector.h"

namespace orca {

enum Activation : int32_t { SILU = 0, GELU_TANH = 1, GELU = 2 };

template <int32_t KIND> inline f32x16 activate(f32x16 x) {
    if constexpr (KIND == SILU) return x / (1.0f + exp_of(-x));
    if constexpr (KIND == GELU) {
        for (int lane = 0; lane < kLanes; lane++) x[lane] *= 0.5f * (1.0f + std::erf(x[lane] * 0.70710678f));
        return x;
    }
    // 0.5 (1 + tanh(u)) is the logistic function of 2 u
    return x / (1.0f + exp_of(-1.59576912f * (x + 0.044715f * x * x * x)));
}

template <int32_t KIND, class T> void gated_row(const T* gate, const T* up, T* y, int64_t width) {
    for (int64_t i = 0; i < width; i += kLanes) {
        const int64_t count = std::min<int64_t>(width - i, kLanes);
        put_numbers(y + i, activate<KIND>(take_numbers(gate + i, count)) * take_numbers(up + i, count), count);
    }
}

// y = activation(gate) * up; y may be one of them.
template <class T> void gated_row(const T* gate, const T* up, T* y, int64_t width, int32_t activation) {
    if (activation == SILU) return gated_row<SILU>(gate, up, y, width);
    if (activation == GELU) return gated_row<GELU>(gate, up, y, width);
    gated_row<GELU_TANH>(gate, up, y, width);
}

}  // namespace orca
