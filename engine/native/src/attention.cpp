#include "attention.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <type_traits>
#include <vector>

#include "amx.h"
#include "attention_pieces.h"
#include "attention_products.h"
#include "cache_tile.h"
#include "cache_write.h"
#include "team.h"
#include "vector.h"

namespace orca {
namespace {

constexpr int64_t kBand = 32;       // rows computed together: tiles that none of them sees are skipped
constexpr int64_t kRowsForTiles = 8;  // from this many on the tile unit is faster than vector products
constexpr int kAhead = 4;           // tiles that are prefetched before they are computed
constexpr int kPairAhead = 2;       // the same for the tile unit, which prefetches two alternately; at most kAhead
constexpr float kNothing = -std::numeric_limits<float>::infinity();

// A running softmax: the largest score, the sum of the weights, and the weighted sum of the values.
struct Running {
  float* most;
  float* sum;
  float* values;  // [rows, size]
};

struct Tile {
  const char* keys;
  const char* values;
  const uint16_t* key_scales;
  const uint16_t* value_scales;
  int64_t position;  // of its first slot
  int64_t slots;     // that are in use
};

// A tile that will be read soon: lines of 64 bytes, `stride` apart.
struct Ahead {
  const char* at;
  int64_t stride;
};

// Two such tiles, alternating line by line, which memory serves faster than one after the other. They are prefetched into
// the first-level cache, since lines that the tile unit loads from the second one delay other lines on their way.
struct PairAhead {
  Ahead first, second;

  void fetch(int64_t lines) {
#pragma GCC unroll 1
    for (int64_t line = 0; line < lines; ++line) {
      __builtin_prefetch(first.at, 0, 3);
      asm volatile("" : "+r"(second.at));  // adjacent prefetches are slower, as in linear_amx.h
      __builtin_prefetch(second.at, 0, 3);
      first.at += first.stride;
      second.at += second.stride;
    }
  }
};

// The working memory of a thread, kept from call to call.
struct Memory {
  std::vector<Tile> tiles;
  std::vector<Ahead> ahead;
  Scratch query, group, scores, most, sum, sums, wide;
  Scratch keys, values;  // bfloat16, for the tile unit
};

Memory& memory() {
  thread_local Memory own;
  return own;
}

template <int kFormat, bool kDot>
class Attention {
 public:
  Attention(const OrcaAttention& call)
      : call_(call),
        keys_(call),
        values_(call),
        group_(call.num_heads / call.num_kv_heads),
        steps_(kFormat == F32 ? keys_.size : keys_.size / 2),
        sum_stride_(values_.padded + kLanes) {}

  // Compute some key heads of a piece, together as their blocks are adjacent, or one after the other if each has many rows.
  // `next` and its heads are what this thread will probably compute next.
  void compute(const Piece& piece, Range heads, float* partials, const Piece& next, Range next_heads) {
    for (Range left = heads; left.begin < left.end;) {
      const Range together = first_together(piece, left);
      left.begin = together.end;
      const bool more = left.begin < left.end;
      const Piece& then = more ? piece : next;
      compute_together(piece, together, partials, then, first_together(then, more ? left : next_heads));
    }
  }

  // Combine the parts of a context; `piece` is the first of them.
  void combine(const Piece& piece, int64_t head, float* partials) {
    heads_ = {head, head + 1};
    rows_ = (piece.last - piece.first) * group_;
    Running whole = partial(partials, head, piece.partial);
    for (int64_t part = 1; part < piece.parts; ++part) {
      const Running other = partial(partials, head, piece.partial + part * round_up(rows_, kLanes));
      for (int64_t row = 0; row < rows_; ++row) {
        const float most = std::max(whole.most[row], other.most[row]);
        if (most == kNothing) continue;
        const float mine = std::exp(whole.most[row] - most), its = std::exp(other.most[row] - most);
        whole.sum[row] = whole.sum[row] * mine + other.sum[row] * its;
        for (int64_t i = 0; i < values_.padded; ++i) {
          float& value = whole.values[row * sum_stride_ + i];
          value = value * mine + other.values[row * sum_stride_ + i] * its;
        }
        whole.most[row] = most;
      }
    }
    finish(piece, whole);
  }

  // Number of floats for the parts of all key heads.
  int64_t partial_floats(int64_t vectors) const { return call_.num_kv_heads * vectors * (sum_stride_ + 2); }

 private:
  static constexpr bool kScaled = kFormat >= INT8;
  using Products = AttentionProducts<kFormat, kDot>;
  static constexpr int kUnit = Products::kUnit;
  static constexpr int kTogether = Products::kTogether;

  // The first of some key heads of a piece that are computed together.
  Range first_together(const Piece& piece, Range heads) const {
    const int64_t rows = (piece.last - piece.first) * group_, most = by_tiles(rows) ? 1 : std::max<int64_t>(kBand / rows, 1);
    return {heads.begin, std::min(heads.begin + most, heads.end)};
  }

  void compute_together(const Piece& piece, Range heads, float* partials, const Piece& next, Range next_heads) {
    heads_ = heads;
    rows_ = (piece.last - piece.first) * group_;
    const int64_t rows = all_rows();
    shape_tiles(few_by_tiles() ? rows_ : 0);
    prepare(piece);
    const Running running{most_, sum_, sums_};
    std::fill_n(running.most, rows, kNothing);
    std::fill_n(running.sum, rows, 0.0f);
    std::fill_n(running.values, rows * sum_stride_, 0.0f);
    for (int64_t position = piece.begin; position < piece.end;) {
      position = collect_tiles(piece, position);
      if (by_tiles(rows_)) {
        widen_keys();
        lay_values();
      } else {
        const bool more = position < piece.end;
        collect_ahead(more ? piece : next, more ? heads : next_heads, more ? position : next.begin);
      }
      for (int64_t begin = 0; begin < rows; begin = band_.end) {
        band_ = {begin, std::min(begin + kBand, rows)};
        seen_ = visible_tiles(piece);
        if (seen_.begin >= seen_.end) continue;
        score_band();
        for (int64_t row = band_.begin; row < band_.end; ++row) weigh(piece, row, running);
        add_band(running.values);
      }
    }
    piece.parts == 1 ? finish(piece, running) : keep(piece, running, partials);
  }

  // Keep the result of a part of the context until all parts are computed.
  void keep(const Piece& piece, const Running& running, float* partials) const {
    for (int64_t head = heads_.begin; head < heads_.end; ++head) {
      const Running place = partial(partials, head, piece.partial);
      const int64_t first = (head - heads_.begin) * rows_;
      std::copy_n(running.most + first, rows_, place.most);
      std::copy_n(running.sum + first, rows_, place.sum);
      std::copy_n(running.values + first * sum_stride_, rows_ * sum_stride_, place.values);
    }
  }

  int64_t all_rows() const { return rows_ * (heads_.end - heads_.begin); }

  // The partial result of a key head, from vector `first` on.
  Running partial(float* partials, int64_t head, int64_t first) const {
    const int64_t vectors = round_up(rows_, kLanes);  // so that sums begin at a cache line
    float* place = partials + partial_floats(first) + head * vectors * (sum_stride_ + 2);
    return {place, place + vectors, place + 2 * vectors};
  }

  // Prepare the query vectors of a piece, one per row: for each key head its query heads of a token are adjacent.
  void prepare(const Piece& piece) {
    const int64_t rows = round_up(all_rows(), kLanes);  // whole tiles
    query_ = memory_.query.get<float>(rows * keys_.size);
    scores_ = memory_.scores.get<float>(kBand * kStride);
    most_ = memory_.most.get<float>(rows);
    sum_ = memory_.sum.get<float>(rows);
    sums_ = memory_.sums.get<float>(rows * sum_stride_);
    wide_ = memory_.wide.get<float>(keys_.size);
    wide_[keys_.size - 1] = 0;
    for (int64_t row = 0; row < all_rows(); ++row) {
      put_query(row, query_head(row) * call_.query_head_stride + token_of(piece, row) * call_.query_token_stride);
    }
    if (kManyRegisters && !by_tiles(rows_) && !few_by_tiles()) {
      for (int64_t head = 0; head < heads_.end - heads_.begin; ++head) {
        for (int64_t row = 0; row + kTogether <= rows_; row += kTogether) interleave(head * rows_ + row);
      }
    }
  }

  // Interleave rows that are computed together step by step, so that one pointer reaches all of them.
  void interleave(int64_t row) {
    float* group = query_ + row * steps_ * kUnit;
    float* rows = memory_.group.get<float>(kTogether * steps_ * kUnit);
    std::copy_n(group, kTogether * steps_ * kUnit, rows);
    using Factors = std::conditional_t<kUnit == 1, uint32_t, uint64_t>;  // of a step
    constexpr int64_t kSteps = 64 / sizeof(Factors);
    int64_t step = 0;
    for (; step + kSteps <= steps_; step += kSteps) {
      transpose<Factors, kTogether>(rows + step * kUnit, steps_ * sizeof(Factors), group + step * kTogether * kUnit, 64);
    }
    for (; step < steps_; ++step) {
      for (int64_t each = 0; each < kTogether; ++each) {
        std::memcpy(group + (step * kTogether + each) * kUnit, rows + (each * steps_ + step) * kUnit, sizeof(Factors));
      }
    }
  }

  // For a row: its key head, its query head, its token in the stream, and that token's position.
  int64_t head_of(int64_t row) const { return row / rows_; }
  int64_t query_head(int64_t row) const { return (heads_.begin + head_of(row)) * group_ + row % group_; }
  int64_t token_of(const Piece& piece, int64_t row) const {
    return call_.offsets[piece.span] + piece.first + row % rows_ / group_;
  }
  int64_t position_of(const Piece& piece, int64_t row) const {
    return context_start(call_, piece.span) + piece.first + row % rows_ / group_;
  }

  void put_query(int64_t row, int64_t offset) {
    if (kDot && call_.key_size == keys_.size) {
      std::memcpy(reinterpret_cast<uint16_t*>(query_) + row * keys_.size,
                  static_cast<const uint16_t*>(call_.query) + offset, keys_.size * sizeof(uint16_t));
      return;
    }
    widen(call_, call_.query, offset, call_.key_size, wide_);
    put_row(query_, row, keys_.size, wide_);
  }

  // Write a row of `size` factors as the dot product reads them: bfloat16, or unchanged.
  static void put_row(float* rows, int64_t row, int64_t size, const float* factors) {
    if constexpr (kDot) {
      uint16_t* halves = reinterpret_cast<uint16_t*>(rows) + row * size;
      int64_t i = 0;
      for (; i + kLanes <= size; i += kLanes) store_bf16(halves + i, load<f32x16>(factors + i));
      for (; i < size; ++i) halves[i] = narrow(factors[i]);
    } else {
      std::memcpy(rows + row * size, factors, size * sizeof(float));
    }
  }

  // The tile of a key head with the slot of `position`.
  Tile tile_at(const Piece& piece, int64_t head, int64_t position) const {
    const int32_t* table = call_.tables + piece.span * call_.table_width;
    const int64_t block = table[position / call_.block_size] * call_.num_kv_heads + head;
    const int64_t slot = position % call_.block_size / kTile * kTile, scale = block * call_.block_size + slot;
    const int64_t start = position - position % call_.block_size + slot;
    const int64_t slots = std::min({kTile, call_.block_size - slot, piece.end - start});
    return {static_cast<char*>(call_.keys) + block * keys_.block_bytes + slot * keys_.slot_bytes,
            static_cast<char*>(call_.values) + block * values_.block_bytes + slot * values_.size * values_.bytes,
            call_.key_scales + scale, call_.value_scales + scale, start, slots};
  }

  // Collect the tiles of the first key head from `position` on, as many as a chunk holds; return the position after them.
  int64_t collect_tiles(const Piece& piece, int64_t position) {
    tiles_.clear();
    while (position < piece.end && int64_t(tiles_.size()) < kChunk / kTile) {
      tiles_.push_back(tile_at(piece, heads_.begin, position));
      position = tiles_.back().position + tiles_.back().slots;
    }
    return position;
  }

  // Collect what is read from memory, in order: keys, values, and the first keys of the next piece, from `position` on.
  void collect_ahead(const Piece& next, Range next_heads, int64_t position) {
    ahead_.clear();
    const Range all{0, int64_t(tiles_.size())};
    visit_tiles(heads_, all, [&](int64_t head, int64_t index) {
      ahead_.push_back({tiles_[index].keys + head * keys_.block_bytes, keys_.step_bytes});
    });
    visit_tiles(heads_, all, [&](int64_t head, int64_t index) {
      ahead_.push_back({tiles_[index].values + head * values_.block_bytes, 64});
    });
    const size_t wanted = ahead_.size() + kAhead;
    while (ahead_.size() < wanted && position < next.end) {
      const Tile tile = tile_at(next, next_heads.begin, position);
      for (int64_t head = 0; head < next_heads.end - next_heads.begin; ++head) {
        ahead_.push_back({tile.keys + head * keys_.block_bytes, keys_.step_bytes});
      }
      position = tile.position + tile.slots;
    }
    ahead_.resize(std::max(wanted, ahead_.size()), {tiles_.back().values, 64});
  }

#if defined(__AMX_BF16__)
  // Whether the tile unit computes that many rows of a key head.
  bool by_tiles(int64_t rows) const { return kDot && rows >= kRowsForTiles && keys_.size % kTileDepth == 0; }

  // Whether it computes fewer rows, too: a product of few rows takes less time than one of whole tiles.
  bool few_by_tiles() const {
    return kDot && kFormat == BF16 && !by_tiles(rows_) && keys_.size % kTileDepth == 0 && values_.size % kLanes == 0;
  }

  // Shape tiles for that many rows of a key head: 0 scores, 1 queries, 2 keys; 3 weights, 4 values, 5 their sums. 0 rows:
  // whole tiles, for any use.
  void shape_tiles(int64_t rows) {
    if (rows == shaped_) return;
    shaped_ = rows;
    TileShapes shapes;
    if (rows != 0) {
      for (const int tile : {0, 1, 3, 5}) shapes.rows[tile] = uint8_t(rows);
      shapes.row_bytes[3] = kTile * 2;
      shapes.rows[4] = kTile / 2;
    }
    TileRegisters::shape(shapes);
  }

  void score_few(int64_t head, Range rows, Range tiles) const {
    const char* query = reinterpret_cast<const char*>(query_) + rows.begin * keys_.size * 2;
    for (int64_t index = tiles.begin; index < tiles.end; ++index) {
      const char* keys = tiles_[index].keys + head * keys_.block_bytes;
      PairAhead ahead = pair_ahead(head, index, false, steps_);
      _tile_zero(0);
      for (int64_t step = 0; step < steps_; step += kTileRows) {
        ahead.fetch(kTileRows / 2);
        _tile_loadd(1, query + step * 4, keys_.size * 2);
        _tile_loadd(2, keys + step * keys_.step_bytes, keys_.step_bytes);
        _tile_dpbf16ps(0, 1, 2);
      }
      _tile_stored(0, scores(rows.begin) + index * kTile, kStride * 4);
    }
  }

  void add_few(int64_t head, Range rows, Range tiles, float* values) const {
    const int64_t pair_bytes = values_.size * 4;
    for (int64_t index = tiles.begin; index < tiles.end; ++index) {
      PairAhead ahead = pair_ahead(head, index, true, values_.size / 2);
      if (tiles_[index].slots < kTile) {  // the slots after them are undefined
        ahead.fetch(values_.size / 4);
        for (Range left = rows; left.begin < left.end;) left.begin += add_values(head, left, {index, index + 1}, values, false);
        continue;
      }
      const char* from = tiles_[index].values + head * values_.block_bytes;
      float* to = values + rows.begin * sum_stride_;
      _tile_loadd(3, reinterpret_cast<const char*>(weights(rows.begin)) + index * kTile * 2, kStride * 4);
      for (int64_t column = 0; column < values_.size; column += kLanes) {
        ahead.fetch(kTile / 4);
        _tile_loadd(5, to + column, sum_stride_ * 4);
        _tile_loadd(4, from + column * 4, pair_bytes);
        _tile_dpbf16ps(5, 3, 4);
        _tile_stored(5, to + column, sum_stride_ * 4);
      }
    }
  }

  // Keys are laid out as the tile unit reads them, but some formats must be widened.
  void widen_keys() {
    if constexpr (kFormat != BF16) {
      const int64_t tile_bytes = kTile * keys_.size * 2;
      char* keys = memory_.keys.get<char>(tiles_.size() * tile_bytes);
      for (size_t index = 0; index < tiles_.size(); ++index) {
        char* wide = keys + index * tile_bytes;
        for (int64_t step = 0; step < steps_; ++step) {
          store(wide + step * 64, load_pairs<kFormat>(tiles_[index].keys + step * keys_.step_bytes));
        }
        tiles_[index].keys = wide;
      }
    }
  }

  // Lay values out side by side: the tile unit needs 32 token slots at once.
  void lay_values() {
    const int64_t slots = round_up(int64_t(tiles_.size()) * kTile, kTileDepth);
    laid_ = memory_.values.get<uint32_t>(slots / 2 * sum_stride_);
    std::fill_n(laid_ + (slots - kTile) / 2 * sum_stride_, kTile / 2 * sum_stride_, 0);
    for (size_t index = 0; index < tiles_.size(); ++index) {
      uint32_t* to = laid_ + index * kTile / 2 * sum_stride_;
      for (int64_t pair = 0; pair < kTile / 2; ++pair) {
        const Tile& tile = tiles_[index];
        const uint32_t used = 2 * pair + 1 < tile.slots ? 0xffffffffu : 2 * pair < tile.slots ? 0x0000ffffu : 0;
        for (int64_t i = 0; i < values_.padded; i += kLanes) {
          const char* from = tile.values + (pair * values_.size + i) * 2 * values_.bytes;
          store(to + pair * sum_stride_ + i, used ? load_pairs<kFormat>(from) & used : u32x16{});
        }
      }
    }
  }

  void score_by_tiles() {
    const int64_t row_bytes = kFormat == BF16 ? keys_.step_bytes : 64;
    const bool below = band_.begin + kTileRows < rows_;
    const Blocks left{reinterpret_cast<const char*>(query_) + band_.begin * keys_.size * 2,
                      kTileRows * keys_.size * 2, keys_.size * 2, below};
    for (int64_t index = seen_.begin; index < seen_.end; index += 2) {
      const bool two = index + 1 < seen_.end;
      const Blocks right{tiles_[index].keys, two ? tiles_[index + 1].keys - tiles_[index].keys : 0, row_bytes, two};
      const Blocks sums{reinterpret_cast<const char*>(scores_ + index * kTile), kTileRows * kStride * 4, kStride * 4,
                        below};
      multiply_tiles(left, right, keys_.size / kTileDepth, row_bytes * kTileRows, sums, kTile * 4, true);
    }
  }

  void add_by_tiles(float* values) {
    const bool below = band_.begin + kTileRows < rows_;
    const int64_t depth = (seen_.end - seen_.begin + 1) / 2;
    const Blocks left{reinterpret_cast<const char*>(scores_) + seen_.begin * kTile * 2, kTileRows * kStride * 4,
                      kStride * 4, below};
    const uint32_t* laid = laid_ + seen_.begin * kTile / 2 * sum_stride_;
    for (int64_t column = 0; column < values_.padded; column += 2 * kLanes) {
      const Blocks right{reinterpret_cast<const char*>(laid + column), kLanes * 4, sum_stride_ * 4,
                         column + kLanes < values_.padded};
      const Blocks sums{reinterpret_cast<const char*>(values + band_.begin * sum_stride_ + column),
                        kTileRows * sum_stride_ * 4, sum_stride_ * 4, below};
      multiply_tiles(left, right, depth, kTileRows * sum_stride_ * 4, sums, kLanes * 4, false);
    }
  }
#else
  static constexpr bool by_tiles(int64_t) { return false; }
  static constexpr bool few_by_tiles() { return false; }
  void shape_tiles(int64_t) {}
  void score_few(int64_t, Range, Range) const {}
  void add_few(int64_t, Range, Range, float*) const {}
  void widen_keys() {}
  void lay_values() {}
  void score_by_tiles() {}
  void add_by_tiles(float*) {}
#endif

  // The tiles from the first to the last that any row of the band sees, starting at an even one, because values are laid
  // out in pairs of tiles. A band of several key heads has all rows of each.
  Range visible_tiles(const Piece& piece) const {
    const int64_t first = first_visible(call_, position_of(piece, band_.begin));
    const int64_t last = position_of(piece, band_.end - 1);
    const auto tile_from = [&](int64_t position) {
      return std::partition_point(tiles_.begin(), tiles_.end(), [&](const Tile& tile) {
        return tile.position + tile.slots <= position;
      }) - tiles_.begin();
    };
    const int64_t end = std::partition_point(tiles_.begin(), tiles_.end(), [&](const Tile& tile) {
      return tile.position <= last;
    }) - tiles_.begin();
    return {tile_from(first) / 2 * 2, end};
  }

  // Visit all tiles of the band.
  template <class Visit>
  void visit_heads(Visit visit) const {
    if (heads_.end - heads_.begin == 1) return visit(0, band_, seen_);
    visit_tiles(heads_, seen_, [&](int64_t head, int64_t index) {
      visit(head, Range{head * rows_, (head + 1) * rows_}, Range{index, index + 1});
    });
  }

  // Visit tiles of several key heads, alternating between two blocks: each block is read in memory order, and two such
  // streams are faster than one.
  template <class Visit>
  static void visit_tiles(Range heads, Range tiles, Visit visit) {
    for (int64_t index = tiles.begin; index < tiles.end; index += 2) {
      for (int64_t head = 0; head < heads.end - heads.begin; ++head) {
        for (int64_t each = index; each < std::min(index + 2, tiles.end); ++each) visit(head, each);
      }
    }
  }

  void score_band() {
    if (by_tiles(rows_)) return score_by_tiles();
    visit_heads([&](int64_t head, Range rows, Range tiles) {
      if (few_by_tiles()) return score_few(head, rows, tiles);
      for (Range left = rows; left.begin < left.end;) {
        left.begin += score_rows(head, left, tiles, left.begin == rows.begin);
      }
    });
  }

  void add_band(float* values) {
    if (by_tiles(rows_)) return add_by_tiles(values);
    visit_heads([&](int64_t head, Range rows, Range tiles) {
      if (few_by_tiles()) return add_few(head, rows, tiles, values);
      for (Range left = rows; left.begin < left.end;) {
        left.begin += add_values(head, left, tiles, values, left.begin == rows.begin);
      }
    });
  }

  // The memory that is read some tiles after this one of a key head: keys, or `values`.
  const Ahead* ahead_of(int64_t head, int64_t index, bool values) const {
    return &ahead_[entry_of(head, index, values) + kAhead];
  }

  // One half of two such tiles of `lines` lines for the first of two computed tiles, the other half for the second.
  PairAhead pair_ahead(int64_t head, int64_t index, bool values, int64_t lines) const {
    const int64_t entry = entry_of(head, index, values), done = entry % 2 * (lines / 2);
    PairAhead pair{ahead_[entry / 2 * 2 + kPairAhead], ahead_[entry / 2 * 2 + kPairAhead + 1]};
    pair.first.at += done * pair.first.stride;
    pair.second.at += done * pair.second.stride;
    return pair;
  }

  // The index of a tile in the order of visit_tiles.
  int64_t entry_of(int64_t head, int64_t index, bool values) const {
    const int64_t heads = heads_.end - heads_.begin, tiles = tiles_.size(), first = index / 2 * 2;
    return ((values ? tiles : 0) + first) * heads + head * std::min<int64_t>(2, tiles - first) + index - first;
  }

  float* scores(int64_t row) const { return scores_ + (row - band_.begin) * kStride; }

  // One weight per slot of the chunk, half as wide with dot products; they overwrite the scores.
  float* weights(int64_t row) const { return scores(row); }

  // Score the first rows of a key head; return how many. The first of them `fetch` what is read next.
  int64_t score_rows(int64_t head, Range rows, Range tiles, bool fetch) {
    const int64_t left = rows.end - rows.begin;
    if (left >= kTogether && kManyRegisters) return score<kTogether, 1, 2>(head, rows.begin, tiles, fetch);
    if (left >= 4) return score<4, kManyRegisters ? 2 : 1, 1>(head, rows.begin, tiles, fetch);
    if (left >= 2) return score<2, kManyRegisters ? 4 : 2, 1>(head, rows.begin, tiles, fetch);
    return score<1, 4, 1>(head, rows.begin, tiles, fetch);
  }

  // Products of `kCount` rows with the keys of tiles, `kTiles` at a time, in `kWays` separate sums each, to hide the
  // latency of the products.
  template <int kCount, int kWays, int kTiles>
  int64_t score(int64_t head, int64_t row, Range tiles, bool fetch) {
    int64_t index = tiles.begin;
    for (; index + kTiles <= tiles.end; index += kTiles) score_tiles<kCount, kWays, kTiles>(head, row, index, fetch);
    for (; index < tiles.end; ++index) score_tiles<kCount, kWays, 1>(head, row, index, fetch);
    return kCount;
  }

  template <int kCount, int kWays, int kTiles>
  void score_tiles(int64_t head, int64_t row, int64_t index, bool fetch) {
    InRegisters<float> sums[kWays][kCount][kTiles] = {};
    const char* keys[kTiles];
    Ahead ahead[kTiles];
    for (int t = 0; t < kTiles; ++t) {
      keys[t] = tiles_[index + t].keys + head * keys_.block_bytes;
      ahead[t] = ahead_of(head, index, false)[t];
    }
    const int64_t step_bytes = keys_.step_bytes;
    const float* factors = query_ + row * steps_ * kUnit;
    constexpr int64_t kNext = kCount == kTogether ? kTogether * kUnit : kUnit;
    const int64_t next_row = kCount == kTogether ? kUnit : steps_ * kUnit;
    int64_t step = 0;
    for (; step + kWays <= steps_; step += kWays) {
#pragma GCC unroll 4
      for (int way = 0; way < kWays; ++way) {
        if (fetch) {
          for (int t = 0; t < kTiles; ++t) {
            __builtin_prefetch(ahead[t].at, 0, 2);
            ahead[t].at += ahead[t].stride;
          }
        }
        Products::add_step(sums[way], keys, factors, next_row);
        for (int t = 0; t < kTiles; ++t) keys[t] += step_bytes;
        factors += kNext;
      }
    }
    for (; step < steps_; ++step) {
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
        store_parts(scores(row + r) + (index + t) * kTile, total);
      }
    }
  }

  // Turn scores into weights, and rescale the sums so far to the new largest score.
  void weigh(const Piece& piece, int64_t row, const Running& running) {
    finish_scores(piece, row);
    const float factor = is_plain() ? call_.scale : 1.0f;
    const float most = std::max(running.most[row], largest_score(row) * factor);
    const f32x16 total = weigh_scores(row, factor, most == kNothing ? 0.0f : most);
    const bool is_first = running.most[row] == kNothing;  // nothing has been added yet
    const float shrink = most == kNothing || is_first ? 1.0f : std::exp(running.most[row] - most);
    running.most[row] = most;
    running.sum[row] = running.sum[row] * shrink + sum_of(total);
    if (shrink != 1.0f) {
      float* values = running.values + row * sum_stride_;
      for (int64_t i = 0; i < values_.padded; i += kLanes) store(values + i, load<f32x16>(values + i) * shrink);
    }
  }

  // Several at a time, here and in the sums below, because a single chain would be bound by latency.
  float largest_score(int64_t row) const {
    const float* scores = this->scores(row);
    f32x16 high[4] = {splat(kNothing), splat(kNothing), splat(kNothing), splat(kNothing)};
    int64_t index = seen_.begin;
    for (; index + 4 <= seen_.end; index += 4) {
      for (int way = 0; way < 4; ++way) high[way] = largest(high[way], load<f32x16>(scores + (index + way) * kTile));
    }
    for (; index < seen_.end; ++index) high[0] = largest(high[0], load<f32x16>(scores + index * kTile));
    return largest_of(largest(largest(high[0], high[1]), largest(high[2], high[3])));
  }

  // Compute e^(score * factor - most) for each slot; return the sums.
  f32x16 weigh_scores(int64_t row, float factor, float most) {
    float* scores = this->scores(row);
    f32x16 even{}, odd{};
    int64_t index = seen_.begin;
    for (; index + 2 <= seen_.end; index += 2) {
      f32x16 first = weight_of(load<f32x16>(scores + index * kTile), factor, most);
      f32x16 second = weight_of(load<f32x16>(scores + (index + 1) * kTile), factor, most);
      even += first;
      odd += second;
      put_weights(row, index, scaled(row, index, first), scaled(row, index + 1, second));
    }
    if (index < seen_.end) {
      const f32x16 last = weight_of(load<f32x16>(scores + index * kTile), factor, most);
      even += last;
      put_weights(row, index, scaled(row, index, last), f32x16{});
    }
    return even + odd;
  }

  // Write the weights of two tiles over scores that have been read.
  void put_weights(int64_t row, int64_t index, f32x16 first, f32x16 second) {
    if constexpr (kDot) {
#if defined(__AVX512BF16__)
      store(reinterpret_cast<uint16_t*>(weights(row)) + index * kTile, _mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
#endif
    } else {
      store(weights(row) + index * kTile, first);
      store(weights(row) + (index + 1) * kTile, second);
    }
  }

  // e^(score * factor - base); less exact if it is rounded to bfloat16 next.
  static f32x16 weight_of(f32x16 score, float factor, float base) {
#if defined(__AVX512BF16__)
    constexpr float kLog2E = 1.44269504088896341f;
    if constexpr (kDot) return power_of_two(score * (factor * kLog2E) - base * kLog2E);
#endif
    return exp_of(score * factor - base);
  }

  // Whether the products only need to be scaled, which can be deferred.
  bool is_plain() const { return !kScaled && call_.softcap == 0 && call_.scale > 0; }

  // Finish the scores of a row, not scaled yet if they are plain; slots that it does not see are excluded.
  void finish_scores(const Piece& piece, int64_t row) {
    const int64_t position = position_of(piece, row);
    // A tile on the boundary of two parts of the context is read by both.
    const int64_t first = std::max(first_visible(call_, position), piece.begin);
    float* scores = this->scores(row);
    const auto is_whole = [&](int64_t index) {
      const Tile& tile = tiles_[index];
      return tile.slots == kTile && tile.position >= first && tile.position + kTile - 1 <= position;
    };
    const auto finish = [&](int64_t index) {
      const Tile& tile = tiles_[index];
      f32x16 score = load<f32x16>(scores + index * kTile);
      if (!is_plain()) score = final_score(tile, head_of(row), score);
      store(scores + index * kTile, is_whole(index) ? score : visible(tile, score, first, position));
    };
    if (!is_plain() || call_.block_size % kTile != 0) {
      for (int64_t index = seen_.begin; index < seen_.end; ++index) finish(index);
      return;
    }
    int64_t begin = seen_.begin, end = seen_.end;
    for (; begin < end && !is_whole(begin); ++begin) finish(begin);
    for (; begin < end && !is_whole(end - 1); --end) finish(end - 1);
  }

  f32x16 final_score(const Tile& tile, int64_t head, f32x16 score) const {
    score *= call_.scale;
    if constexpr (kScaled) score *= load_bf16(tile.key_scales + head * call_.block_size);
    return call_.softcap == 0 ? score : tanh_of(score / call_.softcap) * call_.softcap;
  }

  static f32x16 visible(const Tile& tile, f32x16 score, int64_t first, int64_t last) {
    const i32x16 lanes = lane_numbers();
    const int32_t from = int32_t(std::clamp<int64_t>(first - tile.position, 0, kTile));
    const int32_t to = int32_t(std::clamp<int64_t>(std::min(tile.slots, last - tile.position + 1), 0, kTile));
    return ((lanes >= from) & (lanes < to)) ? score : splat(kNothing);
  }

  // The scales of slots that were never written are undefined.
  f32x16 scaled(int64_t row, int64_t index, f32x16 weights) const {
    if constexpr (!kScaled) return weights;
    const Tile& tile = tiles_[index];
    const f32x16 product = weights * load_bf16(tile.value_scales + head_of(row) * call_.block_size);
    return tile.slots == kTile ? product : (lane_numbers() < int32_t(tile.slots) ? product : f32x16{});
  }

  // Add values for the first rows of a key head; return how many. The first of them `fetch` what is read next.
  int64_t add_values(int64_t head, Range rows, Range tiles, float* values, bool fetch) const {
    const int64_t left = rows.end - rows.begin;
    if (left >= kTogether && kManyRegisters) return add_columns<kTogether, 2>(head, rows.begin, tiles, values, fetch);
    if (left >= 4) return add_columns<4, kManyRegisters ? 4 : 1>(head, rows.begin, tiles, values, fetch);
    // If there is little to compute, whole blocks are read in order.
    if (left >= 2) return add_columns<2, kManyRegisters ? 8 : 2>(head, rows.begin, tiles, values, fetch);
    return add_columns<1, kManyRegisters ? 8 : 4>(head, rows.begin, tiles, values, fetch);
  }

  // `kVectors` columns at a time, and the rest with half as many.
  template <int kCount, int kVectors>
  int64_t add_columns(int64_t head, int64_t row, Range tiles, float* values, bool fetch, int64_t column = 0) const {
    const int64_t padded = values_.padded;
    for (; column + kVectors * kLanes <= padded; column += kVectors * kLanes) {
      add<kCount, kVectors>(head, row, column, tiles, values, fetch);
    }
    if constexpr (kVectors > 1) add_columns<kCount, kVectors / 2>(head, row, tiles, values, fetch, column);
    return kCount;
  }

  template <int kCount, int kVectors>
  void add(int64_t head, int64_t row, int64_t column, Range tiles, float* values, bool fetch) const {
    InRegisters<float> sums[kCount][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = load_parts<float>(values + (row + r) * sum_stride_ + column + v * kLanes);
      }
    }
    for (int64_t index = tiles.begin; index < tiles.end; ++index) {
      if constexpr (kFormat == F32) {
        add_plain(sums, head, row, index, column, fetch);
      } else {
        add_pairs(sums, head, row, index, column, fetch);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        store_parts(values + (row + r) * sum_stride_ + column + v * kLanes, sums[r][v]);
      }
    }
  }

  template <int kCount, int kVectors>
  ORCA_INLINE void add_plain(InRegisters<float> (&sums)[kCount][kVectors], int64_t head, int64_t row, int64_t index,
                             int64_t column, bool fetch) const {
    const Tile& tile = tiles_[index];
    const Ahead ahead = *ahead_of(head, index, true);
    const char* from = tile.values + head * values_.block_bytes + column * 4;
    const float* factors = weights(row) + index * kTile;
    const int64_t slot_bytes = values_.size * 4;
    for (int64_t slot = 0; slot < tile.slots; ++slot, from += slot_bytes, ++factors) {
      if (fetch) fetch_lines<kVectors>(ahead, slot * slot_bytes + column * 4);
      InRegisters<float> value[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) value[v] = load_parts<float>(from + v * kLanes * 4);
      Products::add_slot(sums, value, factors);
    }
  }

  template <int kCount, int kVectors>
  ORCA_INLINE void add_pairs(InRegisters<float> (&sums)[kCount][kVectors], int64_t head, int64_t row, int64_t index,
                             int64_t column, bool fetch) const {
    const Tile& tile = tiles_[index];
    const Ahead ahead = *ahead_of(head, index, true);
    const float* factors = weights(row) + index * kTile / 2 * kUnit;
    const char* from = tile.values + head * values_.block_bytes + column * 2 * values_.bytes;
    const int64_t pair_bytes = values_.size * 2 * values_.bytes;
    for (int64_t pair = 0; pair < tile.slots / 2; ++pair, from += pair_bytes, factors += kUnit) {
      if (fetch) fetch_lines<kVectors>(ahead, pair * pair_bytes + column * 2 * values_.bytes);
      Products::template add_pair<true>(sums, from, factors);
    }
    // The second slot of the last pair may never have been written.
    if (tile.slots % 2 != 0) Products::template add_pair<false>(sums, from, factors);
  }

  template <int kLines>
  ORCA_INLINE static void fetch_lines(const Ahead& ahead, int64_t offset) {
    const char* at = ahead.at + offset / 64 * ahead.stride;
    for (int line = 0; line < kLines; ++line, at += ahead.stride) __builtin_prefetch(at, 0, 2);
  }

  void finish(const Piece& piece, const Running& running) const {
    for (int64_t row = 0; row < all_rows(); ++row) {
      const int64_t query_head = this->query_head(row);
      float sum = running.sum[row], shrink = 1.0f;
      if (call_.sinks) {
        const float most = std::max(running.most[row], call_.sinks[query_head]);
        shrink = std::exp(running.most[row] - most);
        sum = sum * shrink + std::exp(call_.sinks[query_head] - most);
      }
      const float factor = shrink / sum;
      const float* values = running.values + row * sum_stride_;
      const int64_t place = token_of(piece, row) * call_.output_token_stride + query_head * call_.value_size;
      if (call_.query_format == F32) {
        float* output = static_cast<float*>(call_.output) + place;
        for (int64_t i = 0; i < call_.value_size; ++i) output[i] = values[i] * factor;
      } else {
        uint16_t* output = static_cast<uint16_t*>(call_.output) + place;
        for (int64_t i = 0; i < call_.value_size; i += kLanes) {
          put_numbers(output + i, load<f32x16>(values + i) * factor, std::min<int64_t>(call_.value_size - i, kLanes));
        }
      }
    }
  }

  const OrcaAttention& call_;
  const KeyShape keys_;
  const ValueShape values_;
  const int64_t group_, steps_;
  const int64_t sum_stride_;  // between rows of sums, see kStride
  Range heads_{0, 0};  // key heads being computed
  int64_t rows_ = 0;   // query vectors of each
  Memory& memory_ = memory();
  std::vector<Tile>& tiles_ = memory_.tiles;
  std::vector<Ahead>& ahead_ = memory_.ahead;
  Range band_{0, 0};  // rows being computed
  Range seen_{0, 0};  // tiles of which they see any slot
  int64_t shaped_ = 0;  // rows of a key head for which the tile registers are shaped, see shape_tiles
  uint32_t* laid_ = nullptr;  // pairs of values of the chunk, [slots / 2][sum_stride_]
  float *query_, *scores_, *most_, *sum_, *sums_, *wide_;
};

template <int kFormat, bool kDot>
void attend_as(const OrcaAttention& call, AttentionWork& work, Team& team, int thread) {
  Attention<kFormat, kDot> attention(call);
#if defined(__AMX_BF16__)
  const TileRegisters tiles;
#endif
  if (thread == 0) {
    divide(call, team.size, work);
    work.partials.get<float>(attention.partial_floats(work.vectors));
  }
  const Range written = share(call.num_tokens, thread, team.size);
  CacheWriter<kFormat>(call, memory().wide).write(written.begin, written.end);
  team.barrier();
  float* partials = work.partials.get<float>(0);
  const Takes takes(work.pieces, call.num_kv_heads, team.size);
  for (int64_t index = team.take(); index < takes.size(); index = team.take()) {
    const int64_t next = std::min(team.next(), takes.size() - 1);
    attention.compute(takes.piece(index), takes.heads(index), partials, takes.piece(next), takes.heads(next));
  }
  team.barrier();
  if (!work.vectors) return;
  const int64_t heads = call.num_kv_heads, total = int64_t(work.pieces.size()) * heads;
  for (int64_t index = team.take(); index < total; index = team.take()) {
    const Piece& piece = work.pieces[index / heads];
    if (piece.parts > 1 && piece.part == 0) attention.combine(piece, index % heads, partials);
  }
  team.barrier();
}

}  // namespace

void attend(const OrcaAttention& call, AttentionWork& work, Team& team, int thread) {
#if defined(__AVX512BF16__)
  constexpr bool kHasDot = true;
#else
  constexpr bool kHasDot = false;
#endif
  const bool dot = kHasDot && call.query_format == BF16;
  switch (call.cache_format) {
    case F32:
      return attend_as<F32, false>(call, work, team, thread);
    case BF16:
      return dot ? attend_as<BF16, kHasDot>(call, work, team, thread)
                 : attend_as<BF16, false>(call, work, team, thread);
    case INT8:
      return dot ? attend_as<INT8, kHasDot>(call, work, team, thread)
                 : attend_as<INT8, false>(call, work, team, thread);
    default:
      return dot ? attend_as<FP8, kHasDot>(call, work, team, thread)
                 : attend_as<FP8, false>(call, work, team, thread);
  }
}

}  // namespace orca

// The entry point for Python: attend with at most `threads` threads.
extern "C" void orca_attend(const OrcaAttention* call, int threads) {
  thread_local orca::AttentionWork shared;
  orca::AttentionWork& work = shared;
  orca::run_team(threads, [&](orca::Team& team, int thread) { orca::attend(*call, work, team, thread); });
}
