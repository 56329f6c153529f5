// Compact panels for tiles (AMX): unpacked shortly before they are multiplied.

#pragma once

#ifdef __AMX_BF16__

#include "linear_compact.h"
#include "tile_products.h"

namespace orca {

constexpr int64_t STEP_PAIRS = kTileRows / 2;
constexpr int64_t COMPACT_STEP = STEP_PAIRS * COMPACT_PAIR;  // bytes
constexpr int64_t PAIR_BYTES = 2 * STEP_BYTES;               // unpacked
constexpr int64_t UNPACKED_AHEAD = 2;       // steps: tiles that were just written could not be loaded at once
constexpr int64_t UNPACKED_NEAR = 4;        // steps that are kept
constexpr int64_t COMPACT_AHEAD_PAIRS = 4;  // prefetched before they are unpacked
constexpr int64_t COMPACT_FAR_PAIRS = 32;   // the same, while other steps are multiplied

// Some steps of a compact panel, which are unpacked one after another.
class CompactSteps {
  public:
    CompactSteps(const Linear& linear, int64_t panel, Range steps)
        : reader_(panel_of(linear, panel) + steps.begin * COMPACT_STEP, panel_of(linear, panel)),
          outliers_(outliers_of(linear, panel)),
          depth_(steps.begin * kTileDepth) {
        while (outliers_.first != outliers_.last && outliers_.first->depth < depth_) outliers_.first++;
    }

    // Unpack a pair of the next step.
    __attribute__((always_inline)) void pair(int64_t index, char* to) const {
        __m512i first[2], second[2];
        reader_.read<0>(index, first);
        reader_.read<1>(index, second);
        to += index * PAIR_BYTES;
        for (int i = 0; i < 2; i++, to += STEP_BYTES) {
            _mm512_store_si512(to, first[i]);
            _mm512_store_si512(to + 64, second[i]);
        }
    }

    // Finish the step whose pairs have been unpacked to `to`.
    __attribute__((always_inline)) void end(char* to) {
        bf16* values = reinterpret_cast<bf16*>(to);
        for (; outliers_.first != outliers_.last && outliers_.first->depth < depth_ + kTileDepth; outliers_.first++) {
            const Outlier& each = *outliers_.first;
            values[((each.depth - depth_) / 2 * PANEL + each.column) * 2 + each.depth % 2] = each.value;
        }
        depth_ += kTileDepth;
        reader_.advance(STEP_PAIRS);
    }

    const char* at(int64_t pair) const { return reader_.at(pair); }

  private:
    CompactReader reader_;
    Outliers outliers_;
    int64_t depth_;
};

// One compact panel or two (`TWO`), unpacked a few steps before they are multiplied.
template <bool TWO> class UnpackedPanels {
  public:
    // `to` has room for UNPACKED_NEAR steps of both. Afterwards the panels at `then` are read, and prefetched already.
    UnpackedPanels(const Linear& linear, int64_t panel, Range steps, PanelPair then, char* to)
        : first_(linear, panel, steps),
          second_(linear, TWO ? panel + 1 : panel, steps),
          then_(then),
          to_(to),
          steps_(steps.end - steps.begin) {
        for (int64_t step = 0; step < std::min(UNPACKED_AHEAD, steps_); step++) unpack();
    }

    __attribute__((always_inline)) PanelPair at(int64_t step) {
        if (unpacked_ < steps_) unpack();
        return {place(step), APART};
    }

    static constexpr int64_t APART = UNPACKED_NEAR * PANEL_STEP;  // of both panels, unpacked

  private:
    char* place(int64_t step) const { return to_ + step % UNPACKED_NEAR * PANEL_STEP; }

    __attribute__((always_inline)) void unpack() {
        char* to = place(unpacked_);
        const int64_t left = (steps_ - unpacked_) * STEP_PAIRS;  // pairs
#pragma GCC unroll 1
        for (int64_t pair = 0; pair < STEP_PAIRS; pair++) {
            const int64_t ahead = pair + COMPACT_AHEAD_PAIRS, over = ahead - left;
            const char* next = over < 0 ? first_.at(ahead) : then_.first + over * COMPACT_PAIR;
            const char* other = over < 0 ? second_.at(ahead) : then_.first + then_.apart + over * COMPACT_PAIR;
            fetch(next);
            first_.pair(pair, to);
            if constexpr (TWO) {
                fetch(other);
                second_.pair(pair, to + APART);
            }
        }
        first_.end(to);
        if constexpr (TWO) second_.end(to + APART);
        unpacked_++;
    }

    __attribute__((always_inline)) static void fetch(const char* pair) {
        for (int line = 0; line < 3; line++) __builtin_prefetch(pair + 64 * line, 0, 3);
    }

    CompactSteps first_, second_;
    PanelPair then_;
    char* to_;
    int64_t steps_, unpacked_ = 0;
};

// Unpacks some steps of a panel while others are multiplied.
class UnpackingSteps {
  public:
    // In `calls` calls of `step`.
    UnpackingSteps(const Linear& linear, int64_t panel, Range steps, int64_t calls, char* to)
        : from_(linear, panel, steps), to_(to), left_((steps.end - steps.begin) * STEP_PAIRS), pairs_(left_), calls_(calls) {}

    __attribute__((always_inline)) void step() {
        for (due_ += pairs_; due_ >= calls_; due_ -= calls_) {
            if (left_ > 0) unpack();
        }
    }

    void finish() {
        while (left_ > 0) unpack();
    }

  private:
    __attribute__((always_inline)) void unpack() {
        const int64_t pair = -left_ & (STEP_PAIRS - 1);
        const char* ahead = from_.at(pair + COMPACT_FAR_PAIRS);
        for (int line = 0; line < 3; line++) __builtin_prefetch(ahead + 64 * line, 0, 2);
        from_.pair(pair, to_);
        left_--;
        if (pair + 1 < STEP_PAIRS) return;
        from_.end(to_);
        to_ += PANEL_STEP;
    }

    CompactSteps from_;
    char* to_;
    int64_t left_, pairs_, calls_, due_ = 0;
};

}  // namespace orca

#endif
