// Scores by vector instructions: the products of query rows with the keys of tiles.

#pragma once

#include "attention_chunk.h"

namespace orca {

// `kTiles` tiles at a time, in `kWays` separate sums for each row, to hide the latency of the products.
template <int kCount, int kWays, int kTiles, class State>
inline void score_tiles(State& state, int64_t head, int64_t row, int64_t index, bool fetch) {
  using Products = typename State::Products;
  constexpr int kUnit = Products::kUnit, kTogether = Products::kTogether;
  InRegisters<float> sums[kWays][kCount][kTiles] = {};
  const char* keys[kTiles];
  Ahead ahead[kTiles];
  for (int t = 0; t < kTiles; ++t) {
    keys[t] = state.tiles[index + t].keys + head * state.keys.block_bytes;
    ahead[t] = ahead_of(state, head, index, false)[t];
  }
  const int64_t step_bytes = state.keys.step_bytes;
  const float* factors = state.query + row * state.steps * kUnit;
  constexpr int64_t kNext = kCount == kTogether ? kTogether * kUnit : kUnit;
  const int64_t next_row = kCount == kTogether ? kUnit : state.steps * kUnit;
  int64_t step = 0;
  for (; step + kWays <= state.steps; step += kWays) {
#pragma GCC unroll 4
    for (int way = 0; way < kWays; ++way) {
      if (fetch) {
        for (int t = 0; t < kTiles; ++t) ahead[t].fetch_line();
      }
      Products::add_step(sums[way], keys, factors, next_row);
      for (int t = 0; t < kTiles; ++t) keys[t] += step_bytes;
      factors += kNext;
    }
  }
  for (; step < state.steps; ++step) {
    Products::add_step(sums[0], keys, factors, next_row);
    for (int t = 0; t < kTiles; ++t) keys[t] += step_bytes;
    factors += kNext;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kCount; ++r) {
    for (int t = 0; t < kTiles; ++t) {
      InRegisters<float> total = sums[0][r][t];
#pragma GCC unroll 4
      for (int way = 1; way < kWays; ++way) add_product(total, sums[way][r][t], 1.0f);
      store_parts(state.scores_of(row + r) + (index + t) * kTile, total);
    }
  }
}

template <int kCount, int kWays, int kTiles, class State>
inline int64_t score_with(State& state, int64_t head, int64_t row, Range tiles, bool fetch) {
  int64_t index = tiles.begin;
  for (; index + kTiles <= tiles.end; index += kTiles) {
    score_tiles<kCount, kWays, kTiles>(state, head, row, index, fetch);
  }
  for (; index < tiles.end; ++index) score_tiles<kCount, kWays, 1>(state, head, row, index, fetch);
  return kCount;
}

// Score the first rows of a key head; return how many. The first of them `fetch` what is read next.
template <class State>
inline int64_t score_rows(State& state, int64_t head, Range rows, Range tiles, bool fetch) {
  constexpr int kTogether = State::Products::kTogether;
  const int64_t left = rows.end - rows.begin;
  if (left >= kTogether && kManyRegisters) return score_with<kTogether, 1, 2>(state, head, rows.begin, tiles, fetch);
  if (left >= 4) return score_with<4, kManyRegisters ? 2 : 1, 1>(state, head, rows.begin, tiles, fetch);
  if (left >= 2) return score_with<2, kManyRegisters ? 4 : 2, 1>(state, head, rows.begin, tiles, fetch);
  return score_with<1, 4, 1>(state, head, rows.begin, tiles, fetch);
}

}  // namespace orca
