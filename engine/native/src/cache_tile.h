// The layout of keys and values in the cache, and how they are written.

#pragma once

#include "attention.h"
#include "vector.h"

namespace orca {

constexpr int64_t kTile = 16;  // token slots that are computed together

inline int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// The keys of one layer. Those of a block are [size / 2][block_size][2], or [size][block_size] in float32.
struct KeyShape {
  explicit KeyShape(const OrcaAttention& call)
      : size(round_up(call.key_size, 2)),
        step_bytes(call.block_size * (call.cache_format == F32 ? 4 : 2 * bytes_of(call.cache_format))),
        block_bytes(call.block_size * size * bytes_of(call.cache_format)),
        slot_bytes(step_bytes / call.block_size) {}

  int64_t size, step_bytes, block_bytes, slot_bytes;
};

// The values of one layer. Those of a block are [block_size / 2][size][2], or [block_size][size] in float32.
struct ValueShape {
  explicit ValueShape(const OrcaAttention& call)
      : size(call.value_size),
        padded(round_up(call.value_size, kLanes)),
        bytes(bytes_of(call.cache_format)),
        block_bytes((call.cache_format == F32 ? call.block_size : round_up(call.block_size, 2)) * size * bytes) {}

  int64_t size, padded, bytes, block_bytes;
};

// E4M3 to the nearest, ties to even, at most 448 in magnitude.
inline uint8_t to_f8(float value) {
  const uint8_t sign = bits<uint32_t>(value) >> 24 & 0x80;
  const float magnitude = std::fabs(value);
  if (magnitude >= 448.0f) return sign | 0x7e;
  if (magnitude < 0x1p-6f) return sign | uint8_t(std::nearbyint(magnitude * 512.0f));
  uint32_t raw = bits<uint32_t>(magnitude);
  raw += 0x7ffff + (raw >> 20 & 1);
  return sign | uint8_t((raw >> 20) - (120 << 3));
}

// The first or the second numbers of sixteen pairs of a tile, as floats.
enum Half { kEven = 0, kOdd = 1 };

template <int kFormat, Half kHalf>
inline InRegisters<float> load_half(const char* from) {
  using Floats = InRegisters<float>::Part;
  InRegisters<float> half;
#pragma GCC unroll 2
  for (int part = 0; part < kParts; ++part) {
    if constexpr (kFormat == BF16) {
      const auto pairs = load<InRegisters<uint32_t>::Part>(from + part * kRegisterLanes * 4);
      half.parts[part] = bits<Floats>(kHalf == kEven ? pairs << 16 : pairs & 0xffff0000u);
    } else if constexpr (kFormat == INT8) {
      typedef uint16_t Pairs __attribute__((vector_size(2 * kRegisterLanes)));
      const auto both = __builtin_convertvector(load<Pairs>(from + part * kRegisterLanes * 2), InRegisters<int32_t>::Part);
      half.parts[part] = __builtin_convertvector(both << (kHalf == kEven ? 24 : 16) >> 24, Floats);
    }
  }
  if constexpr (kFormat == FP8) {
    const u16x16 both = load<u16x16>(from);
    const f32x16 values = from_f16(kHalf == kEven ? (both & 0x7f) << 7 | (both & 0x80) << 8
                                                  : (both & 0x7f00) >> 1 | (both & 0x8000)) * 256.0f;
    half = load_parts<float>(&values);
  }
  return half;
}

// Such pairs as pairs of bfloat16, which represents all of these formats exactly.
template <int kFormat>
inline u32x16 load_pairs(const char* from) {
  if constexpr (kFormat == BF16) return load<u32x16>(from);
  const auto even = load_half<kFormat, kEven>(from), odd = load_half<kFormat, kOdd>(from);
  return bits<u32x16>(even) >> 16 | bits<u32x16>(odd);
}

// Write one vector of `size` numbers to the positions given by `place`, and 0 to the padding up to `padded`.
template <int kFormat, class Place>
inline void write_vector(void* tile, const float* vector, int64_t size, int64_t padded, uint16_t* scale, Place place) {
  if constexpr (kFormat == F32) {
    for (int64_t i = 0; i < padded; ++i) static_cast<float*>(tile)[place(i)] = i < size ? vector[i] : 0.0f;
  } else if constexpr (kFormat == BF16) {
    for (int64_t i = 0; i < padded; ++i) static_cast<uint16_t*>(tile)[place(i)] = i < size ? narrow(vector[i]) : 0;
  } else {
    constexpr float kMost = kFormat == INT8 ? 127.0f : 448.0f;
    float magnitude = 0;
    for (int64_t i = 0; i < size; ++i) {
      const float each = std::fabs(vector[i]);
      magnitude = each > magnitude || each != each ? each : magnitude;
    }
    const float wanted = magnitude / kMost;
    *scale = narrow(wanted < 0x1p-126f ? 0x1p-126f : wanted);
    const float unit = widen(*scale);
    for (int64_t i = 0; i < padded; ++i) {
      float number = i < size ? vector[i] / unit : 0.0f;
      number = number > kMost ? kMost : number < -kMost ? -kMost : number;
      static_cast<uint8_t*>(tile)[place(i)] = kFormat == INT8 ? uint8_t(int8_t(std::nearbyint(number))) : to_f8(number);
    }
  }
}

}  // namespace orca
