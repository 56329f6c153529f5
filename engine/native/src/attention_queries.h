// The query rows of a piece of work, as the products read them.

#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "attention_amx.h"
#include "cache_write.h"

namespace orca {

// Write a row of `size` factors as the dot product reads them: bfloat16, or unchanged.
template <class State>
inline void put_row(float* rows, int64_t row, int64_t size, const float* factors) {
  if constexpr (State::kDot) {
    uint16_t* halves = reinterpret_cast<uint16_t*>(rows) + row * size;
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) store_bf16(halves + i, load<f32x16>(factors + i));
    for (; i < size; ++i) halves[i] = narrow(factors[i]);
  } else {
    std::memcpy(rows + row * size, factors, size * sizeof(float));
  }
}

template <class State>
inline void put_query(State& state, int64_t row, int64_t offset) {
  if (State::kDot && state.call.key_size == state.keys.size) {
    std::memcpy(reinterpret_cast<uint16_t*>(state.query) + row * state.keys.size,
                static_cast<const uint16_t*>(state.call.query) + offset, state.keys.size * sizeof(uint16_t));
    return;
  }
  widen(state.call, state.call.query, offset, state.call.key_size, state.wide);
  put_row<State>(state.query, row, state.keys.size, state.wide);
}

// Interleave rows that are computed together step by step, so that one pointer reaches all of them.
template <class State>
inline void interleave_rows(State& state, int64_t row) {
  constexpr int kUnit = State::Products::kUnit, kTogether = State::Products::kTogether;
  float* group = state.query + row * state.steps * kUnit;
  float* rows = state.memory.group.template get<float>(kTogether * state.steps * kUnit);
  std::copy_n(group, kTogether * state.steps * kUnit, rows);
  using Factors = std::conditional_t<kUnit == 1, uint32_t, uint64_t>;  // of a step
  constexpr int64_t kSteps = 64 / sizeof(Factors);
  int64_t step = 0;
  for (; step + kSteps <= state.steps; step += kSteps) {
    transpose<Factors, kTogether>(rows + step * kUnit, state.steps * sizeof(Factors),
                                  group + step * kTogether * kUnit, 64);
  }
  for (; step < state.steps; ++step) {
    for (int64_t each = 0; each < kTogether; ++each) {
      std::memcpy(group + (step * kTogether + each) * kUnit, rows + (each * state.steps + step) * kUnit,
                  sizeof(Factors));
    }
  }
}

// Prepare memory for the rows of a piece, and write their query vectors.
template <class State>
inline void prepare(State& state, const Piece& piece) {
  constexpr int kTogether = State::Products::kTogether;
  const int64_t rows = round_up(state.all_rows(), kLanes);  // whole tiles
  state.query = state.memory.query.template get<float>(rows * state.keys.size);
  state.scores = state.memory.scores.template get<float>(kBand * kStride);
  state.most = state.memory.most.template get<float>(rows);
  state.sum = state.memory.sum.template get<float>(rows);
  state.sums = state.memory.sums.template get<float>(rows * state.sum_stride);
  state.wide = state.memory.wide.template get<float>(state.keys.size);
  state.wide[state.keys.size - 1] = 0;
  for (int64_t row = 0; row < state.all_rows(); ++row) {
    put_query(state, row, state.query_head(row) * state.call.query_head_stride +
                              state.token_of(piece, row) * state.call.query_token_stride);
  }
  if (kManyRegisters && !by_tiles(state, state.rows) && !few_by_tiles(state)) {
    for (int64_t head = 0; head < state.heads.end - state.heads.begin; ++head) {
      for (int64_t row = 0; row + kTogether <= state.rows; row += kTogether) {
        interleave_rows(state, head * state.rows + row);
      }
    }
  }
}

}  // namespace orca
