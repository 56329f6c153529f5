// The working memory of a decoder.

#pragma once

#include "attention.h"
#include "decoder.h"
#include "linear.h"
#include "maxima.h"
#include "mixture.h"

namespace orca {

// The state that the threads share, whose memory is kept from call to call.
struct DecoderWork {
  AttentionWork attention;
  LinearWork linear;
  LinearWork gated;
  MixtureWork mixture;
  Maxima maxima;

  void reserve(const OrcaDecoder& model, const OrcaDecoderCall& call, int threads) {
    if (call.highest) maxima.begin(call.num_rows, threads);
    for (int64_t index = 0; index < model.num_layers; ++index) {
      const OrcaDecoderLayer& layer = model.layers[index];
      linear.reserve(*layer.projections, call.num_tokens);
      linear.reserve(*layer.output, call.num_tokens);
      if (layer.mixture) {
        linear.reserve(*layer.mixture->router, call.num_tokens);
        mixture.reserve(*layer.mixture, call.num_tokens, model.format);
        continue;
      }
      linear.reserve(*layer.gate_up, call.num_tokens);
      linear.reserve(*layer.down, call.num_tokens);
      gated.reserve(*layer.down, call.num_tokens);
    }
    linear.reserve(*model.head, call.num_rows);
    for (int64_t each = 0; each < call.num_adapters; ++each) reserve(call.adapters[each], model.num_layers);
  }

 private:
  void reserve(const OrcaAdapter& adapter, int64_t num_layers) {
    for (int64_t index = 0; index < num_layers; ++index) {
      const OrcaAdapterLayer& layer = adapter.layers[index];
      for (const OrcaLowRank* each : {&layer.projections, &layer.output, &layer.gate_up, &layer.down}) {
        if (each->down == nullptr) continue;
        linear.reserve(*each->down, adapter.num_rows);
        linear.reserve(*each->up, adapter.num_rows);
      }
    }
  }
};

}  // namespace orca
