// Writes new keys and values into the cache.

#pragma once

#include <algorithm>
#include <cstring>

#include "cache_tile.h"

namespace orca {

constexpr int64_t kWrites = 8;  // tokens whose cache lines are prefetched before keys and values are written

// Convert `size` numbers of a call's query, keys or values, from `offset` on, to float32.
inline void widen(const OrcaAttention& call, const void* from, int64_t offset, int64_t size, float* to) {
  if (call.query_format == F32) {
    std::memcpy(to, static_cast<const float*>(from) + offset, size * sizeof(float));
    return;
  }
  const uint16_t* halves = static_cast<const uint16_t*>(from) + offset;
  for (int64_t i = 0; i < size; ++i) to[i] = widen(halves[i]);
}

template <int kFormat>
class CacheWriter {
 public:
  // `wide` is scratch memory of this thread.
  CacheWriter(const OrcaAttention& call, Scratch& wide) : call_(call), keys_(call), values_(call), wide_(wide) {}

  // Write keys and values of the tokens `first` ... `last - 1` into the cache.
  void write(int64_t first, int64_t last) const {
    if (kFormat != BF16 || call_.query_format != BF16) {
      for (int64_t token = first; token < last; ++token) write_token(token);
      return;
    }
    for (int64_t expected = first, begin = first; first < last;) {
      const int64_t count = adjacent(first, last);
      for (; expected < std::min(first + std::max(count, kWrites), last); ++expected) expect(expected, expected > begin);
      copy_tokens(first, count);
      first += count;
    }
  }

 private:
  // Return how many tokens from `first` on are copied together: a whole tile, two that share a pair of slots, or one.
  int64_t adjacent(int64_t first, int64_t last) const {
    const int64_t slot = call_.slots[first];
    int64_t most = call_.block_size % 2 == 0 && slot % 2 == 0 ? 2 : 1;
    if (call_.block_size % kTile == 0 && slot % kTile == 0) most = kTile;
    int64_t count = 1;
    while (count < std::min(most, last - first) && call_.slots[first + count] == slot + count) ++count;
    return count == kTile ? kTile : std::min<int64_t>(count, 2);
  }

  // Copy halves unchanged.
  void copy_tokens(int64_t token, int64_t count) const {
    const int64_t block = call_.slots[token] / call_.block_size, slot = call_.slots[token] % call_.block_size;
    const int64_t key_stride = call_.key_token_stride, value_stride = call_.value_token_stride;
    for (int64_t head = 0; head < call_.num_kv_heads; ++head) {
      const int64_t index = block * call_.num_kv_heads + head;
      char* keys = static_cast<char*>(call_.keys) + index * keys_.block_bytes + slot * 4;
      const uint16_t* key = static_cast<const uint16_t*>(call_.key) + head * call_.key_head_stride + token * key_stride;
      const int64_t done = count == kTile ? copy_tile(key, keys) : 0;
      for (int64_t each = 0; each < count; ++each) copy_key(key + each * key_stride, keys + each * 4, done);
      uint16_t* values = reinterpret_cast<uint16_t*>(static_cast<char*>(call_.values) + index * values_.block_bytes) +
                         slot / 2 * values_.size * 2;
      const uint16_t* value =
          static_cast<const uint16_t*>(call_.value) + head * call_.value_head_stride + token * value_stride;
      if (count == 1) {
        for (int64_t i = 0; i < values_.size; ++i) values[2 * i + slot % 2] = value[i];
      }
      for (int64_t each = 0; each + 2 <= count; each += 2) {
        const uint16_t* even = value + each * value_stride;
        interleave(even, even + value_stride, values_.size, values + each * values_.size);
      }
    }
  }

  // Copy the keys of a whole tile, as far as vectors reach; return how many steps these are.
  int64_t copy_tile(const uint16_t* keys, char* to) const {
    int64_t step = 0;
    for (; step + kLanes <= call_.key_size / 2; step += kLanes) {
      transpose<uint32_t, kTile>(keys + 2 * step, call_.key_token_stride * 2, to + step * keys_.step_bytes, keys_.step_bytes);
    }
    return step;
  }

  // Copy a key from step `first` on.
  void copy_key(const uint16_t* key, char* to, int64_t first) const {
    const int64_t whole = call_.key_size / 2;
    for (int64_t step = first; step < whole; ++step) std::memcpy(to + step * keys_.step_bytes, key + 2 * step, 4);
    if (call_.key_size % 2) {
      const uint32_t last = key[2 * whole];
      std::memcpy(to + whole * keys_.step_bytes, &last, 4);
    }
  }

  // Prefetch the lines of a token's keys and values, except those prefetched for the previous token: a key goes to as many
  // lines as it has pairs of numbers, and stores that miss the caches are serialized. Always inline, because GCC takes a
  // function that only prefetches for one that does nothing.
  __attribute__((always_inline)) inline void expect(int64_t token, bool any_before) const {
    const int64_t slot = call_.slots[token] % call_.block_size, block = call_.slots[token] / call_.block_size;
    const bool goes_on = any_before && call_.slots[token] == call_.slots[token - 1] + 1;
    const char* keys = static_cast<char*>(call_.keys) + block * call_.num_kv_heads * keys_.block_bytes + slot * 4;
    const char* values = static_cast<char*>(call_.values) + block * call_.num_kv_heads * values_.block_bytes +
                         slot / 2 * values_.size * 4;
    for (int64_t head = 0; head < call_.num_kv_heads; ++head, keys += keys_.block_bytes, values += values_.block_bytes) {
      for (int64_t step = 0; step < keys_.size / 2 && !(goes_on && slot % kTile); ++step) {
        __builtin_prefetch(keys + step * keys_.step_bytes, 0, 2);
      }
      for (int64_t at = 0; at < values_.size * 4 && !(goes_on && slot % 2); at += 64) __builtin_prefetch(values + at, 0, 2);
    }
  }

  static void interleave(const uint16_t* even, const uint16_t* odd, int64_t size, uint16_t* to) {
    for (int64_t i = 0; i < size; ++i) {
      const uint32_t pair = uint32_t{even[i]} | uint32_t{odd[i]} << 16;
      std::memcpy(to + 2 * i, &pair, 4);
    }
  }

  void write_token(int64_t token) const {
    const int64_t block = call_.slots[token] / call_.block_size, slot = call_.slots[token] % call_.block_size;
    float* wide = wide_.get<float>(std::max(call_.key_size, call_.value_size));
    for (int64_t head = 0; head < call_.num_kv_heads; ++head) {
      const int64_t index = block * call_.num_kv_heads + head, scale = index * call_.block_size + slot;
      widen(call_, call_.key, head * call_.key_head_stride + token * call_.key_token_stride, call_.key_size, wide);
      write_vector<kFormat>(
          static_cast<char*>(call_.keys) + index * keys_.block_bytes, wide, call_.key_size, keys_.size,
          call_.key_scales + scale, [&](int64_t i) {
            return kFormat == F32 ? i * call_.block_size + slot : (i / 2 * call_.block_size + slot) * 2 + i % 2;
          });
      widen(call_, call_.value, head * call_.value_head_stride + token * call_.value_token_stride, values_.size, wide);
      write_vector<kFormat>(static_cast<char*>(call_.values) + index * values_.block_bytes, wide, values_.size,
                            values_.size, call_.value_scales + scale, [&](int64_t i) {
                              return kFormat == F32 ? slot * values_.size + i
                                                         : (slot / 2 * values_.size + i) * 2 + slot % 2;
                            });
    }
  }

  const OrcaAttention& call_;
  const KeyShape keys_;
  const ValueShape values_;
  Scratch& wide_;
};

}  // namespace orca
