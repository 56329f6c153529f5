// What happens to the rows of a batch between its linear layers. T is float or bf16; sums are float32.

#pragma once

#include <cmath>
#include <cstdint>

#include "number.h"
#include "vector.h"

namespace orca {

inline f32x16 load_row(const float* from) { return load<f32x16>(from); }
inline f32x16 load_row(const bf16* from) { return load_bf16(from); }
inline void store_row(float* to, f32x16 values) { store(to, values); }
inline void store_row(bf16* to, f32x16 values) { store_bf16(to, values); }

// `size` numbers, a multiple of 16, scaled to a mean square of 1 and times `weight`: RMSNorm. `to` may be `from`.
template <class T>
inline void normalize(const T* from, const float* weight, float epsilon, int64_t size, T* to) {
  f32x16 squares{};
  for (int64_t i = 0; i < size; i += kLanes) {
    const f32x16 values = load_row(from + i);
    squares += values * values;
  }
  const float factor = 1.0f / std::sqrt(sum_of(squares) / size + epsilon);
  for (int64_t i = 0; i < size; i += kLanes) store_row(to + i, load_row(from + i) * factor * load<f32x16>(weight + i));
}

template <class T>
inline void add(T* to, const T* from, int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) store_row(to + i, load_row(to + i) + load_row(from + i));
}

// The first 2 * `half` numbers of a head, turned by the angles of its position; `half` is a multiple of 16.
template <class T>
inline void rotate(T* head, const float* cosine, const float* sine, int64_t half) {
  for (int64_t i = 0; i < half; i += kLanes) {
    const f32x16 low = load_row(head + i), high = load_row(head + half + i);
    store_row(head + i, low * load<f32x16>(cosine + i) - high * load<f32x16>(sine + i));
    store_row(head + half + i, high * load<f32x16>(cosine + half + i) + low * load<f32x16>(sine + half + i));
  }
}

enum Activation : int32_t { kSilu = 0, kGeluTanh = 1 };

inline f32x16 activated(f32x16 x, int32_t activation) {
  if (activation == kSilu) return x / (1.0f + exp_of(-x));
  return 0.5f * x * (1.0f + tanh_of(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

// activation(gate) * up.
template <class T>
inline void gated(const T* gate, const T* up, int32_t activation, int64_t size, T* to) {
  for (int64_t i = 0; i < size; i += kLanes) {
    store_row(to + i, activated(load_row(gate + i), activation) * load_row(up + i));
  }
}

}  // namespace orca
