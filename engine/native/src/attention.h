// Attention of a flat batch over block tables.

#pragma once

#include <cstdint>
#include <vector>

#include "number.h"
#include "parallel.h"
#include "team.h"

// One layer's attention in one iteration; strides count numbers, the last dimension is contiguous.
//
// The cache of a layer is [num_blocks, num_kv_heads] blocks. A block of keys is [size / 2][block_size][2], one of values
// [block_size / 2][size][2]: the order in which a dot product of pairs, or the tile unit, reads them. In float32 they are
// [size][block_size] and [block_size][size]. Odd key and block sizes are rounded up. Beyond the end of each array 64
// more bytes may be read.
struct OrcaAttention {
  const void* query;  // [num_heads, num_tokens, key_size] float32 or bfloat16
  const void* key;    // [num_kv_heads, num_tokens, key_size]
  const void* value;  // [num_kv_heads, num_tokens, value_size]
  void* output;       // [num_tokens, num_heads, value_size], heads side by side
  void* keys;
  void* values;
  uint16_t* key_scales;  // [num_blocks, num_kv_heads, block_size]
  uint16_t* value_scales;
  const int32_t* tables;    // [num_spans, table_width]
  const int64_t* slots;     // [num_tokens]: block * block_size + offset
  const int64_t* offsets;   // [num_spans + 1] into the stream
  const int64_t* contexts;  // [num_spans]: tokens that the last token of a span sees
  const float* sinks;       // [num_heads] or null
  const int64_t* rows;      // [num_rows], ascending: tokens whose output is wanted, others are undefined; null: all
  int64_t query_head_stride, query_token_stride;
  int64_t key_head_stride, key_token_stride;
  int64_t value_head_stride, value_token_stride;
  int64_t output_token_stride;
  int64_t table_width, num_spans, num_tokens, num_heads, num_kv_heads, key_size, value_size;
  int64_t block_size, num_rows;
  int64_t window;  // 0: none
  float scale, softcap;  // softcap 0: none
  int32_t query_format, cache_format;  // orca::Format; 8-bit formats have a bfloat16 scale per token and head
};

namespace orca {

// A piece of work: tokens `first` ... `last - 1` of a span against slots `begin` ... `end - 1`, for each key head.
struct Piece {
  int64_t span, first, last, begin, end;
  int64_t part, parts;  // of the context
  int64_t partial;      // where its part of the result goes, in vectors of all key heads
};

// The state that the threads of a team share while they attend.
struct AttentionWork {
  std::vector<Piece> pieces;
  int64_t vectors = 0;  // of partial results, for each key head
  Scratch partials;
};

// Called by all threads of `team` with the same `work`; the output is complete when it returns.
void attend(const OrcaAttention& call, AttentionWork& work, Team& team, int thread);

}  // namespace orca
