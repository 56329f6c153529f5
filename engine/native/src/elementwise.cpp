// What lies between the linear layers.

#include "elementwise.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "number.h"
#include "team.h"

namespace orca {
namespace {

// e^x by 2^n times a polynomial of the rest, without a branch, so that compilers make vectors of it; to 2e-7.
inline float exponential(float x) {
    x = std::min(std::max(x, -87.0f), 88.0f);
    const float n = std::floor(x * 1.44269504f + 0.5f);
    const float rest = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float sum = 1.0f / 720;
    sum = sum * rest + 1.0f / 120;
    sum = sum * rest + 1.0f / 24;
    sum = sum * rest + 1.0f / 6;
    sum = sum * rest + 0.5f;
    sum = sum * rest + 1.0f;
    sum = sum * rest + 1.0f;
    const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof power);
    return sum * power;
}

template <int32_t KIND> inline float activate(float x) {
    if constexpr (KIND == SILU) return x / (1.0f + exponential(-x));
    if constexpr (KIND == GELU) return 0.5f * x * (1.0f + std::erf(x * 0.70710678f));
    // 0.5 (1 + tanh(u)) is the logistic function of 2 u
    return x / (1.0f + exponential(-1.59576912f * (x + 0.044715f * x * x * x)));
}

template <int32_t KIND, class T> void gated_row(const T* gate, const T* up, T* y, int64_t width) {
    for (int64_t i = 0; i < width; i++) store(y + i, activate<KIND>(load(gate + i)) * load(up + i));
}

template <class T>
void gated_row(const Rows& gate, const Rows& up, const Rows& y, int64_t row, Range part, int32_t activation) {
    const T* left = static_cast<const T*>(gate.data) + row * gate.stride + part.begin;
    const T* right = static_cast<const T*>(up.data) + row * up.stride + part.begin;
    T* to = static_cast<T*>(y.data) + row * y.stride + part.begin;
    const int64_t width = part.end - part.begin;
    if (activation == SILU) return gated_row<SILU>(left, right, to, width);
    if (activation == GELU) return gated_row<GELU>(left, right, to, width);
    gated_row<GELU_TANH>(left, right, to, width);
}

template <class T> T* vector_of(const Vectors& all, int64_t index) {
    const int64_t row = index / all.parts, part = index % all.parts;
    return static_cast<T*>(all.data) + row * all.row_stride + part * all.part_stride;
}

template <class T> void norm_row(const T* x, T* residual, T* y, const float* weight, int64_t width, float eps) {
    if (residual != nullptr) {
        for (int64_t i = 0; i < width; i++) store(residual + i, load(residual + i) + load(x + i));
        x = residual;
    }
    constexpr int LANES = 32;
    float lanes[LANES] = {}, squares = 0;
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
        for (int lane = 0; lane < LANES; lane++) {
            const float value = load(x + i + lane);
            lanes[lane] += value * value;
        }
    }
    for (; i < width; i++) squares += load(x + i) * load(x + i);
    for (int lane = 0; lane < LANES; lane++) squares += lanes[lane];
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(width) + eps);
    for (i = 0; i < width; i++) store(y + i, load(x + i) * scale * weight[i]);
}

template <class T> void turn(T* x, const float* cos, const float* sin, int64_t width) {
    const int64_t half = width / 2;
    for (int64_t i = 0; i < half; i++) {
        const float low = load(x + i), high = load(x + half + i);
        store(x + i, low * cos[i] - high * sin[i]);
        store(x + half + i, high * cos[half + i] + low * sin[half + i]);
    }
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
    // Few rows are shared by columns, in whole cache lines.
    const bool by_columns = y.m < threads;
    const Range rows = by_columns ? Range{0, y.m} : share(y.m, thread, threads);
    Range columns = by_columns ? share((width + 31) / 32, thread, threads) : Range{0, (width + 31) / 32};
    columns = {columns.begin * 32, std::min(columns.end * 32, width)};
    for (int64_t row = rows.begin; row < rows.end; row++) {
        if (y.format == BF16) {
            gated_row<bf16>(gate, up, y, row, columns, activation);
        } else {
            gated_row<float>(gate, up, y, row, columns, activation);
        }
    }
}

void rotary_team(const Vectors& x, const float* cos, const float* sin, int64_t width, int thread, int threads) {
    const Range part = share(x.rows * x.parts, thread, threads);
    for (int64_t i = part.begin; i < part.end; i++) {
        const int64_t at = i / x.parts * width;
        if (x.format == BF16) {
            turn(vector_of<bf16>(x, i), cos + at, sin + at, width);
        } else {
            turn(vector_of<float>(x, i), cos + at, sin + at, width);
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
    orca::rotary_team(*x, cos, sin, width, omp_get_thread_num(), omp_get_num_threads());
}
