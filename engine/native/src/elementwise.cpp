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

template <class T> T* vector_of(const Vectors& all, int64_t index) {
    const int64_t row = index / all.parts, part = index % all.parts;
    return static_cast<T*>(all.data) + row * all.row_stride + part * all.part_stride;
}

template <class T> void norm_row(const T* x, T* residual, T* y, const Norm& norm) {
    const int64_t width = norm.width;
    const auto added = [&](int64_t i, int64_t count) {
        const f32x16 values = take_numbers(x + i, count);
        if (residual == nullptr) return values;
        T sums[kLanes];
        put_numbers(sums, values + take_numbers(residual + i, count), count);
        std::memcpy(residual + i, sums, count * sizeof(T));
        return take_numbers(sums, count);
    };
    f32x16 even{}, odd{};  // a single chain would be bound by latency
    const auto total = [&](auto term) {
        even = odd = f32x16{};
        int64_t i = 0;
        for (; i + 2 * kLanes <= width; i += 2 * kLanes) {
            even += term(i, kLanes);
            odd += term(i + kLanes, kLanes);
        }
        for (; i < width; i += kLanes) even += term(i, std::min<int64_t>(width - i, kLanes));
        return sum_of(even + odd);
    };
    const auto square = [](f32x16 values) { return values * values; };
    const T* const sums = residual != nullptr ? residual : x;
    float mean = 0, squares;
    if (norm.centers) {
        mean = total(added) / static_cast<float>(width);
        squares = total([&](int64_t i, int64_t count) {
            const f32x16 centered = take_numbers(sums + i, count) - mean;
            return square(count == kLanes ? centered : lane_numbers() < static_cast<int32_t>(count) ? centered : f32x16{});
        });
    } else {
        squares = total([&](int64_t i, int64_t count) { return square(added(i, count)); });
    }
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(width) + norm.epsilon);
    for_vectors(width, [&](int64_t i, int64_t count) {
        f32x16 scaled = (take_numbers(sums + i, count) - mean) * scale * take_numbers(norm.weight + i, count);
        if (norm.bias != nullptr) scaled += take_numbers(norm.bias + i, count);
        put_numbers(y + i, scaled, count);
    });
}

// x = compute(x) over `width` values.
template <class T, class Compute> void change_row(T* x, int64_t width, Compute compute) {
    for_vectors(width, [&](int64_t i, int64_t count) { put_numbers(x + i, compute(take_numbers(x + i, count)), count); });
}

template <class T> void advance_row(T* x, const Change& change, T* residual, T* y, const Norm* norm) {
    if (change.norm != nullptr) norm_row<T>(x, nullptr, x, *change.norm);
    if (change.factor != 1.0f) change_row(x, change.width, [&](f32x16 values) { return values * change.factor; });
    if (norm != nullptr) return norm_row<T>(x, residual, y, *norm);
    for_vectors(change.width, [&](int64_t i, int64_t count) {
        put_numbers(residual + i, take_numbers(residual + i, count) + take_numbers(x + i, count), count);
    });
}

template <class T> void scale_row(T* x, int64_t width, float factor, float cap) {
    if (cap == 0.0f) return change_row(x, width, [&](f32x16 values) { return values * factor; });
    // tanh(u) = 1 - 2 / (1 + exp(2 u))
    const float inner = 2.0f * factor / cap;
    change_row(x, width, [&](f32x16 values) { return cap - 2.0f * cap / (1.0f + exp_of(values * inner)); });
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

template <class T> void turn_neighbors(T* x, const float* cos, const float* sin, int64_t width) {
    const i32x16 neighbors = lane_numbers() ^ 1;
    for_vectors(width, [&](int64_t i, int64_t count) {
        const f32x16 values = take_numbers(x + i, count);
        const f32x16 turned = values * take_numbers(cos + i, count);
        put_numbers(x + i, turned + __builtin_shuffle(values, neighbors) * take_numbers(sin + i, count), count);
    });
}

template <class T> void normed_turn(T* x, const Norm* norm, const Angles& angles, int64_t at) {
    if (norm != nullptr) norm_row<T>(x, nullptr, x, *norm);
    if (angles.width == 0) return;
    if (angles.neighbors) {
        turn_neighbors(x, angles.cos + at, angles.sin + at, angles.width);
    } else {
        turn(x, angles.cos + at, angles.sin + at, angles.width);
    }
}

}  // namespace

void norm_team(const Vectors& x, const Vectors* residual, const Vectors& y, const Norm& norm, int thread, int threads) {
    const Range part = share(x.rows * x.parts, thread, threads);
    by_format(x.format, [&](auto* of) {
        using T = std::remove_pointer_t<decltype(of)>;
        for (int64_t i = part.begin; i < part.end; i++) {
            norm_row(vector_of<T>(x, i), residual ? vector_of<T>(*residual, i) : nullptr, vector_of<T>(y, i), norm);
        }
    });
}

void advance_team(
    const Vectors& x, const Change& change, const Vectors& residual, const Vectors& y, const Norm* norm, int thread,
    int threads) {
    const Range part = share(x.rows * x.parts, thread, threads);
    by_format(x.format, [&](auto* of) {
        using T = std::remove_pointer_t<decltype(of)>;
        for (int64_t i = part.begin; i < part.end; i++) {
            advance_row(vector_of<T>(x, i), change, vector_of<T>(residual, i), vector_of<T>(y, i), norm);
        }
    });
}

void activate_team(const Rows& x, int64_t width, int32_t activation, int thread, int threads) {
    const auto [rows, columns] = block_of(x.m, width, thread, threads);
    by_format(x.format, [&](auto* of) {
        using T = std::remove_pointer_t<decltype(of)>;
        for (int64_t row = rows.begin; row < rows.end; row++) {
            activated_row(row_of<T>(x, row, columns.begin), columns.end - columns.begin, activation);
        }
    });
}

void scale_team(const Rows& x, int64_t width, float factor, float cap, int thread, int threads) {
    const auto [rows, columns] = block_of(x.m, width, thread, threads);
    by_format(x.format, [&](auto* of) {
        using T = std::remove_pointer_t<decltype(of)>;
        for (int64_t row = rows.begin; row < rows.end; row++) {
            scale_row(row_of<T>(x, row, columns.begin), columns.end - columns.begin, factor, cap);
        }
    });
}

void gated_team(
    const Rows& gate, const Rows& up, const Rows& y, int64_t width, int32_t activation, int thread, int threads) {
    const auto [rows, columns] = block_of(y.m, width, thread, threads);
    by_format(y.format, [&](auto* of) {
        using T = std::remove_pointer_t<decltype(of)>;
        for (int64_t row = rows.begin; row < rows.end; row++) {
            const int64_t from = columns.begin;
            gated_row(row_of<const T>(gate, row, from), row_of<const T>(up, row, from), row_of<T>(y, row, from),
                      columns.end - from, activation);
        }
    });
}

void rotary_team(const Vectors& x, const Norm* norm, const Angles& angles, int thread, int threads) {
    const Range part = share(x.rows * x.parts, thread, threads);
    by_format(x.format, [&](auto* of) {
        using T = std::remove_pointer_t<decltype(of)>;
        for (int64_t i = part.begin; i < part.end; i++) {
            const int64_t row = i / x.parts;
            normed_turn(vector_of<T>(x, i), norm, angles, (angles.positions ? angles.positions[row] : row) * angles.width);
        }
    });
}

}  // namespace orca

extern "C" void orca_rms_norm(
    const orca::Vectors* x, const orca::Vectors* residual, const orca::Vectors* y, const float* weight, int64_t width,
    float eps, int threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
    orca::norm_team(*x, residual, *y, {weight, nullptr, width, eps, 0}, omp_get_thread_num(), omp_get_num_threads());
}

extern "C" void orca_gated(
    const orca::Rows* gate, const orca::Rows* up, const orca::Rows* y, int64_t width, int32_t activation, int threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
    orca::gated_team(*gate, *up, *y, width, activation, omp_get_thread_num(), omp_get_num_threads());
}

extern "C" void orca_rotary(
    const orca::Vectors* x, const float* cos, const float* sin, int64_t width, int threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
    orca::rotary_team(*x, nullptr, {cos, sin, nullptr, width, false}, omp_get_thread_num(), omp_get_num_threads());
}
