// The running softmax (FlashAttention): turns the scores of a chunk into weights, and rescales the sums so far.

#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention_state.h"

namespace orca {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// For each row the largest score, the sum of the weights, and the weighted sum of the values.
struct RunningSoftmax {
  float* most;
  float* sum;
  float* values;  // [rows, size]
};

// e^(score * factor - base); less exact if it is rounded to bfloat16 next.
template <class State>
inline f32x16 weight_of(f32x16 score, float factor, float base) {
#if defined(__AVX512BF16__)
  constexpr float kLog2E = 1.44269504088896341f;
  if constexpr (State::kDot) return power_of_two(score * (factor * kLog2E) - base * kLog2E);
#endif
  return exp_of(score * factor - base);
}

// Whether the products only need to be scaled, which can be deferred.
template <class State>
inline bool is_plain(const State& state) {
  return !State::kScaled && state.call.softcap == 0 && state.call.scale > 0;
}

template <class State>
inline f32x16 final_score(const State& state, const Tile& tile, int64_t head, f32x16 score) {
  score *= state.call.scale;
  if constexpr (State::kScaled) score *= load_bf16(tile.key_scales + head * state.call.block_size);
  return state.call.softcap == 0 ? score : tanh_of(score / state.call.softcap) * state.call.softcap;
}

// Exclude slots that are not in use, or not among positions `first` ... `last`.
ORCA_INLINE f32x16 visible(const Tile& tile, f32x16 score, int64_t first, int64_t last) {
  const i32x16 lanes = lane_numbers();
  const int32_t from = int32_t(std::clamp<int64_t>(first - tile.position, 0, kTile));
  const int32_t to = int32_t(std::clamp<int64_t>(std::min(tile.slots, last - tile.position + 1), 0, kTile));
  return ((lanes >= from) & (lanes < to)) ? score : splat(kNothing);
}

// Finish the scores of a row, not scaled yet if they are plain; slots that it does not see are excluded.
template <class State>
inline void finish_scores(State& state, const Piece& piece, int64_t row) {
  const int64_t position = state.position_of(piece, row);
  // A tile on the boundary of two parts of the context is read by both.
  const int64_t first = std::max(first_visible(state.call, position), piece.begin);
  float* scores = state.scores_of(row);
  const auto is_whole = [&](int64_t index) {
    const Tile& tile = state.tiles[index];
    return tile.slots == kTile && tile.position >= first && tile.position + kTile - 1 <= position;
  };
  const auto finish = [&](int64_t index) {
    const Tile& tile = state.tiles[index];
    f32x16 score = load<f32x16>(scores + index * kTile);
    if (!is_plain(state)) score = final_score(state, tile, state.head_of(row), score);
    store(scores + index * kTile, is_whole(index) ? score : visible(tile, score, first, position));
  };
  if (!is_plain(state) || state.call.block_size % kTile != 0) {
    for (int64_t index = state.seen.begin; index < state.seen.end; ++index) finish(index);
    return;
  }
  int64_t begin = state.seen.begin, end = state.seen.end;
  for (; begin < end && !is_whole(begin); ++begin) finish(begin);
  for (; begin < end && !is_whole(end - 1); --end) finish(end - 1);
}

// Several at a time, here and in the sums below, because a single chain would be bound by latency.
template <class State>
inline float largest_score(const State& state, int64_t row) {
  const float* scores = state.scores_of(row);
  f32x16 high[4] = {splat(kNothing), splat(kNothing), splat(kNothing), splat(kNothing)};
  int64_t index = state.seen.begin;
  for (; index + 4 <= state.seen.end; index += 4) {
    for (int way = 0; way < 4; ++way) high[way] = largest(high[way], load<f32x16>(scores + (index + way) * kTile));
  }
  for (; index < state.seen.end; ++index) high[0] = largest(high[0], load<f32x16>(scores + index * kTile));
  return largest_of(largest(largest(high[0], high[1]), largest(high[2], high[3])));
}

// The scales of slots that were never written are undefined.
template <class State>
inline f32x16 scaled(const State& state, int64_t row, int64_t index, f32x16 weights) {
  if constexpr (!State::kScaled) return weights;
  const Tile& tile = state.tiles[index];
  const f32x16 product = weights * load_bf16(tile.value_scales + state.head_of(row) * state.call.block_size);
  return tile.slots == kTile ? product : (lane_numbers() < int32_t(tile.slots) ? product : f32x16{});
}

// Write the weights of two tiles over scores that have been read.
template <class State>
inline void put_weights(State& state, int64_t row, int64_t index, f32x16 first, f32x16 second) {
  if constexpr (State::kDot) {
#if defined(__AVX512BF16__)
    store(reinterpret_cast<uint16_t*>(state.weights_of(row)) + index * kTile,
          _mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
#endif
  } else {
    store(state.weights_of(row) + index * kTile, first);
    store(state.weights_of(row) + (index + 1) * kTile, second);
  }
}

// Compute e^(score * factor - most) for each slot; return the sums.
template <class State>
inline f32x16 weigh_scores(State& state, int64_t row, float factor, float most) {
  float* scores = state.scores_of(row);
  f32x16 even{}, odd{};
  int64_t index = state.seen.begin;
  for (; index + 2 <= state.seen.end; index += 2) {
    f32x16 first = weight_of<State>(load<f32x16>(scores + index * kTile), factor, most);
    f32x16 second = weight_of<State>(load<f32x16>(scores + (index + 1) * kTile), factor, most);
    even += first;
    odd += second;
    put_weights(state, row, index, scaled(state, row, index, first), scaled(state, row, index + 1, second));
  }
  if (index < state.seen.end) {
    const f32x16 last = weight_of<State>(load<f32x16>(scores + index * kTile), factor, most);
    even += last;
    put_weights(state, row, index, scaled(state, row, index, last), f32x16{});
  }
  return even + odd;
}

// From here on, what rounding `score * factor` changes would be visible in its power, or even exceed the range of powers.
constexpr float kLargeScore = 0x1p16f;

// Subtract the largest score of a row from all of its scores, which are rounded as it was: its own power is exactly 1.
template <class State>
__attribute__((noinline)) void subtract_largest(State& state, int64_t row, float factor, float most) {
  float* scores = state.scores_of(row);
  const int64_t begin = state.seen.begin * kTile, end = state.seen.end * kTile;
  for (int64_t i = begin; i < end; ++i) scores[i] *= factor;
  asm volatile("" ::: "memory");  // or one instruction would multiply and subtract, without rounding in between
  for (int64_t i = begin; i < end; ++i) scores[i] -= most;
}

// Turn the scores of a row into weights, and rescale its sums so far to the new largest score.
template <class State>
inline void weigh(State& state, const Piece& piece, int64_t row, const RunningSoftmax& running) {
  finish_scores(state, piece, row);
  const float factor = is_plain(state) ? state.call.scale : 1.0f;
  const float most = std::max(running.most[row], largest_score(state, row) * factor);
  const bool is_large = std::fabs(most) >= kLargeScore && std::isfinite(most);
  if (is_large) subtract_largest(state, row, factor, most);
  const float base = is_large || most == kNothing ? 0.0f : most;
  const f32x16 total = weigh_scores(state, row, is_large ? 1.0f : factor, base);
  const bool is_first = running.most[row] == kNothing;  // nothing has been added yet
  const float shrink = most == kNothing || is_first ? 1.0f : std::exp(running.most[row] - most);
  running.most[row] = most;
  running.sum[row] = running.sum[row] * shrink + sum_of(total);
  if (shrink != 1.0f) {
    float* values = running.values + row * state.sum_stride;
    for (int64_t i = 0; i < state.values.padded; i += kLanes) store(values + i, load<f32x16>(values + i) * shrink);
  }
}

}  // namespace orca
