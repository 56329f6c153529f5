// Identifies the library, and tells whether it can run here, and whether it should.

#include "amx.h"

#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

namespace {

constexpr int kSums = 12;  // enough to hide the latency of either
constexpr int kRounds = 400;
constexpr int kTrials = 4;
constexpr int kGroups = 8;
constexpr std::chrono::milliseconds kPause{1};  // between groups: a neighbor on the core may hold up one kind of product

// Nanoseconds for a fixed number of products; `add` is called for each of the sums in turn.
template <class Add>
int64_t time_of(Add add) {
  __m512 sums[kSums] = {};
  const auto begin = std::chrono::steady_clock::now();
  for (int round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) {
      add(sums[i]);
      asm volatile("" : "+v"(sums[i]));  // or the compiler would compute them in advance
    }
  }
  return std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

// Whether products of bfloat16 pairs take clearly longer here than products of both halves in float32, as libraries without
// that instruction compute them: twice as long on an Intel Xeon of 2023, half as long on AMD's.
extern "C" int orca_outpaced() {
  const __m512 ones = _mm512_set1_ps(1.0f);
  int64_t pairs = INT64_MAX, halves = INT64_MAX;
  for (int trial = 0; trial < kGroups * kTrials; ++trial) {
    if (trial > 0 && trial % kTrials == 0) std::this_thread::sleep_for(kPause);
    pairs = std::min(pairs, time_of([&](__m512& sum) { sum = _mm512_dpbf16_ps(sum, (__m512bh)ones, (__m512bh)ones); }));
    halves = std::min(halves, time_of([&](__m512& sum) {
      sum = _mm512_fmadd_ps(ones, ones, sum);
      asm volatile("" : "+v"(sum));
      sum = _mm512_fmadd_ps(ones, ones, sum);
    }));
  }
  return 4 * pairs > 5 * halves;  // a margin, so that noise does not change the answer from start to start
}
#else
extern "C" int orca_outpaced() { return 0; }
#endif

// Identifies the sources from which the library was built.
extern "C" const char* orca_fingerprint() { return ORCA_FINGERPRINT; }

// Whether the kernel lets this process use the registers that the library needs.
extern "C" int orca_usable() {
#if defined(__AMX_BF16__)
  return orca::may_use_amx();
#else
  return 1;
#endif
}
