// Dot products by vector instructions: how each format of weights multiplies.

#pragma once

#include <cstring>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include "linear.h"
#include "number.h"

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

constexpr int MOST_ROWS = WIDTH == 16 ? 12 : 4;  // of a block

typedef float Floats __attribute__((vector_size(4 * WIDTH)));
typedef int32_t Ints __attribute__((vector_size(4 * WIDTH)));
typedef float LooseFloats __attribute__((vector_size(4 * WIDTH), aligned(4)));
typedef int32_t LooseInts __attribute__((vector_size(4 * WIDTH), aligned(4)));

constexpr int64_t PREFETCH_BYTES = 4096;

constexpr int64_t STEP_BYTES = PANEL * 4;  // per step of a panel

// How each format of weights multiplies. `Input` is what a `Row` of x is packed as, STEP of them per step; a step of
// the panel is WIDER times STEP_BYTES. `Widened`, if not void, does the same with a panel that was prepared for it.
struct AsPacked {
    using Widened = void;
    static constexpr int WIDER = 1;
    static constexpr bool COMPACT = false;  // CompactDot
};

struct FloatDot : AsPacked {
    using Row = float;
    using Input = float;
    using Sum = Floats;
    static constexpr int STEP = 1;
    struct Weight {
        Floats value;
        Weight() = default;
        explicit Weight(const char* at) : value(*reinterpret_cast<const LooseFloats*>(at)) {}
    };
    static Sum add(Sum sum, const Weight& weight, const Input* x) { return sum + weight.value * x[0]; }
};

#ifdef __AVX512BF16__
struct BfloatDot : AsPacked {
    using Row = bf16;
    using Input = bf16;
    using Sum = __m512;
    static constexpr int STEP = 2;
    struct Weight {
        __m512i value;
        Weight() = default;
        explicit Weight(const char* at) : value(_mm512_loadu_si512(at)) {}
        explicit Weight(__m512i pairs) : value(pairs) {}
    };
    static Sum add(Sum sum, const Weight& weight, const Input* x) {
        int32_t pair;
        std::memcpy(&pair, x, sizeof pair);
        return _mm512_dpbf16_ps(sum, (__m512bh)weight.value, (__m512bh)_mm512_set1_epi32(pair));
    }
};
#else
struct WidePairs {
    Floats even;
    Floats odd;
};

inline WidePairs widen_pairs(const char* at) {
    const Ints pairs = *reinterpret_cast<const LooseInts*>(at);
    return {(Floats)(pairs << 16), (Floats)(pairs & static_cast<int32_t>(0xffff0000))};
}

// For a panel in float32: a step has the even numbers of each pair, followed by the odd ones.
struct WideDot {
    using Input = float;
    using Sum = Floats;
    static constexpr bool COMPACT = false;
    static constexpr int STEP = 2, WIDER = 2;
    struct Weight : WidePairs {
        Weight() = default;
        explicit Weight(const char* at)
            : WidePairs{*reinterpret_cast<const LooseFloats*>(at),
                        *reinterpret_cast<const LooseFloats*>(at + STEP_BYTES)} {}
    };
    static Sum add(Sum sum, const WidePairs& weight, const Input* x) {
        return (sum + weight.even * x[0]) + weight.odd * x[1];
    }

    static void prepare(const char* panel, int64_t steps, char* to) {
        for (int64_t step = 0; step < steps; step++, panel += STEP_BYTES, to += WIDER * STEP_BYTES) {
            for (int64_t at = 0; at < STEP_BYTES; at += WIDTH * 4) {
                const WidePairs wide = widen_pairs(panel + at);
                std::memcpy(to + at, &wide.even, sizeof wide.even);
                std::memcpy(to + STEP_BYTES + at, &wide.odd, sizeof wide.odd);
            }
        }
    }
};

struct BfloatDot : AsPacked {
    using Row = bf16;
    using Input = float;
    using Sum = Floats;
    using Widened = WideDot;
    static constexpr int STEP = 2;
    struct Weight : WidePairs {
        Weight() = default;
        explicit Weight(const char* at) : WidePairs(widen_pairs(at)) {}
    };
    static Sum add(Sum sum, const Weight& weight, const Input* x) { return WideDot::add(sum, weight, x); }
};
#endif

#ifdef __AVX512VNNI__
// x with 128 added, because the instruction multiplies unsigned by signed numbers.
struct ByteDot : AsPacked {
    using Input = uint8_t;
    using Sum = Ints;
    using Product = int32_t;
    static constexpr int STEP = 4;
    static constexpr int32_t OFFSET = 128;
    struct Weight {
        __m512i value;
        Weight() = default;
        explicit Weight(const char* at) : value(_mm512_loadu_si512(at)) {}
    };
    static Sum add(Sum sum, const Weight& weight, const Input* x) {
        int32_t four;
        std::memcpy(&four, x, sizeof four);
        return (Sum)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32(four), weight.value);
    }
};
#else
struct ByteDot : AsPacked {
    using Input = float;
    using Sum = Floats;
    using Product = float;
    static constexpr int STEP = 4;
    static constexpr int32_t OFFSET = 0;
    struct Weight {
        Floats value[4];
        Weight() = default;
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

// Weights of one step stay in registers while rows pass; the other way round there would be more rows than registers.
template <class Dot, int R, int C>
inline void add_weights(
    const typename Dot::Weight (&weight)[C], const typename Dot::Input* x, typename Dot::Sum (&sums)[R][C]) {
#pragma GCC unroll 24
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) sums[r][c] = Dot::add(sums[r][c], weight[c], x + r * Dot::STEP);
    }
}

template <class Dot, int R, int C>
inline void add_step(const char* weights, const typename Dot::Input* x, typename Dot::Sum (&sums)[R][C]) {
    typename Dot::Weight weight[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) weight[c] = typename Dot::Weight(weights + c * WIDTH * 4);
    add_weights<Dot, R, C>(weight, x, sums);
}

// Write the sums of R rows and C vectors, each the sum of several chains, as rows of PANEL numbers.
template <class Dot, int CHAINS, int R, int C>
inline void put_sums(typename Dot::Sum (&total)[CHAINS][R][C], float* sums) {
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

// The number of independent sums of a row and vector, enough to hide their latency.
constexpr int chains_of(int sums) { return sums <= 2 ? 4 : sums <= 4 ? 2 : 1; }

// One block of rows reads the panel itself from memory, and prefetches it some distance ahead.
struct Alone {
    static constexpr bool ALONE = true;
};

}  // namespace orca
