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
#ifdef __AVX512BF16__
#define ORCA_COMPACT
#endif

namespace orca {

constexpr int CODES = 16;
// Twice as far as elsewhere: unpacking between the products of another panel issues its prefetches late.
constexpr int64_t COMPACT_PREFETCH_BYTES = 2 * PREFETCH_BYTES;
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
    explicit CompactReader(const char* panel) : CompactReader(panel, panel) {}

    // From some pair on, which would be the first one of a panel that begins at `start`.
    CompactReader(const char* start, const char* panel)
        : at_(start + COMPACT_HEAD),
          upper_(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(panel)))) {}

    // Some distance ahead.
    // Inline: GCC drops calls of a function that does nothing but prefetch.
    __attribute__((always_inline)) void prefetch(int64_t pair) const {
        const char* ahead = at(pair) + COMPACT_PREFETCH_BYTES;
        for (int line = 0; line < 3; line++) __builtin_prefetch(ahead + 64 * line);
    }

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

    const char* at(int64_t pair) const { return at_ + pair * COMPACT_PAIR; }
    void advance(int64_t pairs) { at_ += pairs * COMPACT_PAIR; }

  private:
    const char* at_;
    __m512i upper_;
};

// For a compact panel and one block of few rows; more rows pass a panel that was unpacked for BfloatDot.
struct CompactDot : BfloatDot {
    static constexpr bool COMPACT = true;
    static constexpr int MOST_ALONE = 10;  // rows; the sums of more leave no registers for unpacking
    class Unpacking;

    // The sums of R rows, without the panel's outliers. `x` is a packed block.
    template <int R> static void sum_up(const char* panel, const Input* x, int64_t steps, float* sums) {
        constexpr int CHAINS = chains_of(R * 2), PAIRS = (CHAINS + 1) / 2;  // of steps at once
        const CompactReader reader(panel);
        Sum total[CHAINS][R][2] = {};
        int64_t pair = 0;
        for (; (pair + PAIRS) * 2 <= steps; pair += PAIRS) {
#pragma GCC unroll 2
            for (int next = 0; next < PAIRS; next++) {
                reader.prefetch(pair + next);
                add_pair<R>(reader, pair + next, x, 2, 2 * next, total);
            }
        }
        for (; 2 * pair < steps; pair++) add_pair<R>(reader, pair, x, steps - 2 * pair > 1 ? 2 : 1, 0, total);
        put_sums<CompactDot>(total, sums);
    }

    // Add the products of the panel's outliers to the sums of a block of rows.
    static void add_outliers(const Linear& linear, int64_t panel, const Input* x, int64_t rows, float* sums) {
        for (const Outlier& each : outliers_of(linear, panel)) {
            const Input* at = x + each.depth / 2 * rows * 2 + each.depth % 2;
            for (int64_t r = 0; r < rows; r++) sums[r * PANEL + each.column] += widen(at[2 * r]) * widen(each.value);
        }
    }

  private:
    // Add `count` steps of a pair to the chains from `chain` on.
    template <int R, int CHAINS>
    static void add_pair(
        const CompactReader& reader, int64_t pair, const Input* x, int count, int chain, Sum (&total)[CHAINS][R][2]) {
        __m512i first[2], second[2];
        reader.read<0>(pair, first);
        reader.read<1>(pair, second);
#pragma GCC unroll 2
        for (int i = 0; i < count; i++) {
            const Weight weight[2] = {Weight(first[i]), Weight(second[i])};
            add_weights<CompactDot, R, 2>(weight, x + (2 * pair + i) * R * STEP, total[(chain + i) % CHAINS]);
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

    // Inline, so that the sums around it stay in registers.
    __attribute__((always_inline)) void step() {
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
    __attribute__((always_inline)) void unpack_pair() {
        reader_.prefetch(done_ / 2);
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
