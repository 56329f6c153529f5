// Linear layers by vector instructions: R rows times one panel, sums in registers.

#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include "fetch.h"
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

constexpr int64_t STEP_BYTES = PANEL * 4;  // per step of a panel

// How each format of weights multiplies. `Input` is what a `Row` of x is packed as, STEP of them per step; a step of
// the panel is WIDER times STEP_BYTES. `Widened`, if not void, does the same with a panel that was prepared for it.
struct AsPacked {
    using Widened = void;
    static constexpr int WIDER = 1;
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
inline void add_step(const char* weights, const typename Dot::Input* x, typename Dot::Sum (&sums)[R][C]) {
    using Weight = typename Dot::Weight;
    Weight weight[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) weight[c] = Weight(weights + c * WIDTH * 4);
#pragma GCC unroll 24
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) sums[r][c] = Dot::add(sums[r][c], weight[c], x + r * Dot::STEP);
    }
}

// The sums of R rows and C vectors of columns, over `steps` steps. `x` is a packed block. With FETCH, the next panel is
// prefetched meanwhile; otherwise the panel itself is read from memory, and prefetched some distance ahead.
template <class Dot, int R, int C, bool FETCH>
inline void sum_up(const char* panel, const typename Dot::Input* x, int64_t steps, Fetch& fetch, float* sums) {
    constexpr int CHAINS = R * C <= 2 ? 4 : R * C <= 4 ? 2 : 1;  // enough independent sums to hide their latency
    typename Dot::Sum total[CHAINS][R][C] = {};
    Fetch ahead = fetch;  // in registers
    int64_t step = 0;
    for (; step + CHAINS <= steps; step += CHAINS) {
#pragma GCC unroll 4
        for (int chain = 0; chain < CHAINS; chain++) {
            const char* at = panel + (step + chain) * Dot::WIDER * STEP_BYTES;
            if constexpr (FETCH) {
                ahead.step();
            } else {
                for (int c = 0; c < C * WIDTH * 4; c += 64) __builtin_prefetch(at + PREFETCH_BYTES + c);
            }
            add_step<Dot, R, C>(at, x + (step + chain) * R * Dot::STEP, total[chain]);
        }
    }
    for (; step < steps; step++) {
        add_step<Dot, R, C>(panel + step * Dot::WIDER * STEP_BYTES, x + step * R * Dot::STEP, total[0]);
    }
    fetch = ahead;
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

constexpr int MOST_ROWS = WIDTH == 16 ? 12 : 4;  // of a block

// A block of R rows times one whole panel.
template <class Dot, int R, bool FETCH>
void block_times_panel(const char* panel, const typename Dot::Input* x, int64_t steps, Fetch& fetch, float* sums) {
    constexpr int ALL = PANEL / WIDTH;
    constexpr int C = ALL * R <= MOST_SUMS ? ALL : ALL * R <= 2 * MOST_SUMS ? ALL / 2 : ALL / 4;
    for (int c = 0; c < ALL; c += C) {
        sum_up<Dot, R, C, FETCH>(panel + c * WIDTH * 4, x, steps, fetch, sums + c * WIDTH);
    }
}

template <class Dot, int R = MOST_ROWS>
void block_times_panel(
    int rows, bool alone, const char* panel, const typename Dot::Input* x, int64_t steps, Fetch& fetch, float* sums) {
    if constexpr (R > 1) {
        if (rows < R) return block_times_panel<Dot, R - 1>(rows, alone, panel, x, steps, fetch, sums);
    }
    if constexpr (2 * R >= MOST_ROWS) {  // several blocks share the rows evenly
        if (!alone) return block_times_panel<Dot, R, true>(panel, x, steps, fetch, sums);
    }
    block_times_panel<Dot, R, false>(panel, x, steps, fetch, sums);
}

typedef uint32_t Fours __attribute__((vector_size(16)));

// Transpose four steps of four rows: adjacent steps of a row end up `rows` apart.
inline void turn_fours(const char* x, int64_t stride_bytes, int64_t rows, char* to) {
    Fours a, b, c, d;
    std::memcpy(&a, x, 16);
    std::memcpy(&b, x + stride_bytes, 16);
    std::memcpy(&c, x + 2 * stride_bytes, 16);
    std::memcpy(&d, x + 3 * stride_bytes, 16);
    const Fours ab = __builtin_shuffle(a, b, Fours{0, 4, 1, 5}), cd = __builtin_shuffle(c, d, Fours{0, 4, 1, 5});
    const Fours ba = __builtin_shuffle(a, b, Fours{2, 6, 3, 7}), dc = __builtin_shuffle(c, d, Fours{2, 6, 3, 7});
    const Fours turned[4] = {
        __builtin_shuffle(ab, cd, Fours{0, 1, 4, 5}), __builtin_shuffle(ab, cd, Fours{2, 3, 6, 7}),
        __builtin_shuffle(ba, dc, Fours{0, 1, 4, 5}), __builtin_shuffle(ba, dc, Fours{2, 3, 6, 7})};
    for (int step = 0; step < 4; step++) std::memcpy(to + step * rows * 4, turned + step, 16);
}

// Pack rows whose steps have 4 bytes.
inline void pack_steps(const char* x, int64_t stride_bytes, int64_t rows, int64_t steps, char* to) {
    const int64_t four_rows = rows / 4 * 4, four_steps = steps / 4 * 4;
    for (int64_t row = 0; row < rows; row++) {
        const bool turned = row < four_rows;
        const char* from = x + row * stride_bytes;
        if (turned && row % 4 == 0) {
            for (int64_t step = 0; step < four_steps; step += 4) {
                turn_fours(from + step * 4, stride_bytes, rows, to + (step * rows + row) * 4);
            }
        }
        for (int64_t step = turned ? four_steps : 0; step < steps; step++) {
            std::memcpy(to + (step * rows + row) * 4, from + step * 4, 4);
        }
    }
}

// Pack a block of rows in the order in which kernels read it, [steps][rows][STEP], with zeros after the k of x.
template <class Dot, class T>
void pack_block(const T* x, int64_t x_stride, int64_t rows, int64_t k, typename Dot::Input* to) {
    using Input = typename Dot::Input;
    const int64_t steps = k / Dot::STEP, whole = steps * Dot::STEP;
    if constexpr (sizeof(Input) == sizeof(T)) {
        pack_steps(reinterpret_cast<const char*>(x), x_stride * sizeof(T), rows, steps, reinterpret_cast<char*>(to));
    } else {
        for (int64_t i = 0; i < whole; i++) {
            for (int64_t row = 0; row < rows; row++) {
                to[(i / Dot::STEP * rows + row) * Dot::STEP + i % Dot::STEP] = load(x + row * x_stride + i);
            }
        }
    }
    if (whole == k) return;
    to += whole * rows;
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = whole; i < whole + Dot::STEP; i++, to++) {
            const T* from = x + row * x_stride + i;
            if constexpr (sizeof(Input) == sizeof(T)) {
                *to = i < k ? static_cast<Input>(*from) : Input{};
            } else {
                *to = i < k ? load(from) : Input{};
            }
        }
    }
}

// Rows that the whole team packs together, block by block, and then reads.
template <class Dot> class PackedRows {
  public:
    using Input = typename Dot::Input;

    PackedRows(const Linear& linear, const Rows& x, LinearWork& work)
        : x_(x),
          k_(linear.k),
          steps_((linear.k + Dot::STEP - 1) / Dot::STEP),
          blocks_((x.m + MOST_ROWS - 1) / MOST_ROWS),
          values_(work.values.get<Input>(0)),
          scales_(work.scales.get<float>(0)) {}

    static void reserve(const Linear& linear, int64_t m, LinearWork& work) {
        work.values.get<Input>(m * (linear.k + Dot::STEP - 1));
        work.scales.get<float>(m);
    }

    // The share of one thread.
    void pack(int thread, int threads) {
        const Range part = share(blocks_, thread, threads);
        for (int64_t index = part.begin; index < part.end; index++) pack(rows(index));
    }

    // Write PANEL columns of the rows of a block, from `column` on, directly instead of packing them from x: [rows][PANEL].
    // k is a whole number of panels.
    template <class T> void put(Range rows, int64_t column, const T* from) {
        const int64_t count = rows.end - rows.begin;
        pack_block<Dot>(from, PANEL, count, PANEL, values(rows) + column * count);
    }

    int64_t blocks() const { return blocks_; }
    int64_t steps() const { return steps_; }
    Range rows(int64_t block) const { return share(x_.m, block, blocks_); }
    Input* values(Range rows) const { return values_ + rows.begin * steps_ * Dot::STEP; }
    float scale(int64_t row) const { return scales_[row]; }

  private:
    void pack(Range rows) {
        const int64_t count = rows.end - rows.begin;
        Input* to = values(rows);
        if constexpr (Dot::STEP == 4) {
            const Quantized rounded = quantize_rows(x_, rows, k_, Dot::OFFSET, k_);
            std::memcpy(scales_ + rows.begin, rounded.scales, count * sizeof(float));
            if constexpr (sizeof(Input) == 1) {
                pack_block<Dot>(rounded.values, k_, count, k_, to);
            } else {
                pack_block<Dot>(reinterpret_cast<const int8_t*>(rounded.values), k_, count, k_, to);
            }
        } else {
            using T = typename Dot::Row;
            pack_block<Dot>(static_cast<const T*>(x_.data) + rows.begin * x_.stride, x_.stride, count, k_, to);
        }
    }

    const Rows& x_;
    const int64_t k_, steps_, blocks_;
    Input* const values_;
    float* const scales_;
};

// Blocks of rows, packed for `Dot`, times the panel at `at`, which may be widened for `Kernel`.
template <class Kernel, class Dot, class Store>
inline void blocks_times(
    const Linear& linear, const PackedRows<Dot>& x, Range blocks, int64_t panel, const char* at, Fetch& fetch,
    Store& store) {
    alignas(64) float sums[MOST_ROWS * PANEL];
    for (int64_t block = blocks.begin; block < blocks.end; block++) {
        const Range rows = x.rows(block);
        const int64_t m = rows.end - rows.begin;
        const bool alone = blocks.end - blocks.begin == 1;
        block_times_panel<Kernel>(static_cast<int>(m), alone, at, x.values(rows), x.steps(), fetch, sums);
        if constexpr (Dot::STEP == 4) {
            for (int64_t r = 0; r < m; r++) {
                scale_row<typename Dot::Product>(linear, panel, Dot::OFFSET, x.scale(rows.begin + r), sums + r * PANEL);
            }
        }
        store(rows, sums);
    }
}

// From this many blocks of rows on it pays off to widen a panel once for all of them, if the result stays in the cache:
// smaller blocks read it more often, on processors that mostly have a smaller second-level cache.
constexpr int64_t BLOCKS_TO_WIDEN = 6;
constexpr int64_t MOST_WIDENED = WIDTH == 16 ? 1 << 19 : 1 << 17;  // bytes

// Memory of this thread, valid until its next call.
inline char* widened_memory(int64_t bytes) {
    static thread_local Scratch memory;
    return memory.get<char>(bytes);
}

// Multiply a range of blocks of packed rows by one panel: `store(rows, sums)` for each block, sums [rows][PANEL]. Meanwhile
// the panel `next` (-1: none) is prefetched.
template <class Dot, class Store>
void blocks_times_panel(
    const Linear& linear, const PackedRows<Dot>& x, Range blocks, int64_t panel, int64_t next, Store store) {
    const int64_t width = panel_bytes(linear.format, linear.k), count = blocks.end - blocks.begin;
    const char* weight = static_cast<const char*>(linear.weight);
    const char* fetched = weight + std::max<int64_t>(next, 0) * width;
    // The first block would wait for memory while the others have nothing to prefetch: all share the prefetching.
    Fetch fetch{fetched, next < 0 ? fetched : fetched + width, (STEP_BYTES / 64 + count - 1) / count};
    const char* at = weight + panel * width;
    if constexpr (!std::is_void_v<typename Dot::Widened>) {
        using Widened = typename Dot::Widened;
        const int64_t bytes = x.steps() * Widened::WIDER * STEP_BYTES;
        if (count >= BLOCKS_TO_WIDEN && bytes <= MOST_WIDENED) {
            char* wide = widened_memory(bytes);
            Widened::prepare(at, x.steps(), wide);
            return blocks_times<Widened>(linear, x, blocks, panel, wide, fetch, store);
        }
    }
    blocks_times<Dot>(linear, x, blocks, panel, at, fetch, store);
}

// The same for a range of panels, written to y.
template <class Dot>
void blocks_times_panels(const Linear& linear, const PackedRows<Dot>& x, const Rows& y, Range blocks, Range columns) {
    for (int64_t panel = columns.begin; panel < columns.end; panel++) {
        const int64_t next = panel + 1 < columns.end ? panel + 1 : -1;
        blocks_times_panel(linear, x, blocks, panel, next, [&](Range rows, const float* sums) {
            for (int64_t row = rows.begin; row < rows.end; row++, sums += PANEL) store_row(linear, y, row, panel, sums);
        });
    }
}

}  // namespace orca
