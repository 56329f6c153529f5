// A whole decoder of the common kind, computed by one call: embeddings; per layer merged projections, rotary positions,
// attention over block tables, and an MLP or a mixture of experts, with norms before or after both; then a final norm, the
// head, and on request the highest logits. After the last attention only the requested rows are computed.

#pragma once

#include "attention.h"
#include "elementwise.h"
#include "linear.h"
#include "mixture.h"

struct OrcaDecoderLayer {
  const orca::Linear* projections;  // queries, keys and values side by side
  const orca::Linear* output;
  const orca::Linear* gate_up;  // side by side; or one layer without a gate
  const orca::Linear* down;
  const OrcaMixture* mixture;  // instead of both; or null
  // Each norm may be null: of the stream before attention, and of its result; of the stream before the MLP, and of its
  // result.
  const orca::Norm* input_norm;
  const orca::Norm* output_norm;
  const orca::Norm* mlp_norm;
  const orca::Norm* down_norm;
  const orca::Norm* query_norm;  // of one head, or of all together
  const orca::Norm* key_norm;
  const float* sinks;  // [num_heads] or null
  int64_t table;       // of angles; -1: positions are not rotated
};

struct OrcaDecoder {
  const OrcaDecoderLayer* layers;
  const void* embedding;       // [vocab, hidden_size]; or null, and
  const orca::Linear* shared;  // its rows are those of these weights
  const orca::Norm* final_norm;
  const orca::Linear* head;
  int64_t num_layers, hidden_size, num_heads, num_kv_heads, head_size, rotary_size, intermediate_size;
  float embedding_factor, residual_factor, logit_factor;
  float logit_cap;       // 0: none
  int32_t is_gated;      // whether MLPs that are no mixtures have a gate
  int32_t is_parallel;   // whether an MLP reads what attention reads, instead of the stream after it
  int32_t by_neighbors;  // as in orca::Angles
  int32_t activation;
  int32_t format;  // of all rows: orca::Format
};

// Angles of all positions, each [positions, rotary_size].
struct OrcaAngleTable {
  const float* cosines;
  const float* sines;
};

// The change of an adapter to a linear layer: y += up(down(x)). Both null: no change.
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
  const int64_t* rows;  // [num_rows] of the stream: the tokens of those requests, ascending
  const int64_t* kept;  // [num_kept] of the rows whose logits are wanted: those of the same requests, ascending
  int64_t num_rows, num_kept;
};

// The cache of a layer, as in OrcaAttention.
struct OrcaLayerCache {
  void* keys;
  void* values;
  uint16_t* key_scales;
  uint16_t* value_scales;
  int64_t group;
};

// Working memory: rows `stride` numbers apart. Many rows are read or written a few columns at a time, and would evict each
// other from the caches if they were powers of two apart.
struct OrcaBuffer {
  void* data;
  int64_t stride;
};

// One iteration.
struct OrcaDecoderCall {
  const int64_t* ids;        // [num_tokens]
  const int64_t* positions;  // [num_tokens]
  const OrcaAngleTable* tables;
  const int64_t* rows;  // [num_rows] of the stream, ascending, whose logits are wanted
  void* logits;         // [num_rows, head->n]
  float* highest;       // [num_rows]: the highest logit of each row, NaN if one is; null: not wanted
  int64_t* likeliest;   // [num_rows]: its first place
  OrcaBuffer hidden;     // [num_tokens, hidden_size]: the stream to which each layer adds
  OrcaBuffer normed;     // [num_tokens, hidden_size]
  OrcaBuffer projected;  // [num_tokens, (num_heads + 2 * num_kv_heads) * head_size]
  OrcaBuffer attended;   // [num_tokens, num_heads * head_size]
  OrcaBuffer gate_up;    // [num_tokens, 2 * intermediate_size], half of it without gates
  OrcaBuffer gated;      // [num_tokens, intermediate_size]
  OrcaBuffer change;     // [num_tokens, hidden_size]
  // For the rows of one adapter at a time, contiguous: the input of a linear layer, the results of `down` and of `up`.
  void* gathered;
  void* inner;
  void* added;
  const OrcaLayerCache* caches;    // [num_layers]
  const OrcaAttention* attention;  // per group of layers; a layer's own pointers and strides are set here
  const OrcaAdapter* adapters;  // [num_adapters]
  int64_t num_tokens, num_rows, num_adapters;
};
