// Prefetching of tiles of the cache.

#pragma once

#include <cstdint>

#include "vector.h"

namespace orca {

constexpr int kAhead = 4;      // tiles that are prefetched before they are computed
constexpr int kPairAhead = 2;  // the same for the tile unit, which prefetches two alternately; at most kAhead

namespace {  // local to attention.cpp, see attention_state.h

// A tile that will be read soon: lines of 64 bytes, `stride` apart.
struct Ahead {
  const char* at;
  int64_t stride;

  ORCA_INLINE void fetch_line() {
    __builtin_prefetch(at, 0, 2);
    at += stride;
  }

  // Prefetch some lines from the one with byte `offset` of the tile on.
  template <int kLines>
  ORCA_INLINE void fetch_lines(int64_t offset) const {
    Ahead lines{at + offset / 64 * stride, stride};
    for (int line = 0; line < kLines; ++line) lines.fetch_line();
  }
};

// Two such tiles, alternating line by line, which memory serves faster than one after the other. They are prefetched
// into the first-level cache, since lines that the tile unit loads from the second one delay other lines on their way.
struct PairAhead {
  Ahead first, second;

  void fetch(int64_t lines) {
#pragma GCC unroll 1
    for (int64_t line = 0; line < lines; ++line) {
      __builtin_prefetch(first.at, 0, 3);
      asm volatile("" : "+r"(second.at));  // adjacent prefetches are slower, as in tile_products.h
      __builtin_prefetch(second.at, 0, 3);
      first.at += first.stride;
      second.at += second.stride;
    }
  }
};

}  // namespace
}  // namespace orca
