// Linear layers by vector instructions: R rows times one panel, sums in registers.

#pragma once

#include <algorithm>
#include <cstring>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include "linear_int8.h"
#include "linear_store.h"
#include "team.h"

namespace orca {

#if defined(__AVX512F__)
constexpr int WIDTH = 16;
constexpr int MOST_SUMS = 24;
#elif defined(__AVX2__)
constexpr int WIDTH = 8;
constexpr int MOST_SUMS = 8;
#else
constexpr int WIDTH = 4;
constexpr int MOST_SUMS = 16;
#endif

typedef float Floats __attribute__((vector_size(4 * WIDTH)));
typedef int32_t Ints __attribute__((vector_size(4 * WIDTH)));
typedef float LooseFloats __attribute__((vector_size(4 * WIDTH), aligned(4)));
typedef int32_t LooseInts __attribute__((vector_size(4 * WIDTH), aligned(4)));

constexpr int64_t PREFETCH_BYTES = 4096;

// How each format of weights multiplies. `Input` is what a row of x consists of by then, STEP of them per step; a step
// of the panel is PANEL times 4 bytes.
struct FloatDot {
    using Input = float;
    using Sum = Floats;
    static constexpr int STEP = 1;
    struct Weight {
        Floats value;
        explicit Weight(const char* at) : value(*reinterpret_cast<const LooseFloats*>(at)) {}
    };
    static Sum add(Sum sum, const Weight& weight, const Input* x) { return sum + weight.value * x[0]; }
};

#ifdef __AVX512BF16__
struct BfloatDot {
    using Input = bf16;
    using Sum = __m512;
    static constexpr int STEP = 2;
    struct Weight {
        __m512i value;
        explicit Weight(const char* at) : value(_mm512_loadu_si512(at)) {}
    };
    static Sum add(Sum sum, const Weight& weight, const Input* x) {
        int32_t pair;
        std::memcpy(&pair, x, sizeof pair);
        return _mm512_dpbf16_ps(sum, (__m512bh)weight.value, (__m512bh)_mm512_set1_epi32(pair));
    }
};
#else
struct BfloatDot {
    using Input = float;
    using Sum = Floats;
    static constexpr int STEP = 2;
    struct Weight {
        Floats even;
        Floats odd;
        explicit Weight(const char* at) {
            const Ints pairs = *reinterpret_cast<const LooseInts*>(at);
            even = (Floats)(pairs << 16);
            odd = (Floats)(pairs & static_cast<int32_t>(0xffff0000));
        }
    };
    static Sum add(Sum sum, const Weight& weight, const Input* x) {
        return (sum + weight.even * x[0]) + weight.odd * x[1];
    }
};
#endif

#ifdef __AVX512VNNI__
// x with 128 added: the instruction multiplies unsigned by signed.
struct ByteDot {
    using Input = uint8_t;
    using Sum = Ints;
    using Product = int32_t;
    static constexpr int STEP = 4;
    static constexpr int32_t OFFSET = 128;
    struct Weight {
        __m512i value;
        explicit Weight(const char* at) : value(_mm512_loadu_si512(at)) {}
    };
    static Sum add(Sum sum, const Weight& weight, const Input* x) {
        int32_t four;
        std::memcpy(&four, x, sizeof four);
        return (Sum)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32(four), weight.value);
    }
};
#else
struct ByteDot {
    using Input = float;
    using Sum = Floats;
    using Product = float;
    static constexpr int STEP = 4;
    static constexpr int32_t OFFSET = 0;
    struct Weight {
        Floats value[4];
        explicit Weight(const char* at) {
            const Ints four = *reinterpret_cast<const LooseInts*>(at);
            for (int i = 0; i < 4; i++) value[i] = __builtin_convertvector((four << (24 - 8 * i)) >> 24, Floats);
        }
    };
    static Sum add(Sum sum, const Weight& weight, const Input* x) {
        return ((sum + weight.value[0] * x[0]) + weight.value[1] * x[1]) +
               (weight.value[2] * x[2] + weight.value[3] * x[3]);
    }
};
#endif

// The sums of R rows and C vectors of columns, over `steps` steps. `x` has `x_stride` elements from row to row.
template <class Dot, int R, int C>
inline void sum_up(const char* panel, const typename Dot::Input* x, int64_t x_stride, int64_t steps, float* sums) {
    constexpr int CHAINS = R * C <= 2 ? 4 : R * C <= 4 ? 2 : 1;  // enough independent sums to hide their latency
    typename Dot::Sum total[CHAINS][R][C] = {};
    int64_t step = 0;
    for (; step + CHAINS <= steps; step += CHAINS) {
#pragma GCC unroll 4
        for (int chain = 0; chain < CHAINS; chain++) {
            const char* at = panel + (step + chain) * PANEL * 4;
            for (int c = 0; c < C * WIDTH * 4; c += 64) __builtin_prefetch(at + PREFETCH_BYTES + c);
#pragma GCC unroll 8
            for (int c = 0; c < C; c++) {
                const typename Dot::Weight weight(at + c * WIDTH * 4);
#pragma GCC unroll 24
                for (int r = 0; r < R; r++) {
                    total[chain][r][c] =
                        Dot::add(total[chain][r][c], weight, x + r * x_stride + (step + chain) * Dot::STEP);
                }
            }
        }
    }
    for (; step < steps; step++) {
        for (int c = 0; c < C; c++) {
            const typename Dot::Weight weight(panel + step * PANEL * 4 + c * WIDTH * 4);
            for (int r = 0; r < R; r++) {
                total[0][r][c] = Dot::add(total[0][r][c], weight, x + r * x_stride + step * Dot::STEP);
            }
        }
    }
#pragma GCC unroll 24
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) {
            typename Dot::Sum sum = total[0][r][c];
#pragma GCC unroll 4
            for (int chain = 1; chain < CHAINS; chain++) sum += total[chain][r][c];
            std::memcpy(sums + r * PANEL + c * WIDTH, &sum, sizeof sum);
        }
    }
}

// R rows times one whole panel.
template <class Dot, int R>
void rows_times_panel(const char* panel, const typename Dot::Input* x, int64_t x_stride, int64_t steps, float* sums) {
    constexpr int ALL = PANEL / WIDTH;
    constexpr int C = ALL * R <= MOST_SUMS ? ALL : ALL * R <= 2 * MOST_SUMS ? ALL / 2 : ALL / 4;
    for (int c = 0; c < ALL; c += C) {
        sum_up<Dot, R, C>(panel + c * WIDTH * 4, x, x_stride, steps, sums + c * WIDTH);
    }
}

constexpr int MOST_ROWS = WIDTH == 16 ? 12 : 4;

template <class Dot>
void rows_times_panel(
    int rows, const char* panel, const typename Dot::Input* x, int64_t x_stride, int64_t steps, float* sums) {
    switch (rows) {
        case 1: return rows_times_panel<Dot, 1>(panel, x, x_stride, steps, sums);
        case 2: return rows_times_panel<Dot, 2>(panel, x, x_stride, steps, sums);
        case 3: return rows_times_panel<Dot, 3>(panel, x, x_stride, steps, sums);
        case 4: return rows_times_panel<Dot, 4>(panel, x, x_stride, steps, sums);
        case 5: return rows_times_panel<Dot, 5>(panel, x, x_stride, steps, sums);
        case 6: return rows_times_panel<Dot, 6>(panel, x, x_stride, steps, sums);
        case 7: return rows_times_panel<Dot, 7>(panel, x, x_stride, steps, sums);
        case 8: return rows_times_panel<Dot, 8>(panel, x, x_stride, steps, sums);
        case 9: return rows_times_panel<Dot, 9>(panel, x, x_stride, steps, sums);
        case 10: return rows_times_panel<Dot, 10>(panel, x, x_stride, steps, sums);
        case 11: return rows_times_panel<Dot, 11>(panel, x, x_stride, steps, sums);
        default: return rows_times_panel<Dot, 12>(panel, x, x_stride, steps, sums);
    }
}

// Rows of x as `Input`, `depth` values each with zeros behind the k of x.
template <class Input, class T>
const Input* convert_rows(const T* x, int64_t x_stride, Range rows, int64_t k, int64_t depth) {
    static thread_local Scratch scratch;
    Input* to = scratch.get<Input>((rows.end - rows.begin) * depth);
    for (int64_t row = rows.begin; row < rows.end; row++) {
        Input* at = to + (row - rows.begin) * depth;
        const T* from = x + row * x_stride;
        for (int64_t i = 0; i < k; i++) {
            if constexpr (sizeof(Input) == sizeof(T)) {
                at[i] = from[i];
            } else {
                at[i] = load(from + i);
            }
        }
        std::fill(at + k, at + depth, Input{});
    }
    return to;
}

// Panels times rows that are in the form that `Dot` takes; row r of x has x_scales[r], if there are any.
template <class Dot>
void rows_times_panels(
    const Linear& linear, const typename Dot::Input* x, int64_t x_stride, const float* x_scales, const Rows& y,
    Range rows, Range columns) {
    const int64_t steps = (linear.k + Dot::STEP - 1) / Dot::STEP;
    const int64_t m = rows.end - rows.begin;
    const int64_t blocks = (m + MOST_ROWS - 1) / MOST_ROWS;
    alignas(64) float sums[MOST_ROWS * PANEL];
    for (int64_t panel = columns.begin; panel < columns.end; panel++) {
        const char* weight = static_cast<const char*>(linear.weight) + panel * panel_bytes(linear.format, linear.k);
        for (int64_t block = 0; block < blocks; block++) {
            const Range part = share(m, block, blocks);
            const int count = static_cast<int>(part.end - part.begin);
            rows_times_panel<Dot>(count, weight, x + part.begin * x_stride, x_stride, steps, sums);
            for (int64_t r = 0; r < count; r++) {
                if constexpr (Dot::STEP == 4) {
                    const float scale = x_scales[part.begin + r];
                    scale_row<typename Dot::Product>(linear, panel, Dot::OFFSET, scale, sums + r * PANEL);
                }
                store_row(linear, y, rows.begin + part.begin + r, panel, sums + r * PANEL);
            }
        }
    }
}

inline void bytes_by_vectors(const Linear& linear, const Rows& x, const Rows& y, Range rows, Range columns) {
    const int64_t depth = (linear.k + 3) / 4 * 4;
    const Quantized rounded = quantize_rows(x, rows, depth, ByteDot::OFFSET, linear.k);
    if constexpr (sizeof(ByteDot::Input) == 1) {
        const auto* from = reinterpret_cast<const ByteDot::Input*>(rounded.values);
        rows_times_panels<ByteDot>(linear, from, depth, rounded.scales, y, rows, columns);
    } else {
        const auto* values = reinterpret_cast<const int8_t*>(rounded.values);
        const auto* from = convert_rows<ByteDot::Input>(values, depth, {0, rows.end - rows.begin}, depth, depth);
        rows_times_panels<ByteDot>(linear, from, depth, rounded.scales, y, rows, columns);
    }
}

// x is in the format of the weight.
template <class Dot, class T>
void linear_by_vectors(const Linear& linear, const Rows& x, const Rows& y, Range rows, Range columns) {
    using Input = typename Dot::Input;
    const int64_t steps = (linear.k + Dot::STEP - 1) / Dot::STEP;
    const T* own = static_cast<const T*>(x.data);
    const Input* from;
    int64_t stride = steps * Dot::STEP;
    if (sizeof(Input) == sizeof(T) && linear.k == stride) {
        from = reinterpret_cast<const Input*>(own + rows.begin * x.stride);
        stride = x.stride;
    } else {
        from = convert_rows<Input>(own, x.stride, rows, linear.k, stride);
    }
    rows_times_panels<Dot>(linear, from, stride, nullptr, y, rows, columns);
}

}  // namespace orca
