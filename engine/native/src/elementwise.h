// What lies between the linear layers: RMSNorm, gated activations, rotary positions.

#pragma once

#include <cstdint>

#include "activation.h"
#include "linear.h"

namespace orca {

// rows x parts vectors in BF16 or F32, strides in elements: tokens and heads, say.
struct Vectors {
    void* data;
    int64_t rows;
    int64_t row_stride;
    int64_t parts;
    int64_t part_stride;
    int32_t format;
};

// All compute the share of one of `threads` threads, without a barrier inside; sums are float32, and rounded once.

// y = x / sqrt(mean(x^2) + eps) * weight over `width` values. With a residual (or null) x is added to it before, in
// place and rounded: the stream that the next layer adds to.
void rms_norm_team(
    const Vectors& x, const Vectors* residual, const Vectors& y, const float* weight, int64_t width, float eps,
    int thread, int threads);

// y = activation(gate) * up over `width` values.
void gated_team(
    const Rows& gate, const Rows& up, const Rows& y, int64_t width, int32_t activation, int thread, int threads);

// What `rms_norm_team` does without a residual.
struct Norm {
    const float* weight;
    int64_t width;
    float eps;
};

// In place: the first `width` values turned by the row's angles, value i together with i + width / 2, behind the norm, if
// any (or null); cos and sin are [rows, width] in F32.
void rotary_team(
    const Vectors& x, const Norm* norm, const float* cos, const float* sin, int64_t width, int thread, int threads);

}  // namespace orca
