// The operators between linear layers.

#include "elementwise.h"

#include <omp.h>

#include <algorithm>
#include <cmath>

#include "activation.h"
#include "number.h"
#include "team.h"
#include "vector.h"

namespace orca {
namespace {

template <class T>
void gated_row(const Rows& gate, const Rows& up, const Rows& y, int64_t row, Range part, int32_t activation) {
    const T* left = static_cast<const T*>(gate.data) + row * gate.stride + part.begin;
    const T* right = static_cast<const T*>(up.data) + row * up.stride + part.begin;
    T* to = static_cast<T*>(y.data) + row * y.stride + part.begin;
    const int64_t width = part.end - part.begin;
    orca::gated_row(left, right, to, width, activation);
}

template <class T> T* vector_of(const Vectors& all, int64_t index) {
    const int64_t row = index / all.parts, part = index % all.parts;
    return static_cast<T*>(all.data) + row * all.row_stride + part * all.part_stride;
}

template <class T> void norm_row(const T* x, T* residual, T* y, const float* weight, int64_t width, float eps) {
    const auto added = [&](int64_t i, int64_t count) {
        const f32x16 values = take_numbers(x + i, count);
        if (residual == nullptr) return values;
        T sums[kLanes];
        put_numbers(sums, values + take_numbers(residual + i, count), count);
        std::memcpy(residual + i, sums, count * sizeof(T));
        return take_numbers(sums, count);
    };
    f32x16 even{}, odd{};  // a single chain would be bound by latency
    int64_t i = 0;
    for (; i + 2 * kLanes <= width; i += 2 * kLanes) {
        const f32x16 first = added(i, kLanes), second = added(i + kLanes, kLanes);
        even += first * first;
        odd += second * second;
    }
    for (; i < width; i += kLanes) {
        const f32x16 values = added(i, std::min<int64_t>(width - i, kLanes));
        even += values * values;
    }
    if (residual != nullptr) x = residual;
    const float scale = 1.0f / std::sqrt(sum_of(even + odd) / static_cast<float>(width) + eps);
    const auto scaled = [&](int64_t i, int64_t count) {
        put_numbers(y + i, take_numbers(x + i, count) * scale * take_numbers(weight + i, count), count);
    };
    for (i = 0; i + kLanes <= width; i += kLanes) scaled(i, kLanes);
    if (i < width) scaled(i, width - i);
}

template <class T> void turn(T* x, const float* cos, const float* sin, int64_t width) {
    const int64_t half = width / 2;
    for (int64_t i = 0; i < half; i += kLanes) {
        const int64_t count = std::min<int64_t>(half - i, kLanes);
        const f32x16 low = take_numbers(x + i, count), high = take_numbers(x + half + i, count);
        const f32x16 turned = low * take_numbers(cos + i, count) - high * take_numbers(sin + i, count);
        put_numbers(x + half + i,
                    high * take_numbers(cos + half + i, count) + low * take_numbers(sin + half + i, count), count);
        put_numbers(x + i, turned, count);
    }
}

template <class T> void normed_turn(T* x, const Norm* norm, const float* cos, const float* sin, int64_t width) {
    if (norm != nullptr) norm_row<T>(x, nullptr, x, norm->weight, norm->width, norm->eps);
    turn(x, cos, sin, width);
}

}  // namespace

void rms_norm_team(
    const Vectors& x, const Vectors* residual, const Vectors& y, const float* weight, int64_t width, float eps,
    int thread, int threads) {
    const Range part = share(x.rows * x.parts, thread, threads);
    for (int64_t i = part.begin; i < part.end; i++) {
        if (x.format == BF16) {
            bf16* added = residual == nullptr ? nullptr : vector_of<bf16>(*residual, i);
            norm_row(vector_of<bf16>(x, i), added, vector_of<bf16>(y, i), weight, width, eps);
        } else {
            float* added = residual == nullptr ? nullptr : vector_of<float>(*residual, i);
            norm_row(vector_of<float>(x, i), added, vector_of<float>(y, i), weight, width, eps);
        }
    }
}

void gated_team(
    const Rows& gate, const Rows& up, const Rows& y, int64_t width, int32_t activation, int thread, int threads) {
    const auto [rows, columns] = block_of(y.m, width, thread, threads);
    for (int64_t row = rows.begin; row < rows.end; row++) {
        if (y.format == BF16) {
            gated_row<bf16>(gate, up, y, row, columns, activation);
        } else {
            gated_row<float>(gate, up, y, row, columns, activation);
        }
    }
}

void rotary_team(const Vectors& x, const Norm* norm, const Angles& angles, int thread, int threads) {
    const Range part = share(x.rows * x.parts, thread, threads);
    for (int64_t i = part.begin; i < part.end; i++) {
        const int64_t row = i / x.parts, at = (angles.positions ? angles.positions[row] : row) * angles.width;
        if (x.format == BF16) {
            normed_turn(vector_of<bf16>(x, i), norm, angles.cos + at, angles.sin + at, angles.width);
        } else {
            normed_turn(vector_of<float>(x, i), norm, angles.cos + at, angles.sin + at, angles.width);
        }
    }
}

}  // namespace orca

extern "C" void orca_rms_norm(
    const orca::Vectors* x, const orca::Vectors* residual, const orca::Vectors* y, const float* weight, int64_t width,
    float eps, int threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
    orca::rms_norm_team(*x, residual, *y, weight, width, eps, omp_get_thread_num(), omp_get_num_threads());
}

extern "C" void orca_gated(
    const orca::Rows* gate, const orca::Rows* up, const orca::Rows* y, int64_t width, int32_t activation, int threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
    orca::gated_team(*gate, *up, *y, width, activation, omp_get_thread_num(), omp_get_num_threads());
}

extern "C" void orca_rotary(
    const orca::Vectors* x, const float* cos, const float* sin, int64_t width, int threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
    orca::rotary_team(*x, nullptr, {cos, sin, nullptr, width}, omp_get_thread_num(), omp_get_num_threads());
}
