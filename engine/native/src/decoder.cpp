#include "decoder.h"

#include <algorithm>

#include "decoder_rows.h"
#include "team.h"

namespace orca {
namespace {

template <class T>
class Decoder {
 public:
  Decoder(const OrcaDecoder& model, const OrcaDecoderCall& call, AttentionWork& work, Team& team, int thread)
      : model_(model),
        call_(call),
        work_(work),
        team_(team),
        thread_(thread),
        heads_(model.num_heads + 2 * model.num_kv_heads),
        width_(heads_ * model.head_size) {}

  void compute() {
    for (int64_t index = 0; index < model_.num_layers; ++index) {
      const OrcaDecoderLayer& layer = model_.layers[index];
      norm_rows(layer.input_norm, index > 0);
      linear(*layer.projections, call_.normed, call_.projected, call_.num_tokens);
      position_heads(layer);
      attend_layer(call_.attention[index]);
      linear(*layer.output, call_.attended, call_.change, call_.num_tokens);
      norm_rows(layer.post_norm, true);
      linear(*layer.gate_up, call_.normed, call_.gate_up, call_.num_tokens);
      gate_rows();
      linear(*layer.down, call_.gated, call_.change, call_.num_tokens);
    }
    final_rows();
    if (call_.num_rows) linear(*model_.head, call_.normed, call_.logits, call_.num_rows);
  }

 private:
  static T* row(void* rows, int64_t index, int64_t width) { return static_cast<T*>(rows) + index * width; }

  Range own(int64_t total) const { return share(total, thread_, team_.size); }

  void linear(const Linear& layer, void* x, void* y, int64_t rows) {
    linear_team(layer, {x, rows, layer.k, model_.format}, {y, rows, layer.n, model_.format}, thread_, team_.size);
    team_.barrier();
  }

  // What the last part of a layer computed is added to the stream, and the stream is normalized for the next one.
  void norm_rows(const float* weight, bool changed) {
    const int64_t size = model_.hidden_size;
    const Range range = own(call_.num_tokens);
    for (int64_t token = range.begin; token < range.end; ++token) {
      T* hidden = row(call_.hidden, token, size);
      if (changed) add(hidden, row(call_.change, token, size), size);
      normalize(hidden, weight, model_.epsilon, size, row(call_.normed, token, size));
    }
    team_.barrier();
  }

  void position_heads(const OrcaDecoderLayer& layer) {
    const int64_t turned = model_.num_heads + model_.num_kv_heads;
    const Range range = own(call_.num_tokens * turned);
    for (int64_t index = range.begin; index < range.end; ++index) {
      const int64_t token = index / turned, number = index % turned;
      T* head = row(call_.projected, token, width_) + number * model_.head_size;
      const float* weight = number < model_.num_heads ? layer.query_norm : layer.key_norm;
      if (weight) normalize(head, weight, model_.epsilon, model_.head_size, head);
      const float* angles = call_.angles + 2 * token * model_.rotary_size;
      rotate(head, angles, angles + model_.rotary_size, model_.rotary_size / 2);
    }
    team_.barrier();
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
    attend(attention, work_, team_, thread_);
  }

  void gate_rows() {
    const int64_t size = model_.intermediate_size, pieces = size / kLanes;
    const Range range = own(call_.num_tokens * pieces);
    for (int64_t index = range.begin; index < range.end;) {
      const int64_t token = index / pieces, first = index % pieces;
      const int64_t count = std::min(pieces - first, range.end - index);
      const T* gate = row(call_.gate_up, token, 2 * size) + first * kLanes;
      T* to = row(call_.gated, token, size) + first * kLanes;
      gated(gate, gate + size, model_.activation, count * kLanes, to);
      index += count;
    }
    team_.barrier();
  }

  void final_rows() {
    const int64_t size = model_.hidden_size;
    const Range range = own(call_.num_rows);
    for (int64_t index = range.begin; index < range.end; ++index) {
      T* hidden = row(call_.hidden, call_.rows[index], size);
      add(hidden, row(call_.change, call_.rows[index], size), size);
      normalize(hidden, model_.final_norm, model_.epsilon, size, row(call_.normed, index, size));
    }
    team_.barrier();
  }

  const OrcaDecoder& model_;
  const OrcaDecoderCall& call_;
  AttentionWork& work_;
  Team& team_;
  const int thread_;
  const int64_t heads_, width_;
};

}  // namespace
}  // namespace orca

extern "C" void orca_decode(const OrcaDecoder* model, const OrcaDecoderCall* call, int threads) {
  thread_local orca::AttentionWork shared;
  orca::AttentionWork& work = shared;
  orca::run_team(threads, [&](orca::Team& team, int thread) {
    if (model->format == orca::BF16) {
      orca::Decoder<orca::bf16>(*model, *call, work, team, thread).compute();
    } else {
      orca::Decoder<float>(*model, *call, work, team, thread).compute();
    }
  });
}
