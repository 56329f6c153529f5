// The operators between linear layers: RMSNorm, gated activations, rotary positions.

#pragma once

#include <cstdint>

#include "activation.h"
#include "linear.h"

namespace orca {

// rows x parts vectors in BF16 or F32, e.g. tokens and heads; strides in elements.
struct Vectors {
    void* data;
    int64_t rows;
    int64_t row_stride;
    int64_t parts;
    int64_t part_stride;
    int32_t format;
};

// All functions compute the share of one of `threads` threads, without a barrier; sums are float32, rounded once.

// y = x / sqrt(mean(x^2) + eps) * weight over `width` values. If `residual` is not null, x is first added to it in
// place, rounded: it is the stream to which the next layer adds.
void rms_norm_team(
    const Vectors& x, const Vectors* residual, const Vectors& y, const float* weight, int64_t width, float eps,
    int thread, int threads);

// y = activation(gate) * up over `width` values.
void gated_team(
    const Rows& gate, const Rows& up, const Rows& y, int64_t width, int32_t activation, int thread, int threads);

// The arguments of `rms_norm_team` without a residual.
struct Norm {
    const float* weight;
    int64_t width;
    float eps;
};

// The angles of rows, in F32.
struct Angles {
    const float* cos;          // [positions, width]
    const float* sin;
    const int64_t* positions;  // [rows]; null: row i is at position i
    int64_t width;
};

// In place: apply the norm, if not null, then rotate the first `angles.width` values by the row's angles, value i paired
// with i + width / 2.
void rotary_team(const Vectors& x, const Norm* norm, const Angles& angles, int thread, int threads);

}  // namespace orca
