// The tiles of a chunk of the context: which ones, in what order they are read, and what is prefetched meanwhile.

#pragma once

#include <algorithm>

#include "attention_state.h"

namespace orca {

// The tile of a key head with the slot of `position`.
template <class State>
inline Tile tile_at(const State& state, const Piece& piece, int64_t head, int64_t position) {
  const int32_t* table = state.call.tables + piece.span * state.call.table_width;
  const int64_t block = table[position / state.call.block_size] * state.call.num_kv_heads + head;
  const int64_t slot = position % state.call.block_size / kTile * kTile, scale = block * state.call.block_size + slot;
  const int64_t start = position - position % state.call.block_size + slot;
  const int64_t slots = std::min({kTile, state.call.block_size - slot, piece.end - start});
  return {static_cast<char*>(state.call.keys) + block * state.keys.block_bytes + slot * state.keys.slot_bytes,
          static_cast<char*>(state.call.values) + block * state.values.block_bytes +
              slot * state.values.size * state.values.bytes,
          state.call.key_scales + scale, state.call.value_scales + scale, start, slots};
}

// Collect the tiles of the first key head from `position` on, as many as a chunk holds; return the position after them.
template <class State>
inline int64_t collect_tiles(State& state, const Piece& piece, int64_t position) {
  state.tiles.clear();
  while (position < piece.end && int64_t(state.tiles.size()) < kChunk / kTile) {
    state.tiles.push_back(tile_at(state, piece, state.heads.begin, position));
    position = state.tiles.back().position + state.tiles.back().slots;
  }
  return position;
}

// The tiles from the first to the last that any row of the band sees, starting at an even one, because values are laid
// out in pairs of tiles. A band of several key heads has all rows of each.
template <class State>
inline Range visible_tiles(const State& state, const Piece& piece) {
  const auto& tiles = state.tiles;
  const int64_t first = first_visible(state.call, state.position_of(piece, state.band.begin));
  const int64_t last = state.position_of(piece, state.band.end - 1);
  const auto tile_from = [&](int64_t position) {
    return std::partition_point(tiles.begin(), tiles.end(), [&](const Tile& tile) {
      return tile.position + tile.slots <= position;
    }) - tiles.begin();
  };
  const int64_t end = std::partition_point(tiles.begin(), tiles.end(), [&](const Tile& tile) {
    return tile.position <= last;
  }) - tiles.begin();
  return {tile_from(first) / 2 * 2, end};
}

// Visit tiles of several key heads, alternating between two blocks: each block is read in memory order, and two such
// streams are faster than one.
template <class Visit>
inline void visit_tiles(Range heads, Range tiles, Visit visit) {
  for (int64_t index = tiles.begin; index < tiles.end; index += 2) {
    for (int64_t head = 0; head < heads.end - heads.begin; ++head) {
      for (int64_t each = index; each < std::min(index + 2, tiles.end); ++each) visit(head, each);
    }
  }
}

// Visit all tiles of the band.
template <class State, class Visit>
inline void visit_heads(const State& state, Visit visit) {
  if (state.heads.end - state.heads.begin == 1) return visit(0, state.band, state.seen);
  visit_tiles(state.heads, state.seen, [&](int64_t head, int64_t index) {
    visit(head, Range{head * state.rows, (head + 1) * state.rows}, Range{index, index + 1});
  });
}

// Collect what is read from memory, in order: keys, values, and the first keys of the next piece, from `position` on.
template <class State>
inline void collect_ahead(State& state, const Piece& next, Range next_heads, int64_t position) {
  state.ahead.clear();
  const Range all{0, int64_t(state.tiles.size())};
  visit_tiles(state.heads, all, [&](int64_t head, int64_t index) {
    state.ahead.push_back({state.tiles[index].keys + head * state.keys.block_bytes, state.keys.step_bytes});
  });
  visit_tiles(state.heads, all, [&](int64_t head, int64_t index) {
    state.ahead.push_back({state.tiles[index].values + head * state.values.block_bytes, 64});
  });
  const size_t wanted = state.ahead.size() + kAhead;
  while (state.ahead.size() < wanted && position < next.end) {
    const Tile tile = tile_at(state, next, next_heads.begin, position);
    for (int64_t head = 0; head < next_heads.end - next_heads.begin; ++head) {
      state.ahead.push_back({tile.keys + head * state.keys.block_bytes, state.keys.step_bytes});
    }
    position = tile.position + tile.slots;
  }
  state.ahead.resize(std::max(wanted, state.ahead.size()), {state.tiles.back().values, 64});
}

// The index of a tile in the order of visit_tiles.
template <class State>
inline int64_t entry_of(const State& state, int64_t head, int64_t index, bool values) {
  const int64_t heads = state.heads.end - state.heads.begin, tiles = state.tiles.size(), first = index / 2 * 2;
  return ((values ? tiles : 0) + first) * heads + head * std::min<int64_t>(2, tiles - first) + index - first;
}

// The memory that is read some tiles after this one of a key head: keys, or `values`.
template <class State>
inline const Ahead* ahead_of(const State& state, int64_t head, int64_t index, bool values) {
  return &state.ahead[entry_of(state, head, index, values) + kAhead];
}

// One half of two such tiles of `lines` lines for the first of two computed tiles, the other half for the second.
template <class State>
inline PairAhead pair_ahead(const State& state, int64_t head, int64_t index, bool values, int64_t lines) {
  const int64_t entry = entry_of(state, head, index, values), done = entry % 2 * (lines / 2);
  PairAhead pair{state.ahead[entry / 2 * 2 + kPairAhead], state.ahead[entry / 2 * 2 + kPairAhead + 1]};
  pair.first.at += done * pair.first.stride;
  pair.second.at += done * pair.second.stride;
  return pair;
}

}  // namespace orca
