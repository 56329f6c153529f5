// Activations of MLPs.

#pragma once

#include <algorithm>
#include <cmath>

#include "vector.h"

namespace orca {

enum Activation : int32_t { SILU = 0, GELU_TANH = 1, GELU = 2, RELU = 3, SQUARED_RELU = 4, CLAMPED_SWISH = 5 };

template <int32_t KIND> inline f32x16 activate(f32x16 x) {
    if constexpr (KIND == SILU) return x / (1.0f + exp_of(-x));
    if constexpr (KIND == GELU) {
        for (int lane = 0; lane < kLanes; lane++) x[lane] *= 0.5f * (1.0f + std::erf(x[lane] * 0.70710678f));
        return x;
    }
    if constexpr (KIND == RELU || KIND == SQUARED_RELU) {
        x = by_registers([](auto part) { return part < 0.0f ? decltype(part){} : part; }, x);  // NaN stays NaN
        return KIND == RELU ? x : x * x;
    }
    // 0.5 (1 + tanh(u)) is the logistic function of 2 u
    return x / (1.0f + exp_of(-1.59576912f * (x + 0.044715f * x * x * x)));
}

// Call compute with the activation as a function of vectors.
template <class Compute> void by_activation(int32_t activation, Compute compute) {
    switch (activation) {
        case SILU: return compute([](f32x16 x) { return activate<SILU>(x); });
        case GELU: return compute([](f32x16 x) { return activate<GELU>(x); });
        case RELU: return compute([](f32x16 x) { return activate<RELU>(x); });
        case SQUARED_RELU: return compute([](f32x16 x) { return activate<SQUARED_RELU>(x); });
        default: return compute([](f32x16 x) { return activate<GELU_TANH>(x); });
    }
}

// y = activation(gate) * up; y may be one of them.
template <class T> void gated_row(const T* gate, const T* up, T* y, int64_t width, int32_t activation) {
    by_activation(activation, [&](auto activated) {
        for_vectors(width, [&](int64_t i, int64_t count) {
            put_numbers(y + i, activated(take_numbers(gate + i, count)) * take_numbers(up + i, count), count);
        });
    });
}

// x = activation(x).
template <class T> void activated_row(T* x, int64_t width, int32_t activation) {
    by_activation(activation, [&](auto activated) {
        for_vectors(width, [&](int64_t i, int64_t count) {
            put_numbers(x + i, activated(take_numbers(x + i, count)), count);
        });
    });
}

}  // namespace orca
