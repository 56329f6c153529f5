// Partial results: a context that several threads share is divided into parts, which are combined at the end
// (flash-decoding).

#pragma once

#include <algorithm>
#include <cmath>

#include "attention_softmax.h"

namespace orca {

// Number of floats for `vectors` partial results of every key head.
template <class State>
inline int64_t partial_floats(const State& state, int64_t vectors) {
  return state.call.num_kv_heads * vectors * (state.sum_stride + 2);
}

// The partial result of a key head, from vector `first` on.
template <class State>
inline RunningSoftmax partial_at(const State& state, float* partials, int64_t head, int64_t first) {
  const int64_t vectors = round_up(state.rows, kLanes);  // so that sums begin at a cache line
  float* place = partials + partial_floats(state, first) + head * vectors * (state.sum_stride + 2);
  return {place, place + vectors, place + 2 * vectors};
}

// Keep the result of a part of the context until all parts are computed.
template <class State>
inline void keep_partial(const State& state, const Piece& piece, const RunningSoftmax& running, float* partials) {
  for (int64_t head = state.heads.begin; head < state.heads.end; ++head) {
    const RunningSoftmax place = partial_at(state, partials, head, piece.partial);
    const int64_t first = (head - state.heads.begin) * state.rows;
    std::copy_n(running.most + first, state.rows, place.most);
    std::copy_n(running.sum + first, state.rows, place.sum);
    std::copy_n(running.values + first * state.sum_stride, state.rows * state.sum_stride, place.values);
  }
}

// Combine the parts of a context for a key head; `piece` is the first of them.
template <class State>
inline RunningSoftmax combine_partials(const State& state, const Piece& piece, int64_t head, float* partials) {
  RunningSoftmax whole = partial_at(state, partials, head, piece.partial);
  for (int64_t part = 1; part < piece.parts; ++part) {
    const RunningSoftmax other =
        partial_at(state, partials, head, piece.partial + part * round_up(state.rows, kLanes));
    for (int64_t row = 0; row < state.rows; ++row) {
      const float most = std::max(whole.most[row], other.most[row]);
      if (most == kNothing) continue;
      const float mine = std::exp(whole.most[row] - most), its = std::exp(other.most[row] - most);
      whole.sum[row] = whole.sum[row] * mine + other.sum[row] * its;
      for (int64_t i = 0; i < state.values.padded; ++i) {
        float& value = whole.values[row * state.sum_stride + i];
        value = value * mine + other.values[row * state.sum_stride + i] * its;
      }
      whole.most[row] = most;
    }
  }
  return whole;
}

}  // namespace orca
