#include "decoder.h"

#include <algorithm>
#include <cstring>

#include "elementwise.h"
#include "number.h"
#include "parallel.h"
#include "team.h"
#include "vector.h"

namespace orca {
namespace {

// What the threads share; it keeps its memory from call to call.
struct DecoderWork {
  AttentionWork attention;
  LinearWork linear;

  void reserve(const OrcaDecoder& model, const OrcaDecoderCall& call) {
    for (int64_t index = 0; index < model.num_layers; ++index) {
      const OrcaDecoderLayer& layer = model.layers[index];
      for (const Linear* each : {layer.projections, layer.output, layer.gate_up, layer.down}) {
        linear.reserve(*each, call.num_tokens);
      }
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

template <class T>
class Decoder {
 public:
  Decoder(const OrcaDecoder& model, const OrcaDecoderCall& call, DecoderWork& work, Team& team, int thread)
      : model_(model),
        call_(call),
        work_(work),
        team_(team),
        thread_(thread),
        width_((model.num_heads + 2 * model.num_kv_heads) * model.head_size) {}

  void compute() {
    for (int64_t index = 0; index < model_.num_layers; ++index) {
      const OrcaDecoderLayer& layer = model_.layers[index];
      norm_rows(layer.input_norm, index > 0);
      linear(*layer.projections, call_.normed, call_.projected, call_.num_tokens);
      adapt(&OrcaAdapterLayer::projections, index, call_.normed, call_.projected);
      position_heads(layer);
      attend_layer(call_.attention[index]);
      linear(*layer.output, call_.attended, call_.change, call_.num_tokens);
      adapt(&OrcaAdapterLayer::output, index, call_.attended, call_.change);
      norm_rows(layer.post_norm, true);
      linear(*layer.gate_up, call_.normed, call_.gate_up, call_.num_tokens);
      adapt(&OrcaAdapterLayer::gate_up, index, call_.normed, call_.gate_up);
      gate_rows();
      linear(*layer.down, call_.gated, call_.change, call_.num_tokens);
      adapt(&OrcaAdapterLayer::down, index, call_.gated, call_.change);
    }
    final_rows();
    if (call_.num_rows) linear(*model_.head, call_.normed, call_.logits, call_.num_rows);
  }

 private:
  static T* row(void* rows, int64_t index, int64_t width) { return static_cast<T*>(rows) + index * width; }

  void linear(const Linear& layer, void* x, void* y, int64_t rows) {
    linear_team(layer, {x, rows, layer.k, model_.format}, {y, rows, layer.n, model_.format}, work_.linear, team_,
                thread_);
    team_.barrier();
  }

  // What adapters add to a linear layer's y, each for its rows.
  void adapt(OrcaLowRank OrcaAdapterLayer::*place, int64_t index, void* x, void* y) {
    for (int64_t each = 0; each < call_.num_adapters; ++each) {
      const OrcaAdapter& adapter = call_.adapters[each];
      const OrcaLowRank& change = adapter.layers[index].*place;
      if (change.down == nullptr) continue;
      gather(adapter, x, change.down->k);
      team_.barrier();
      linear(*change.down, call_.gathered, call_.inner, adapter.num_rows);
      linear(*change.up, call_.inner, call_.added, adapter.num_rows);
      scatter(adapter, y, change.up->n);
      team_.barrier();
    }
  }

  void gather(const OrcaAdapter& adapter, void* x, int64_t width) {
    const Range range = share(adapter.num_rows, thread_, team_.size);
    for (int64_t index = range.begin; index < range.end; ++index) {
      std::memcpy(row(call_.gathered, index, width), row(x, adapter.rows[index], width), width * sizeof(T));
    }
  }

  // Threads share columns: few rows are wide.
  void scatter(const OrcaAdapter& adapter, void* y, int64_t width) {
    const Range lanes = share((width + kLanes - 1) / kLanes, thread_, team_.size);
    for (int64_t index = 0; index < adapter.num_rows; ++index) {
      const T* from = row(call_.added, index, width);
      T* to = row(y, adapter.rows[index], width);
      for (int64_t column = lanes.begin * kLanes; column < std::min(lanes.end * kLanes, width); column += kLanes) {
        const int64_t count = std::min<int64_t>(width - column, kLanes);
        put_numbers(to + column, take_numbers(to + column, count) + take_numbers(from + column, count), count);
      }
    }
  }

  Vectors stream(void* rows, int64_t count) const {
    return {rows, count, model_.hidden_size, 1, model_.hidden_size, model_.format};
  }

  // Heads number `first` ... of all tokens.
  Vectors heads(int64_t first, int64_t count) const {
    T* data = static_cast<T*>(call_.projected) + first * model_.head_size;
    return {data, call_.num_tokens, width_, count, model_.head_size, model_.format};
  }

  // What the last part of a layer computed is added to the stream, and the stream is normalized for the next one.
  void norm_rows(const float* weight, bool changed) {
    const Vectors hidden = stream(call_.hidden, call_.num_tokens), change = stream(call_.change, call_.num_tokens);
    rms_norm_team(changed ? change : hidden, changed ? &hidden : nullptr, stream(call_.normed, call_.num_tokens), weight,
                  model_.hidden_size, model_.epsilon, thread_, team_.size);
    team_.barrier();
  }

  void position_heads(const OrcaDecoderLayer& layer) {
    const Vectors queries = heads(0, model_.num_heads), keys = heads(model_.num_heads, model_.num_kv_heads);
    if (layer.query_norm) {
      norm_heads(queries, layer.query_norm);
      norm_heads(keys, layer.key_norm);
      team_.barrier();  // the shares of what follows are others
    }
    rotary_team(heads(0, model_.num_heads + model_.num_kv_heads), call_.cosines, call_.sines, model_.rotary_size,
                thread_, team_.size);
    team_.barrier();
  }

  void norm_heads(const Vectors& vectors, const float* weight) {
    rms_norm_team(vectors, nullptr, vectors, weight, model_.head_size, model_.epsilon, thread_, team_.size);
  }

  void attend_layer(OrcaAttention attention) {
    const int64_t size = model_.head_size;
    T* query = static_cast<T*>(call_.projected);
    attention.query = query;
    attention.key = query + model_.num_heads * size;
    attention.value = query + (model_.num_heads + model_.num_kv_heads) * size;
    attention.output = call_.attended;
    attention.query_head_stride = attention.key_head_stride = attention.value_head_stride = size;
    attention.query_token_stride = attention.key_token_stride = attention.value_token_stride = width_;
    attend(attention, work_.attention, team_, thread_);
  }

  void gate_rows() {
    const int64_t size = model_.intermediate_size;
    T* gate = static_cast<T*>(call_.gate_up);
    gated_team({gate, call_.num_tokens, 2 * size, model_.format}, {gate + size, call_.num_tokens, 2 * size, model_.format},
               {call_.gated, call_.num_tokens, size, model_.format}, size, model_.activation, thread_, team_.size);
    team_.barrier();
  }

  void final_rows() {
    const int64_t size = model_.hidden_size;
    const Range range = share(call_.num_rows, thread_, team_.size);
    for (int64_t index = range.begin; index < range.end; ++index) {
      const int64_t token = call_.rows[index];
      const Vectors hidden = stream(row(call_.hidden, token, size), 1), change = stream(row(call_.change, token, size), 1);
      rms_norm_team(change, &hidden, stream(row(call_.normed, index, size), 1), model_.final_norm, size, model_.epsilon, 0,
                    1);
    }
    team_.barrier();
  }

  const OrcaDecoder& model_;
  const OrcaDecoderCall& call_;
  DecoderWork& work_;
  Team& team_;
  const int thread_;
  const int64_t width_;
};

}  // namespace
}  // namespace orca

extern "C" void orca_decode(const OrcaDecoder* model, const OrcaDecoderCall* call, int threads) {
  thread_local orca::DecoderWork shared;
  orca::DecoderWork& work = shared;
  work.reserve(*model, *call);
  orca::run_team(threads, [&](orca::Team& team, int thread) {
    if (model->format == orca::BF16) {
      orca::Decoder<orca::bf16>(*model, *call, work, team, thread).compute();
    } else {
      orca::Decoder<float>(*model, *call, work, team, thread).compute();
    }
  });
}
