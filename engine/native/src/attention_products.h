// Scores and weighted values by vector instructions: some rows of queries against sixteen token slots of the cache.

#pragma once

#include "cache_tile.h"
#include "vector.h"

namespace orca {

constexpr int64_t kChunk = 512;           // token slots whose scores are computed before the values are weighted by them
constexpr int64_t kStride = kChunk + 32;  // of rows of scores and weights, which thus map to different cache sets

// Sums stay in registers. With `kDot` factors are pairs of bfloat16, else floats.
template <int kFormat, bool kDot>
struct AttentionProducts {
  static constexpr int kUnit = kFormat == F32 || kDot ? 1 : 2;  // floats per step of a query vector
  static constexpr int kTogether = 8;  // rows that are computed together if there are that many

  // One step of the keys of some tiles, and of the rows whose factors are `next_row` apart.
  template <int kCount, int kTiles>
  ORCA_INLINE static void add_step(InRegisters<float> (&sums)[kCount][kTiles], const char* const (&keys)[kTiles],
                                   const float* factors, int64_t next_row) {
    if (kCount == kTogether) next_row = kUnit;  // a compile-time constant
    if constexpr (kDot) {
      for (int t = 0; t < kTiles; ++t) {
        const u32x16 pairs = load_pairs<kFormat>(keys[t]);
#pragma GCC unroll 8
        for (int r = 0; r < kCount; ++r) add_dot(sums[r][t], pairs, factors + r * next_row);
      }
    } else if constexpr (kFormat == F32) {
      InRegisters<float> key[kTiles];
      for (int t = 0; t < kTiles; ++t) key[t] = load_parts<float>(keys[t]);
#pragma GCC unroll 8
      for (int r = 0; r < kCount; ++r) {
        for (int t = 0; t < kTiles; ++t) add_product(sums[r][t], key[t], factors[r * next_row]);
      }
    } else {
      InRegisters<float> even[kTiles], odd[kTiles];
      for (int t = 0; t < kTiles; ++t) {
        even[t] = load_half<kFormat, kEven>(keys[t]);
        odd[t] = load_half<kFormat, kOdd>(keys[t]);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kCount; ++r) {
        for (int t = 0; t < kTiles; ++t) {  // one after the other: adding both products first would take a third instruction
          add_product(sums[r][t], even[t], factors[r * next_row]);
          add_product(sums[r][t], odd[t], factors[r * next_row + 1]);
        }
      }
    }
  }

  // sum += the dot products of pairs with a pair of factors, lane by lane.
  ORCA_INLINE static void add_dot(InRegisters<float>& sum, u32x16 pairs, const float* factors) {
#if defined(__AVX512BF16__)
    const __m512bh both = (__m512bh)_mm512_set1_ps(*factors);
    sum.parts[0] = (f32x16)_mm512_dpbf16_ps((__m512)sum.parts[0], (__m512bh)pairs, both);
#endif
  }

  // Add a pair of slots, or its first slot. The factors of a row are kStride after those of the previous row.
  template <bool kBoth, int kCount, int kVectors>
  ORCA_INLINE static void add_pair(InRegisters<float> (&sums)[kCount][kVectors], const char* from, const float* factors) {
    constexpr int64_t kVectorBytes = kLanes * 2 * (kFormat == BF16 ? 2 : 1);
    if constexpr (kDot) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        u32x16 pairs = load_pairs<kFormat>(from + v * kVectorBytes);
        if (!kBoth) pairs &= 0xffffu;
#pragma GCC unroll 8
        for (int r = 0; r < kCount; ++r) add_dot(sums[r][v], pairs, factors + r * kStride);
      }
    } else {
      InRegisters<float> value[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) value[v] = load_half<kFormat, kEven>(from + v * kVectorBytes);
      add_slot(sums, value, factors);
      if (!kBoth) return;
      asm volatile("" : "+r"(from));  // the values of both halves would not fit into the registers together with the sums
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) value[v] = load_half<kFormat, kOdd>(from + v * kVectorBytes);
      add_slot(sums, value, factors + 1);
    }
  }

  // The values of one slot, times the factor of each row.
  template <int kCount, int kVectors>
  ORCA_INLINE static void add_slot(InRegisters<float> (&sums)[kCount][kVectors],
                                   const InRegisters<float> (&values)[kVectors], const float* factors) {
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) add_product(sums[r][v], values[v], factors[r * kStride]);
    }
  }
};

}  // namespace orca
