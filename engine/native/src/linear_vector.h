// Linear layers by vector instructions: R rows times one panel, sums in registers.

#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "fetch.h"
#include "linear_compact.h"
#include "linear_dot.h"
#include "linear_int8.h"
#include "linear_part.h"
#include "linear_store.h"
#include "stage.h"
#include "team.h"

namespace orca {

// The sums of R rows and C vectors of columns, over `steps` steps. `x` is a packed block. Each step is one of `Ahead`, too,
// which prepares the next panel.
template <class Dot, int R, int C, class Ahead>
inline void sum_up(const char* panel, const typename Dot::Input* x, int64_t steps, Ahead& shared, float* sums) {
    constexpr int CHAINS = chains_of(R * C);
    typename Dot::Sum total[CHAINS][R][C] = {};
    Ahead ahead = shared;  // in registers
    int64_t step = 0;
    for (; step + CHAINS <= steps; step += CHAINS) {
#pragma GCC unroll 4
        for (int chain = 0; chain < CHAINS; chain++) {
            const char* at = panel + (step + chain) * Dot::WIDER * STEP_BYTES;
            if constexpr (Ahead::ALONE) {
                for (int c = 0; c < C * WIDTH * 4; c += 64) __builtin_prefetch(at + PREFETCH_BYTES + c);
            } else {
                ahead.step();
            }
            add_step<Dot, R, C>(at, x + (step + chain) * R * Dot::STEP, total[chain]);
        }
    }
    for (; step < steps; step++) {
        add_step<Dot, R, C>(panel + step * Dot::WIDER * STEP_BYTES, x + step * R * Dot::STEP, total[0]);
    }
    shared = ahead;
    put_sums<Dot>(total, sums);
}

// The numbers of rows that a block has; several blocks share rows evenly.
template <class Dot> constexpr int most_rows() {
    if constexpr (Dot::COMPACT) return Dot::MOST_ALONE;
    return MOST_ROWS;
}
template <class Ahead> constexpr int fewest_rows() { return Ahead::ALONE ? 1 : MOST_ROWS / 2; }

// A block of R rows times one whole panel.
template <class Dot, int R, class Ahead>
void one_block_times_panel(const char* panel, const typename Dot::Input* x, int64_t steps, Ahead& ahead, float* sums) {
    if constexpr (Dot::COMPACT) {
        Dot::template sum_up<R>(panel, x, steps, sums);
    } else {
        constexpr int ALL = PANEL / WIDTH;
        constexpr int C = ALL * R <= MOST_SUMS ? ALL : ALL * R <= 2 * MOST_SUMS ? ALL / 2 : ALL / 4;
        for (int c = 0; c < ALL; c += C) {
            sum_up<Dot, R, C>(panel + c * WIDTH * 4, x, steps, ahead, sums + c * WIDTH);
        }
    }
}

template <class Dot, class Ahead, int R = most_rows<Dot>()>
void block_times_panel(
    int rows, const char* panel, const typename Dot::Input* x, int64_t steps, Ahead& ahead, float* sums) {
    if constexpr (R > fewest_rows<Ahead>()) {
        if (rows < R) return block_times_panel<Dot, Ahead, R - 1>(rows, panel, x, steps, ahead, sums);
    }
    one_block_times_panel<Dot, R>(panel, x, steps, ahead, sums);
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

    // By the whole team.
    void pack(Team& team, int thread) {
        for (Stage stage(team, thread, {blocks_}); stage.take();) pack(rows(stage.piece()));
    }

    // By one thread.
    void pack() {
        for (int64_t block = 0; block < blocks_; block++) pack(rows(block));
    }

    // Write PANEL columns of the rows of a block, from `column` on, directly instead of packing them from x: [rows][PANEL].
    // k is a whole number of panels.
    template <class T> void put(Range rows, int64_t column, const T* from) {
        const int64_t count = rows.end - rows.begin;
        pack_block<Dot>(from, PANEL, count, PANEL, values(rows) + column * count);
    }

    int64_t m() const { return x_.m; }
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

// Sums of up to so many blocks are stored together, so that until then another thread can take over.
constexpr int64_t KEPT_BLOCKS = 4;

// Blocks of rows, packed for `Dot`, times the panel at `at`, which may be widened for `Kernel`.
template <class Kernel, class Dot, class Ahead, class Store>
inline void blocks_times(
    const Linear& linear, const PackedRows<Dot>& x, Range blocks, int64_t panel, const char* at, Ahead& ahead,
    Store& store) {
    alignas(64) float kept[KEPT_BLOCKS][MOST_ROWS * PANEL];
    const int64_t together = blocks.end - blocks.begin <= KEPT_BLOCKS ? KEPT_BLOCKS : 1;
    for (int64_t block = blocks.begin; block < blocks.end; block++) {
        const Range rows = x.rows(block);
        const int64_t m = rows.end - rows.begin, index = (block - blocks.begin) % together;
        float* sums = kept[index];
        block_times_panel<Kernel>(static_cast<int>(m), at, x.values(rows), x.steps(), ahead, sums);
        if constexpr (Kernel::COMPACT) Kernel::add_outliers(linear, panel, x.values(rows), m, sums);
        if constexpr (Dot::STEP == 4) {
            for (int64_t r = 0; r < m; r++) {
                scale_row<typename Dot::Product>(linear, panel, Dot::OFFSET, x.scale(rows.begin + r), sums + r * PANEL);
            }
        }
        if (index + 1 < together && block + 1 < blocks.end) continue;
        for (int64_t each = 0; each <= index; each++) {
            if (!store(x.rows(block - index + each), kept[each])) return;
        }
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

// Multiplies a range of blocks of packed rows by panels, one after another, by one thread.
template <class Dot> class PanelProducts {
  public:
    PanelProducts(const Linear& linear, const PackedRows<Dot>& x, Range blocks)
        : linear_(linear),
          x_(x),
          blocks_(blocks),
          count_(blocks.end - blocks.begin),
          alone_(x.rows(blocks.end - 1).end - x.rows(blocks.begin).begin <= most_rows<Dot>()) {
        if (!Dot::COMPACT || alone_) return;
        const int64_t bytes = panel_bytes(BF16, linear.k);
        unpacked_ = widened_memory(2 * bytes);
        other_ = unpacked_ + bytes;
    }

    // Call `store(rows, sums)` for each block, sums [rows][PANEL], until it returns false. Meanwhile the panel `next` (-1:
    // none) is prepared.
    template <class Store> void times(int64_t panel, int64_t next, Store store) {
        if (alone_) {
            Alone alone;
            return blocks_times<Dot>(linear_, x_, blocks_, panel, panel_of(linear_, panel), alone, store);
        }
        if constexpr (Dot::COMPACT) {
            times_unpacked(panel, next, store);
        } else {
            times_packed(panel, next, store);
        }
    }

  private:
    template <class Store> void times_packed(int64_t panel, int64_t next, Store& store) {
        const char* fetched = panel_of(linear_, std::max<int64_t>(next, 0));
        const int64_t bytes = next < 0 ? 0 : panel_bytes(linear_.format, linear_.k);
        // The first block would wait for memory while the others have nothing to prefetch: all share the prefetching.
        Fetch fetch{fetched, fetched + bytes, (STEP_BYTES / 64 + count_ - 1) / count_};
        if constexpr (!std::is_void_v<typename Dot::Widened>) {
            using Widened = typename Dot::Widened;
            const int64_t wide_bytes = x_.steps() * Widened::WIDER * STEP_BYTES;
            if (count_ >= BLOCKS_TO_WIDEN && wide_bytes <= MOST_WIDENED) {
                char* wide = widened_memory(wide_bytes);
                Widened::prepare(panel_of(linear_, panel), x_.steps(), wide);
                return blocks_times<Widened>(linear_, x_, blocks_, panel, wide, fetch, store);
            }
        }
        blocks_times<Dot>(linear_, x_, blocks_, panel, panel_of(linear_, panel), fetch, store);
    }

    // Both panels are unpacked to the packed format of bfloat16.
    template <class Store> void times_unpacked(int64_t panel, int64_t next, Store& store) {
        using Unpacking = typename Dot::Unpacking;
        if (panel_ != panel) Unpacking(linear_, panel, 1, unpacked_).finish();
        Unpacking ahead(linear_, next, count_, other_);
        blocks_times<BfloatDot>(linear_, x_, blocks_, panel, unpacked_, ahead, store);
        ahead.finish();
        panel_ = next;
        std::swap(unpacked_, other_);
    }

    const Linear& linear_;
    const PackedRows<Dot>& x_;
    const Range blocks_;
    const int64_t count_;
    const bool alone_;
    int64_t panel_ = -1;  // at unpacked_
    char* unpacked_ = nullptr;
    char* other_ = nullptr;
};

// One thread's part of packed rows times all panels, written to y.
template <class Dot>
void rows_times_panels(const Linear& linear, const PackedRows<Dot>& x, const Rows& y, Team& team, int thread) {
    const int64_t groups = shared_row_groups(y.m, panels(linear.n), team.size());
    PanelProducts<Dot> products(linear, x, share(x.blocks(), thread % groups, groups));
    for (Stage stage(team, thread, {panels(linear.n), groups}); stage.take();) {
        stage.offer();
        const int64_t panel = stage.piece();
        products.times(panel, stage.next(), [&](Range rows, const float* sums) {
            if (!stage.claim()) return false;
            for (int64_t row = rows.begin; row < rows.end; row++, sums += PANEL) store_row(linear, y, row, panel, sums);
            return true;
        });
    }
}

// Call `work` with the Dot that computes weights of that format.
template <class Work> void with_dot(int32_t format, Work work) {
#ifdef ORCA_COMPACT
    if (format == COMPACT_BF16) return work(CompactDot{});
#endif
    if (format == F32) return work(FloatDot{});
    if (format == INT8) return work(ByteDot{});
    work(BfloatDot{});
}

}  // namespace orca
