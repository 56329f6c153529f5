// Sums of weighted values by vector instructions, for query rows over tiles.

#pragma once

#include "attention_chunk.h"

namespace orca {

template <int kCount, int kVectors, class State>
ORCA_INLINE void add_plain(const State& state, InRegisters<float> (&sums)[kCount][kVectors], int64_t head, int64_t row,
                           int64_t index, int64_t column, bool fetch) {
  const Tile& tile = state.tiles[index];
  const Ahead ahead = *ahead_of(state, head, index, true);
  const char* from = tile.values + head * state.values.block_bytes + column * 4;
  const float* factors = state.weights_of(row) + index * kTile;
  const int64_t slot_bytes = state.values.size * 4;
  for (int64_t slot = 0; slot < tile.slots; ++slot, from += slot_bytes, ++factors) {
    if (fetch) ahead.template fetch_lines<kVectors>(slot * slot_bytes + column * 4);
    InRegisters<float> value[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) value[v] = load_parts<float>(from + v * kLanes * 4);
    State::Products::add_slot(sums, value, factors);
  }
}

template <int kCount, int kVectors, class State>
ORCA_INLINE void add_pairs(const State& state, InRegisters<float> (&sums)[kCount][kVectors], int64_t head, int64_t row,
                           int64_t index, int64_t column, bool fetch) {
  using Products = typename State::Products;
  constexpr int kUnit = Products::kUnit;
  const Tile& tile = state.tiles[index];
  const Ahead ahead = *ahead_of(state, head, index, true);
  const float* factors = state.weights_of(row) + index * kTile / 2 * kUnit;
  const char* from = tile.values + head * state.values.block_bytes + column * 2 * state.values.bytes;
  const int64_t pair_bytes = state.values.size * 2 * state.values.bytes;
  for (int64_t pair = 0; pair < tile.slots / 2; ++pair, from += pair_bytes, factors += kUnit) {
    if (fetch) ahead.template fetch_lines<kVectors>(pair * pair_bytes + column * 2 * state.values.bytes);
    Products::template add_pair<true>(sums, from, factors);
  }
  // The second slot of the last pair may never have been written.
  if (tile.slots % 2 != 0) Products::template add_pair<false>(sums, from, factors);
}

// Some rows and vectors of columns, whose sums stay in registers over all tiles.
template <int kCount, int kVectors, class State>
inline void add_vectors(const State& state, int64_t head, int64_t row, int64_t column, Range tiles, float* values,
                        bool fetch) {
  InRegisters<float> sums[kCount][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = load_parts<float>(values + (row + r) * state.sum_stride + column + v * kLanes);
    }
  }
  for (int64_t index = tiles.begin; index < tiles.end; ++index) {
    if constexpr (State::kFormat == F32) {
      add_plain(state, sums, head, row, index, column, fetch);
    } else {
      add_pairs(state, sums, head, row, index, column, fetch);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      store_parts(values + (row + r) * state.sum_stride + column + v * kLanes, sums[r][v]);
    }
  }
}

// `kVectors` vectors of columns at a time, and the rest with half as many.
template <int kCount, int kVectors, class State>
inline int64_t add_columns(const State& state, int64_t head, int64_t row, Range tiles, float* values, bool fetch,
                           int64_t column = 0) {
  const int64_t padded = state.values.padded;
  for (; column + kVectors * kLanes <= padded; column += kVectors * kLanes) {
    add_vectors<kCount, kVectors>(state, head, row, column, tiles, values, fetch);
  }
  if constexpr (kVectors > 1) add_columns<kCount, kVectors / 2>(state, head, row, tiles, values, fetch, column);
  return kCount;
}

// Add values for the first rows of a key head; return how many. The first of them `fetch` what is read next.
template <class State>
inline int64_t add_values(const State& state, int64_t head, Range rows, Range tiles, float* values, bool fetch) {
  constexpr int kTogether = State::Products::kTogether;
  const int64_t left = rows.end - rows.begin;
  if (left >= kTogether && kManyRegisters) {
    return add_columns<kTogether, 2>(state, head, rows.begin, tiles, values, fetch);
  }
  if (left >= 4) return add_columns<4, kManyRegisters ? 4 : 1>(state, head, rows.begin, tiles, values, fetch);
  // If there is little to compute, whole blocks are read in order.
  if (left >= 2) return add_columns<2, kManyRegisters ? 8 : 2>(state, head, rows.begin, tiles, values, fetch);
  return add_columns<1, kManyRegisters ? 8 : 4>(state, head, rows.begin, tiles, values, fetch);
}

}  // namespace orca
