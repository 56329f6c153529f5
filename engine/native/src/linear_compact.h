// Weights of bfloat16 in 12 bits, without loss.
//
// The upper byte of a bfloat16 is its sign and seven bits of its exponent. As the weights of a panel are of similar size,
// nearly all upper bytes have one of 15 values, for which a code of 4 bits stands. The other weights, one or two in 10,000
// of a normal distribution, are zero in the panel, and listed as outliers.
//
// A panel begins with the CODES upper bytes, of which the first is 0, in COMPACT_HEAD bytes. Pairs of steps follow: 64 bytes
// of codes, those of the first 16 columns in the lower halves, and 64 lower bytes of weights for the first and for the
// second 16 columns, in the order in which interleaving them with upper bytes gives a vector for each of both steps.

#pragma once

#include <algorithm>
#include <cstdint>

#include "linear.h"
#include "linear_dot.h"

// Only where a product of bfloat16 pairs is one instruction: others have less time left to unpack.
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
#define ORCA_COMPACT
#endif

namespace orca {

constexpr int CODES = 16;
constexpr int64_t HALF = PANEL / 2;

// Where the 64 bytes of a half have number `i` (0 to 3) of a column.
inline int64_t compact_place(int64_t column, int64_t i) {
    return 16 * (column % HALF / 4) + i / 2 * 8 + column % 4 * 2 + i % 2;
}

// A panel's outliers.
struct Outliers {
    const Outlier* first;
    const Outlier* last;

    const Outlier* begin() const { return first; }
    const Outlier* end() const { return last; }
};

inline Outliers outliers_of(const Linear& linear, int64_t panel) {
    return {linear.outliers + linear.first_outlier[panel], linear.outliers + linear.first_outlier[panel + 1]};
}

#ifdef ORCA_COMPACT
// Reads a panel's steps as vectors of bfloat16 pairs.
class CompactReader {
  public:
    explicit CompactReader(const char* panel)
        : at_(panel + COMPACT_HEAD),
          upper_(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(panel)))) {}

    const char* at(int64_t pair) const { return at_ + pair * COMPACT_PAIR; }

    // The vectors of both steps of a pair, for the first or the second half of the columns.
    template <int WHICH> void read(int64_t pair, __m512i (&weights)[2]) const {
        const char* from = at(pair);
        __m512i codes = _mm512_loadu_si512(from);
        if constexpr (WHICH == 1) codes = _mm512_srli_epi16(codes, 4);
        codes = _mm512_and_si512(codes, _mm512_set1_epi8(CODES - 1));
        const __m512i upper = _mm512_shuffle_epi8(upper_, codes), lower = _mm512_loadu_si512(from + 64 * (1 + WHICH));
        weights[0] = _mm512_unpacklo_epi8(lower, upper);
        weights[1] = _mm512_unpackhi_epi8(lower, upper);
    }

  private:
    const char* at_;
    __m512i upper_;
};

// For a compact panel, and one block of rows; several ones pass a panel that was unpacked for BfloatDot.
struct CompactDot : BfloatDot {
    static constexpr bool COMPACT = true;
    static constexpr int MOST_OF_BOTH_HALVES = 10;  // rows; more go through the halves one after the other
    class Unpacking;

    // The sums of R rows, without the panel's outliers. `x` is a packed block.
    template <int R, class Ahead>
    static void sum_up(const char* panel, const Input* x, int64_t steps, Ahead& ahead, float* sums) {
        const CompactReader reader(panel);
        if constexpr (R <= MOST_OF_BOTH_HALVES) {
            sum_up<R, 0, 2>(reader, x, steps, ahead, sums);
        } else {
            sum_up<R, 0, 1>(reader, x, steps, ahead, sums);
            sum_up<R, 1, 1>(reader, x, steps, ahead, sums);
        }
    }

    // Add the products of the panel's outliers to the sums of a block of rows.
    static void add_outliers(const Linear& linear, int64_t panel, const Input* x, int64_t rows, float* sums) {
        for (const Outlier& each : outliers_of(linear, panel)) {
            const Input* at = x + each.depth / 2 * rows * 2 + each.depth % 2;
            for (int64_t r = 0; r < rows; r++) sums[r * PANEL + each.column] += widen(at[2 * r]) * widen(each.value);
        }
    }

  private:
    // The same for HALVES of the columns, from half FIRST on. Alone, a block prefetches the panel some distance ahead;
    // otherwise both halves share the prefetching of the next panel, which has three lines per pair.
    template <int R, int FIRST, int HALVES, class Ahead>
    static void sum_up(const CompactReader& reader, const Input* x, int64_t steps, Ahead& shared, float* sums) {
        constexpr int CHAINS = chains_of(R * HALVES), PAIRS = (CHAINS + 1) / 2;  // of steps at once
        Sum total[CHAINS][R][HALVES] = {};
        Ahead ahead = shared;  // in registers
        int64_t pair = 0;
        for (; (pair + PAIRS) * 2 <= steps; pair += PAIRS) {
#pragma GCC unroll 2
            for (int next = 0; next < PAIRS; next++) {
                if constexpr (Ahead::ALONE) {
                    const char* at = reader.at(pair + next) + PREFETCH_BYTES;
                    for (int line = 0; line < 3; line++) __builtin_prefetch(at + 64 * line);
                } else {
                    if constexpr (FIRST == 0) ahead.step();
                    ahead.step();
                }
                add_pair<R, FIRST, HALVES>(reader, pair + next, x, 2, 2 * next, total);
            }
        }
        for (; 2 * pair < steps; pair++) {
            add_pair<R, FIRST, HALVES>(reader, pair, x, steps - 2 * pair > 1 ? 2 : 1, 0, total);
        }
        shared = ahead;
        put_sums<CompactDot>(total, sums + FIRST * HALF);
    }

    // Add `count` steps of a pair to the chains from `chain` on.
    template <int R, int FIRST, int HALVES, int CHAINS>
    static void add_pair(
        const CompactReader& reader, int64_t pair, const Input* x, int count, int chain, Sum (&total)[CHAINS][R][HALVES]) {
        __m512i pairs[HALVES][2];
        reader.read<FIRST>(pair, pairs[0]);
        if constexpr (HALVES == 2) reader.read<1>(pair, pairs[1]);
#pragma GCC unroll 2
        for (int i = 0; i < count; i++) {
            Weight weight[HALVES];
            for (int half = 0; half < HALVES; half++) weight[half] = Weight(pairs[half][i]);
            add_weights<CompactDot, R, HALVES>(weight, x + (2 * pair + i) * R * STEP, total[(chain + i) % CHAINS]);
        }
    }
};

// Unpacks a panel while blocks of rows pass another one.
class CompactDot::Unpacking {
  public:
    static constexpr bool ALONE = false;

    // The panel (-1: none) is unpacked to `to` in the steps of `blocks` blocks.
    Unpacking(const Linear& linear, int64_t panel, int64_t blocks, char* to)
        : reader_(panel_of(linear, std::max<int64_t>(panel, 0))),
          to_(to),
          steps_(panel < 0 ? 0 : padded_depth(linear.format, linear.k) / STEP),
          outliers_(panel < 0 ? Outliers{nullptr, nullptr} : outliers_of(linear, panel)),
          period_(2 * blocks),
          wait_(period_) {}

    void step() {
        if (--wait_ > 0) return;
        wait_ = period_;
        if (done_ < steps_) unpack_pair();
    }

    void finish() {
        while (done_ < steps_) unpack_pair();
        bf16* values = reinterpret_cast<bf16*>(to_);
        for (const Outlier& each : outliers_) {
            values[(each.depth / 2 * PANEL + each.column) * 2 + each.depth % 2] = each.value;
        }
    }

  private:
    void unpack_pair() {
        const char* ahead = reader_.at(done_ / 2) + PREFETCH_BYTES;
        for (int line = 0; line < 3; line++) __builtin_prefetch(ahead + 64 * line);
        __m512i first[2], second[2];
        reader_.read<0>(done_ / 2, first);
        reader_.read<1>(done_ / 2, second);
        for (int i = 0; i < 2; i++, done_++) {
            _mm512_storeu_si512(to_ + done_ * STEP_BYTES, first[i]);
            _mm512_storeu_si512(to_ + done_ * STEP_BYTES + 64, second[i]);
        }
    }

    CompactReader reader_;
    char* to_;
    int64_t steps_;
    Outliers outliers_;
    int64_t period_, wait_, done_ = 0;
};
#endif

}  // namespace orca
