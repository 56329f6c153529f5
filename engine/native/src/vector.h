// Sixteen numbers at a time, by the compiler's vector extension: one source for AVX2, AVX-512 and later ones.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define ORCA_INLINE __attribute__((always_inline)) inline

namespace orca {

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef int8_t i8x32 __attribute__((vector_size(32)));
typedef uint8_t u8x16 __attribute__((vector_size(16)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));

constexpr int kLanes = 16;

#if defined(__AVX512F__)
constexpr int kRegisterLanes = 16;
constexpr bool kManyRegisters = true;  // 32 registers of a whole vector; AVX2 has 16 of half a vector
#else
constexpr int kRegisterLanes = 8;
constexpr bool kManyRegisters = false;
#endif
constexpr int kParts = kLanes / kRegisterLanes;

template <class Vector>
inline Vector load(const void* from) {
  Vector loaded;
  std::memcpy(&loaded, from, sizeof loaded);
  return loaded;
}

template <class Vector>
inline void store(void* to, Vector vector) {
  std::memcpy(to, &vector, sizeof vector);
}

template <class To, class From>
inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

inline f32x16 splat(float value) { return f32x16{} + value; }

inline i32x16 lane_numbers() { return i32x16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }

// Vectors as registers hold them. The compiler keeps arrays of wider vectors in memory, including the sums of a loop.
template <class Number>
struct InRegisters {
  typedef Number Part __attribute__((vector_size(4 * kRegisterLanes)));
  Part parts[kParts];
};

template <class Number>
inline InRegisters<Number> load_parts(const void* from) {
  InRegisters<Number> loaded;
#pragma GCC unroll 2
  for (int part = 0; part < kParts; ++part) {
    loaded.parts[part] =
        load<typename InRegisters<Number>::Part>(static_cast<const char*>(from) + part * 4 * kRegisterLanes);
  }
  return loaded;
}

template <class Number>
inline void store_parts(void* to, const InRegisters<Number>& vector) {
#pragma GCC unroll 2
  for (int part = 0; part < kParts; ++part) store(static_cast<char*>(to) + part * 4 * kRegisterLanes, vector.parts[part]);
}

// Transpose kRows rows of 64 bytes, `from_stride` bytes apart. The result, column after column, is written in pieces of
// 64 bytes, `to_stride` apart.
template <class Number, int kRows>
inline void transpose(const void* from, int64_t from_stride, void* to, int64_t to_stride) {
  constexpr int kColumns = 64 / sizeof(Number);
  const char* first = static_cast<const char*>(from);
  char* place = static_cast<char*>(to);
#if defined(__AVX512F__)
  // Each step interleaves the rows of both halves: a row's number loses its highest bit, which becomes the lowest bit of
  // the column's. After log2(kRows) steps they have changed places.
  static_assert(sizeof(Number) == 4 || sizeof(Number) == 8);
  const auto mixed = [](__m512i one, __m512i other, int begin) {
    if constexpr (sizeof(Number) == 4) {
      const i32x16 lanes = lane_numbers(), places = lanes / 2 + (lanes & 1) * kColumns + begin;
      return _mm512_permutex2var_epi32(one, (__m512i)places, other);
    } else {
      const __m512i places = _mm512_add_epi64(_mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0), _mm512_set1_epi64(begin));
      return _mm512_permutex2var_epi64(one, places, other);
    }
  };
  __m512i rows[kRows], next[kRows];
  for (int row = 0; row < kRows; ++row) rows[row] = load<__m512i>(first + row * from_stride);
#pragma GCC unroll 4
  for (int step = 1; step < kRows; step *= 2) {
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      next[row] = mixed(rows[row / 2], rows[row / 2 + kRows / 2], row % 2 * kColumns / 2);
    }
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) rows[row] = next[row];
  }
  for (int row = 0; row < kRows; ++row) store(place + row * to_stride, rows[row]);
#else
  for (int index = 0; index < kRows * kColumns; ++index) {
    const int64_t column = index / kRows, row = index % kRows;
    std::memcpy(place + index / kColumns * to_stride + index % kColumns * sizeof(Number),
                first + row * from_stride + column * sizeof(Number), sizeof(Number));
  }
#endif
}

// Apply `compute` to each register of `vectors`: comparisons of wider vectors would be done number by number.
template <class Compute, class... Vectors>
inline f32x16 by_registers(Compute compute, Vectors... vectors) {
  InRegisters<float> made;
#pragma GCC unroll 2
  for (int part = 0; part < kParts; ++part) made.parts[part] = compute(load_parts<float>(&vectors).parts[part]...);
  f32x16 whole;
  store_parts(&whole, made);
  return whole;
}

// sum += values * factor.
inline void add_product(InRegisters<float>& sum, const InRegisters<float>& values, float factor) {
#pragma GCC unroll 2
  for (int part = 0; part < kParts; ++part) sum.parts[part] += values.parts[part] * factor;
}

// Round to nearest, ties to even; NaN stays NaN.
inline u32x16 to_bf16(f32x16 values) {
  u32x16 raw = bits<u32x16>(values);
  u32x16 rounded = (raw + 0x7fffu + (raw >> 16 & 1u)) >> 16;
  return values != values ? (raw >> 16 | 0x40u) : rounded;
}

inline f32x16 load_bf16(const uint16_t* from) {
#if defined(__AVX512F__)  // GCC would convert it in four parts
  return (f32x16)_mm512_slli_epi32(_mm512_cvtepu16_epi32(load<__m256i>(from)), 16);
#else
  return bits<f32x16>(__builtin_convertvector(load<u16x16>(from), u32x16) << 16);
#endif
}

inline void store_bf16(uint16_t* to, f32x16 values) {
#if defined(__AVX512BF16__)
  store(to, _mm512_cvtneps_pbh((__m512)values));
#else
  store(to, __builtin_convertvector(to_bf16(values), u16x16));
#endif
}

// Call body with the place and the length of each vector of `width` numbers; only the last one may be shorter.
template <class Body>
ORCA_INLINE void for_vectors(int64_t width, Body body) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) body(i, int64_t{kLanes});
  if (i < width) body(i, width - i);
}

// `count` numbers, at most one vector; the other lanes are 0, and are not stored.
inline f32x16 take_numbers(const float* from, int64_t count) {
  if (count == kLanes) return load<f32x16>(from);
  f32x16 taken{};
  std::memcpy(&taken, from, count * sizeof(float));
  return taken;
}

inline f32x16 take_numbers(const uint16_t* from, int64_t count) {
  if (count == kLanes) return load_bf16(from);
  uint16_t taken[kLanes] = {};
  std::memcpy(taken, from, count * sizeof(uint16_t));
  return load_bf16(taken);
}

inline void put_numbers(float* to, f32x16 numbers, int64_t count) { std::memcpy(to, &numbers, count * sizeof(float)); }

inline void put_numbers(uint16_t* to, f32x16 numbers, int64_t count) {
  if (count == kLanes) return store_bf16(to, numbers);
  uint16_t put[kLanes];
  store_bf16(put, numbers);
  std::memcpy(to, put, count * sizeof(uint16_t));
}

// Finite float16 numbers.
inline f32x16 from_f16(u16x16 halves) {
#if defined(__AVX512F__)
  return (f32x16)_mm512_cvtph_ps((__m256i)halves);
#else
  const u32x16 wide = __builtin_convertvector(halves, u32x16);
  return bits<f32x16>((wide & 0x7fffu) << 13 | (wide & 0x8000u) << 16) * 0x1p112f;
#endif
}

inline f32x16 largest(f32x16 a, f32x16 b) {
  return by_registers([](auto one, auto other) { return one > other ? one : other; }, a, b);
}

inline float largest_of(f32x16 values) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)values);
#endif
  float most = values[0];
  for (int lane = 1; lane < kLanes; ++lane) most = values[lane] > most ? values[lane] : most;
  return most;
}

inline float sum_of(f32x16 values) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)values);
#endif
  float total = 0;
  for (int lane = 0; lane < kLanes; ++lane) total += values[lane];
  return total;
}

inline InRegisters<float>::Part exp_of_part(InRegisters<float>::Part x) {
  using Floats = InRegisters<float>::Part;
  using Integers = InRegisters<int32_t>::Part;
  const Floats low = Floats{} - 87.0f, high = Floats{} + 89.0f;  // the power of two of the latter is infinite
  Floats inside = x < low ? low : x;
  inside = inside > high ? high : inside;
  const float kRound = 12582912.0f;  // adding it leaves the nearest integer in the low bits
  const Floats shifted = inside * 1.44269504088896341f + kRound;
  const Floats whole = shifted - kRound;
  const Floats rest = inside - whole * 0.693359375f + whole * 2.12194440e-4f;
  Floats series = Floats{} + 1.9875691500e-4f;
  for (float factor : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) {
    series = series * rest + factor;
  }
  series = series * rest * rest + rest + 1.0f;
  const Integers exponent = bits<Integers>(shifted) - bits<int32_t>(kRound);
  const Floats scaled = series * bits<Floats>((exponent + 127) << 23);
  return x < low ? Floats{} : scaled;
}

// e^x to about one unit in the last place; 0 below -87, and infinite above 88, where float32 ends.
inline f32x16 exp_of(f32x16 x) {
#if defined(__AVX512F__)
  // In this order of operands the limits let NaN through.
  const __m512 inside = _mm512_min_ps(_mm512_set1_ps(100.0f), _mm512_max_ps(_mm512_set1_ps(-120.0f), (__m512)x));
  const __m512 whole = _mm512_roundscale_ps(_mm512_mul_ps(inside, _mm512_set1_ps(1.44269504088896341f)), 0);
  __m512 rest = _mm512_fnmadd_ps(whole, _mm512_set1_ps(0.693359375f), inside);
  rest = _mm512_fmadd_ps(whole, _mm512_set1_ps(2.12194440e-4f), rest);
  __m512 power = _mm512_set1_ps(1.3981999507e-3f);
  for (float factor : {8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f, 1.0f, 1.0f}) {
    power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(factor));
  }
  return (f32x16)_mm512_scalef_ps(power, whole);
#else
  return by_registers([](InRegisters<float>::Part part) { return exp_of_part(part); }, x);
#endif
}

#if defined(__AVX512DQ__)
// 2^x for x up to 0, with a relative error of 5e-6; 0 below -150.
inline f32x16 power_of_two(f32x16 x) {
  // In this order of operands the limit lets NaN through.
  const __m512 inside = _mm512_max_ps(_mm512_set1_ps(-200.0f), (__m512)x);
  const __m512 rest = _mm512_reduce_ps(inside, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // from 0 to 1
  __m512 power = _mm512_set1_ps(1.3534167e-2f);
  for (float factor : {5.2011464e-2f, 2.4144275e-1f, 6.9300383e-1f, 1.0000026f}) {
    power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(factor));
  }
  return (f32x16)_mm512_scalef_ps(power, inside);  // which uses only the integer part
}
#endif

inline f32x16 tanh_of(f32x16 x) { return 1.0f - 2.0f / (exp_of(x + x) + 1.0f); }

}  // namespace orca
