// The operators between linear layers: norms, activations, rotary positions.

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

// y = (x - mean) / sqrt(variance + epsilon) * weight + bias over `width` values: an RMSNorm if it does not center, with a
// mean of 0, otherwise a LayerNorm.
struct Norm {
    const float* weight;
    const float* bias;  // or null
    int64_t width;
    float epsilon;
    int32_t centers;
};

// If `residual` is not null, x is first added to it in place, rounded: it is the stream to which the next layer adds.
void norm_team(
    const Vectors& x, const Vectors* residual, const Vectors& y, const Norm& norm, int thread, int threads);

// What happens to the result of a part of a layer before it is added to the stream.
struct Change {
    const Norm* norm;  // or null
    float factor;
    int64_t width;
};

// Add x to `residual` after `change`, all in place, and normalize the sum into y; y is not written without a norm.
void advance_team(
    const Vectors& x, const Change& change, const Vectors& residual, const Vectors& y, const Norm* norm, int thread,
    int threads);

// y = activation(gate) * up over `width` values.
void gated_team(
    const Rows& gate, const Rows& up, const Rows& y, int64_t width, int32_t activation, int thread, int threads);

// x = activation(x) over `width` values, in place.
void activate_team(const Rows& x, int64_t width, int32_t activation, int thread, int threads);

// x = cap * tanh(x * factor / cap) over `width` values, in place; cap 0: x * factor.
void scale_team(const Rows& x, int64_t width, float factor, float cap, int thread, int threads);

// The angles of rows, in F32.
struct Angles {
    const float* cos;          // [positions, width]
    const float* sin;
    const int64_t* positions;  // [rows]; null: row i is at position i
    int64_t width;
    // Whether value 2 i is paired with its neighbor, instead of value i with i + width / 2. Then the sine of value 2 i is
    // negative.
    bool neighbors;
};

// In place: apply the norm, if not null, then rotate the first `angles.width` values by the row's angles.
void rotary_team(const Vectors& x, const Norm* norm, const Angles& angles, int thread, int threads);

}  // namespace orca
