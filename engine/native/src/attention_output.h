// The output of finished rows.

#pragma once

#include <algorithm>
#include <cmath>

#include "attention_softmax.h"

namespace orca {

template <class State>
inline void write_output(const State& state, const Piece& piece, const RunningSoftmax& running) {
  for (int64_t row = 0; row < state.all_rows(); ++row) {
    const int64_t query_head = state.query_head(row);
    float sum = running.sum[row], shrink = 1.0f;
    if (state.call.sinks) {
      const float most = std::max(running.most[row], state.call.sinks[query_head]);
      shrink = std::exp(running.most[row] - most);
      sum = sum * shrink + std::exp(state.call.sinks[query_head] - most);
    }
    const float factor = shrink / sum;
    const float* values = running.values + row * state.sum_stride;
    const int64_t place =
        state.token_of(piece, row) * state.call.output_token_stride + query_head * state.call.value_size;
    if (state.call.query_format == F32) {
      float* output = static_cast<float*>(state.call.output) + place;
      for (int64_t i = 0; i < state.call.value_size; ++i) output[i] = values[i] * factor;
    } else {
      uint16_t* output = static_cast<uint16_t*>(state.call.output) + place;
      for (int64_t i = 0; i < state.call.value_size; i += kLanes) {
        put_numbers(output + i, load<f32x16>(values + i) * factor,
                    std::min<int64_t>(state.call.value_size - i, kLanes));
      }
    }
  }
}

}  // namespace orca
