// Scores and sums of weighted values on the tile unit (AMX).

#pragma once

#include <algorithm>

#include "amx.h"
#include "attention_values.h"

namespace orca {

#if defined(__AMX_BF16__)
constexpr int64_t kRowsForTiles = 8;  // from this many on the tile unit is faster than vector products

// Whether the tile unit computes that many rows of a key head.
template <class State>
inline bool by_tiles(const State& state, int64_t rows) {
  return State::kDot && rows >= kRowsForTiles && state.keys.size % kTileDepth == 0;
}

// Whether it computes fewer rows, too: a product of few rows takes less time than one of whole tiles.
template <class State>
inline bool few_by_tiles(const State& state) {
  return State::kDot && State::kFormat == BF16 && !by_tiles(state, state.rows) && state.keys.size % kTileDepth == 0 &&
         state.values.size % kLanes == 0;
}

// Shape tiles for that many rows of a key head: 0 scores, 1 queries, 2 keys; 3 weights, 4 values, 5 their sums. 0 rows:
// whole tiles, for any use.
template <class State>
inline void shape_tiles(State& state, int64_t rows) {
  if (rows == state.shaped) return;
  state.shaped = rows;
  TileShapes shapes;
  if (rows != 0) {
    for (const int tile : {0, 1, 3, 5}) shapes.rows[tile] = uint8_t(rows);
    shapes.row_bytes[3] = kTile * 2;
    shapes.rows[4] = kTile / 2;
  }
  TileRegisters::shape(shapes);
}

template <class State>
inline void score_few(const State& state, int64_t head, Range rows, Range tiles) {
  const char* query = reinterpret_cast<const char*>(state.query) + rows.begin * state.keys.size * 2;
  for (int64_t index = tiles.begin; index < tiles.end; ++index) {
    const char* keys = state.tiles[index].keys + head * state.keys.block_bytes;
    PairAhead ahead = pair_ahead(state, head, index, false, state.steps);
    _tile_zero(0);
    for (int64_t step = 0; step < state.steps; step += kTileRows) {
      ahead.fetch(kTileRows / 2);
      _tile_loadd(1, query + step * 4, state.keys.size * 2);
      _tile_loadd(2, keys + step * state.keys.step_bytes, state.keys.step_bytes);
      _tile_dpbf16ps(0, 1, 2);
    }
    _tile_stored(0, state.scores_of(rows.begin) + index * kTile, kStride * 4);
  }
}

template <class State>
inline void add_few(const State& state, int64_t head, Range rows, Range tiles, float* values) {
  const int64_t pair_bytes = state.values.size * 4;
  for (int64_t index = tiles.begin; index < tiles.end; ++index) {
    PairAhead ahead = pair_ahead(state, head, index, true, state.values.size / 2);
    if (state.tiles[index].slots < kTile) {  // the slots after them are undefined
      ahead.fetch(state.values.size / 4);
      for (Range left = rows; left.begin < left.end;) {
        left.begin += add_values(state, head, left, {index, index + 1}, values, false);
      }
      continue;
    }
    const char* from = state.tiles[index].values + head * state.values.block_bytes;
    float* to = values + rows.begin * state.sum_stride;
    _tile_loadd(3, reinterpret_cast<const char*>(state.weights_of(rows.begin)) + index * kTile * 2, kStride * 4);
    for (int64_t column = 0; column < state.values.size; column += kLanes) {
      ahead.fetch(kTile / 4);
      _tile_loadd(5, to + column, state.sum_stride * 4);
      _tile_loadd(4, from + column * 4, pair_bytes);
      _tile_dpbf16ps(5, 3, 4);
      _tile_stored(5, to + column, state.sum_stride * 4);
    }
  }
}

// Keys are laid out as the tile unit reads them, but some formats must be widened.
template <class State>
inline void widen_keys(State& state) {
  if constexpr (State::kFormat != BF16) {
    const int64_t tile_bytes = kTile * state.keys.size * 2;
    char* keys = state.memory.keys.template get<char>(state.tiles.size() * tile_bytes);
    for (size_t index = 0; index < state.tiles.size(); ++index) {
      char* wide = keys + index * tile_bytes;
      for (int64_t step = 0; step < state.steps; ++step) {
        store(wide + step * 64, load_pairs<State::kFormat>(state.tiles[index].keys + step * state.keys.step_bytes));
      }
      state.tiles[index].keys = wide;
    }
  }
}

// Lay values out side by side: the tile unit needs 32 token slots at once.
template <class State>
inline void lay_values(State& state) {
  const int64_t slots = round_up(int64_t(state.tiles.size()) * kTile, kTileDepth);
  state.laid = state.memory.values.template get<uint32_t>(slots / 2 * state.sum_stride);
  std::fill_n(state.laid + (slots - kTile) / 2 * state.sum_stride, kTile / 2 * state.sum_stride, 0);
  for (size_t index = 0; index < state.tiles.size(); ++index) {
    uint32_t* to = state.laid + index * kTile / 2 * state.sum_stride;
    for (int64_t pair = 0; pair < kTile / 2; ++pair) {
      const Tile& tile = state.tiles[index];
      const uint32_t used = 2 * pair + 1 < tile.slots ? 0xffffffffu : 2 * pair < tile.slots ? 0x0000ffffu : 0;
      for (int64_t i = 0; i < state.values.padded; i += kLanes) {
        const char* from = tile.values + (pair * state.values.size + i) * 2 * state.values.bytes;
        store(to + pair * state.sum_stride + i, used ? load_pairs<State::kFormat>(from) & used : u32x16{});
      }
    }
  }
}

template <class State>
inline void score_by_tiles(State& state) {
  const int64_t row_bytes = State::kFormat == BF16 ? state.keys.step_bytes : 64;
  const bool below = state.band.begin + kTileRows < state.rows;
  const Blocks left{reinterpret_cast<const char*>(state.query) + state.band.begin * state.keys.size * 2,
                    kTileRows * state.keys.size * 2, state.keys.size * 2, below};
  for (int64_t index = state.seen.begin; index < state.seen.end; index += 2) {
    const bool two = index + 1 < state.seen.end;
    const Blocks right{state.tiles[index].keys, two ? state.tiles[index + 1].keys - state.tiles[index].keys : 0,
                       row_bytes, two};
    const Blocks sums{reinterpret_cast<const char*>(state.scores + index * kTile), kTileRows * kStride * 4, kStride * 4,
                      below};
    multiply_tiles(left, right, state.keys.size / kTileDepth, row_bytes * kTileRows, sums, kTile * 4, true);
  }
}

template <class State>
inline void add_by_tiles(State& state, float* values) {
  const bool below = state.band.begin + kTileRows < state.rows;
  const int64_t depth = (state.seen.end - state.seen.begin + 1) / 2;
  const Blocks left{reinterpret_cast<const char*>(state.scores) + state.seen.begin * kTile * 2, kTileRows * kStride * 4,
                    kStride * 4, below};
  const uint32_t* laid = state.laid + state.seen.begin * kTile / 2 * state.sum_stride;
  for (int64_t column = 0; column < state.values.padded; column += 2 * kLanes) {
    const Blocks right{reinterpret_cast<const char*>(laid + column), kLanes * 4, state.sum_stride * 4,
                       column + kLanes < state.values.padded};
    const Blocks sums{reinterpret_cast<const char*>(values + state.band.begin * state.sum_stride + column),
                      kTileRows * state.sum_stride * 4, state.sum_stride * 4, below};
    multiply_tiles(left, right, depth, kTileRows * state.sum_stride * 4, sums, kLanes * 4, false);
  }
}
#else
template <class State> constexpr bool by_tiles(const State&, int64_t) { return false; }
template <class State> constexpr bool few_by_tiles(const State&) { return false; }
template <class State> inline void shape_tiles(State&, int64_t) {}
template <class State> inline void score_few(const State&, int64_t, Range, Range) {}
template <class State> inline void add_few(const State&, int64_t, Range, Range, float*) {}
template <class State> inline void widen_keys(State&) {}
template <class State> inline void lay_values(State&) {}
template <class State> inline void score_by_tiles(State&) {}
template <class State> inline void add_by_tiles(State&, float*) {}
#endif

}  // namespace orca
