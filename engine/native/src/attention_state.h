// What a thread computes: rows of queries against a chunk of the context, and the memory that it works in.

#pragma once

#include <vector>

#include "attention_pieces.h"
#include "attention_prefetch.h"
#include "attention_products.h"
#include "cache_tile.h"
#include "team.h"

namespace orca {

constexpr int64_t kBand = 32;  // rows computed together: tiles that none of them sees are skipped

// Local to attention.cpp, as are all functions of the state: the compiler then knows every call when it decides what to
// inline.
namespace {

// Sixteen token slots of a key head in the cache.
struct Tile {
  const char* keys;
  const char* values;
  const uint16_t* key_scales;
  const uint16_t* value_scales;
  int64_t position;  // of its first slot
  int64_t slots;     // that are in use
};

// The working memory of a thread, kept from call to call.
struct Memory {
  std::vector<Tile> tiles;
  std::vector<Ahead> ahead;
  Scratch query, group, scores, most, sum, sums, wide;
  Scratch keys, values;  // bfloat16, for the tile unit
};

inline Memory& memory() {
  thread_local Memory own;
  return own;
}

// A row is one query vector. The rows of a key head are adjacent: token after token, the query heads that share it.
template <int kCacheFormat, bool kDotProducts>
struct AttentionState {
  static constexpr int kFormat = kCacheFormat;
  static constexpr bool kDot = kDotProducts;
  static constexpr bool kScaled = kFormat >= INT8;
  using Products = AttentionProducts<kFormat, kDot>;

  explicit AttentionState(const OrcaAttention& layer)
      : call(layer),
        keys(layer),
        values(layer),
        group(layer.num_heads / layer.num_kv_heads),
        steps(kFormat == F32 ? keys.size : keys.size / 2),
        sum_stride(values.padded + kLanes) {}

  // Take the rows of some key heads of a piece of work.
  void take(const Piece& piece, Range key_heads) {
    heads = key_heads;
    rows = rows_of(piece);
  }

  // The rows of each key head of a piece.
  int64_t rows_of(const Piece& piece) const { return (piece.last - piece.first) * group; }

  int64_t all_rows() const { return rows * (heads.end - heads.begin); }

  // For a row: its key head, its query head, its token in the stream, and that token's position.
  int64_t head_of(int64_t row) const { return row / rows; }
  int64_t query_head(int64_t row) const { return (heads.begin + head_of(row)) * group + row % group; }
  int64_t token_of(const Piece& piece, int64_t row) const {
    return call.offsets[piece.span] + piece.first + row % rows / group;
  }
  int64_t position_of(const Piece& piece, int64_t row) const {
    return context_start(call, piece.span) + piece.first + row % rows / group;
  }

  float* scores_of(int64_t row) const { return scores + (row - band.begin) * kStride; }

  // One weight per slot of the chunk, half as wide with dot products; they overwrite the scores.
  float* weights_of(int64_t row) const { return scores_of(row); }

  const OrcaAttention& call;
  const KeyShape keys;
  const ValueShape values;
  const int64_t group;       // query heads that share a key head
  const int64_t steps;       // of a dot product
  const int64_t sum_stride;  // between rows of sums, see kStride
  Range heads{0, 0};         // key heads being computed
  int64_t rows = 0;          // of each
  Memory& memory = orca::memory();
  std::vector<Tile>& tiles = memory.tiles;   // of the chunk, for the first key head
  std::vector<Ahead>& ahead = memory.ahead;  // what is read from memory, in order
  Range band{0, 0};                          // rows being computed
  Range seen{0, 0};                          // tiles of which they see any slot
  int64_t shaped = 0;         // rows of a key head for which the tile registers are shaped, see shape_tiles
  uint32_t* laid = nullptr;   // pairs of values of the chunk, [slots / 2][sum_stride], see lay_values
  float* query;               // [rows][steps], see attention_queries.h
  float* scores;              // [kBand][kStride]
  float *most, *sum, *sums;   // the running softmax
  float* wide;                // one vector in float32
};

}  // namespace
}  // namespace orca
