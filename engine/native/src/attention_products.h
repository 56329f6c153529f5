// Scores and weighted values by vectors: of some rows of queries, with what is in the cache for sixteen token slots.

#pragma once

#include "cache_tile.h"
#include "vector.h"

namespace orca {

constexpr int64_t kChunk = 512;           // token slots whose scores are computed before the values are weighted by them
constexpr int64_t kStride = kChunk + 32;  // of rows of scores and weights: they fall into different sets of the caches

// Sums are kept in registers. With `kDot` factors are pairs of bfloat16, else floats.
template <int kFormat, bool kDot>
struct AttentionProducts {
  static constexpr int kUnit = kFormat == F32 || kDot ? 1 : 2;  // floats that one step of a query vector is
  static constexpr int kTogether = 8;  // rows that are computed together where there are so many

  // One step of the keys of some tiles, and of the rows whose factors are `next_row` apart.
  template <int kCount, int kTiles>
  ORCA_INLINE static void add_step(InRegisters<float> (&sums)[kCount][kTiles], const char* const (&keys)[kTiles],
                                   const float* factors, int64_t next_row) {
    if (kCount == kTogether) next_row = kUnit;  // known to the compiler
    if constexpr (kFormat == F32) {
      InRegisters<float> key[kTiles];
      for (int t = 0; t < kTiles; ++t) key[t] = load_parts<float>(keys[t]);
#pragma GCC unroll 8
      for (int r = 0; r < kCount; ++r) {
        for (int t = 0; t < kTiles; ++t) add_product(sums[r][t], key[t], factors[r * next_row]);
      }
    } else {
      InRegisters<uint32_t> pairs[kTiles];
      for (int t = 0; t < kTiles; ++t) pairs[t] = pairs_in_registers<kFormat>(keys[t]);
#pragma GCC unroll 8
      for (int r = 0; r < kCount; ++r) {
        for (int t = 0; t < kTiles; ++t) multiply(sums[r][t], pairs[t], factors + r * next_row);
      }
    }
  }

  // sum += the products of pairs with a pair of factors, lane by lane.
  ORCA_INLINE static void multiply(InRegisters<float>& sum, const InRegisters<uint32_t>& pairs, const float* factors) {
#if defined(__AVX512BF16__)
    if constexpr (kDot) {
      auto& all = sum.parts[0];
      all = (f32x16)_mm512_dpbf16_ps((__m512)all, (__m512bh)pairs.parts[0], (__m512bh)_mm512_set1_ps(*factors));
      return;
    }
#endif
    add_product(sum, even_half(pairs), factors[0]);  // one after the other: a sum of both were a third instruction
    add_product(sum, odd_half(pairs), factors[1]);
  }

  // A pair of slots, or the first of it. The factors of a row are kStride behind those of the one before.
  template <bool kBoth, int kCount, int kVectors>
  ORCA_INLINE static void add_pair(InRegisters<float> (&sums)[kCount][kVectors], const char* from, const float* factors) {
    constexpr int64_t kVectorBytes = kLanes * 2 * (kFormat == BF16 ? 2 : 1);
#if defined(__AVX512BF16__)
    if constexpr (kDot) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        auto pairs = pairs_in_registers<kFormat>(from + v * kVectorBytes);
        if (!kBoth) pairs.parts[0] &= 0xffffu;
#pragma GCC unroll 8
        for (int r = 0; r < kCount; ++r) multiply(sums[r][v], pairs, factors + r * kStride);
      }
      return;
    }
#endif
    InRegisters<float> value[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) value[v] = even_half(pairs_in_registers<kFormat>(from + v * kVectorBytes));
    add_slot(sums, value, factors);
    if (!kBoth) return;
    asm volatile("" : "+r"(from));  // both halves' values would not fit into the registers beside the sums
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) value[v] = odd_half(pairs_in_registers<kFormat>(from + v * kVectorBytes));
    add_slot(sums, value, factors + 1);
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
