// A whole decoder of the common kind, computed by one call: per layer a norm, merged projections, rotary positions,
// attention over block tables, and a gated MLP behind a second norm; then norm and head. Behind the last attention
// only the rows that are asked for are computed.

#pragma once

#include "attention.h"
#include "linear.h"

struct OrcaDecoderLayer {
  const orca::Linear* projections;  // queries, keys and values side by side
  const orca::Linear* output;
  const orca::Linear* gate_up;  // side by side
  const orca::Linear* down;
  const float* input_norm;  // [hidden_size]
  const float* post_norm;
  const float* query_norm;  // [head_size] or null
  const float* key_norm;
};

struct OrcaDecoder {
  const OrcaDecoderLayer* layers;
  const float* final_norm;
  const orca::Linear* head;
  int64_t num_layers, hidden_size, num_heads, num_kv_heads, head_size, rotary_size, intermediate_size;
  float epsilon;
  int32_t activation;
  int32_t format;  // of all rows: orca::Format
};

// What an adapter adds to a linear layer: y += up(down(x)). Both null: nothing.
struct OrcaLowRank {
  const orca::Linear* down;
  const orca::Linear* up;
};

struct OrcaAdapterLayer {
  OrcaLowRank projections, output, gate_up, down;
};

// An adapter of some requests of the iteration.
struct OrcaAdapter {
  const OrcaAdapterLayer* layers;
  const int64_t* rows;  // [num_rows] of the stream: the tokens of those requests, rising
  const int64_t* kept;  // [num_kept] of the rows whose logits are wanted: those of the same requests, rising
  int64_t num_rows, num_kept;
};

// Memory to compute in: rows `stride` numbers apart. Many are read or written a few columns at a time, and would drive each
// other out of the caches if they were powers of two apart.
struct OrcaBuffer {
  void* data;
  int64_t stride;
};

// One iteration.
struct OrcaDecoderCall {
  void* hidden;         // [num_tokens, hidden_size]: the embeddings; overwritten
  const float* cosines;  // [num_tokens, rotary_size]
  const float* sines;
  const int64_t* rows;  // [num_rows] of the stream, rising, whose logits are wanted
  void* logits;         // [num_rows, head->n]
  OrcaBuffer normed;     // [num_tokens, hidden_size]
  OrcaBuffer projected;  // [num_tokens, (num_heads + 2 * num_kv_heads) * head_size]
  OrcaBuffer attended;   // [num_tokens, num_heads * head_size]
  OrcaBuffer gate_up;    // [num_tokens, 2 * intermediate_size]
  OrcaBuffer gated;      // [num_tokens, intermediate_size]
  OrcaBuffer change;     // [num_tokens, hidden_size]
  // For the rows of one adapter at a time, contiguous: the input of a linear layer, the result of `down`, that of `up`.
  void* gathered;
  void* inner;
  void* added;
  // Of each layer, but for query, key, value and output with their strides, which are set here.
  const OrcaAttention* attention;
  const OrcaAdapter* adapters;  // [num_adapters]
  int64_t num_tokens, num_rows, num_adapters;
};
