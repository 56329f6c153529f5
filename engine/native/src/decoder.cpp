#include "decoder.h"

#include <algorithm>
#include <cstring>

#include "decoder_work.h"
#include "elementwise.h"
#include "mlp.h"
#include "number.h"
#include "stage.h"
#include "team.h"
#include "vector.h"

namespace orca {
namespace {

constexpr int64_t kNoRows[1] = {};

template <class T>
class Decoder {
 public:
  Decoder(const OrcaDecoder& model, const OrcaDecoderCall& call, DecoderWork& work, Team& team, int thread)
      : model_(model),
        call_(call),
        work_(work),
        team_(team),
        thread_(thread),
        num_rows_(call.num_tokens) {}

  void compute() {
    embed();
    const Norm* of_change = nullptr;
    for (int64_t index = 0; index < model_.num_layers; ++index) {
      const OrcaDecoderLayer& layer = model_.layers[index];
      if (index > 0) {
        advance(of_change, layer.input_norm);
      } else if (layer.input_norm) {
        normalize(*layer.input_norm);
      }
      const OrcaBuffer& input = layer.input_norm ? call_.normed : call_.hidden;
      linear(*layer.projections, input, call_.projected);
      adapt(&OrcaAdapterLayer::projections, index, input, call_.projected);
      position_heads(layer);
      const bool is_last = index + 1 == model_.num_layers;
      attend_layer(layer, call_.caches[index], is_last);
      if (is_last && !keep_wanted()) return;
      linear(*layer.output, call_.attended, call_.change);
      adapt(&OrcaAdapterLayer::output, index, call_.attended, call_.change);
      advance(layer.output_norm, layer.mlp_norm);
      compute_mlp(layer, index, layer.mlp_norm || model_.is_parallel ? call_.normed : call_.hidden);
      of_change = layer.down_norm;
    }
    advance(of_change, model_.final_norm);
    compute_logits();
  }

 private:
  // A stage in which `work(part)` computes the share of each thread.
  template <class Work>
  void by_shares(Work work) {
    for (Stage stage = Stage::of_threads(team_, thread_); stage.take();) work(static_cast<int>(stage.piece()));
  }

  static T* row(const OrcaBuffer& buffer, int64_t index) { return static_cast<T*>(buffer.data) + index * buffer.stride; }

  Rows rows_of(const OrcaBuffer& buffer, int64_t count) const { return {buffer.data, count, buffer.stride, model_.format}; }

  void linear(const Linear& layer, const OrcaBuffer& x, const OrcaBuffer& y) { linear(layer, x, y, num_rows_); }

  void linear(const Linear& layer, const OrcaBuffer& x, const OrcaBuffer& y, int64_t count) {
    linear_team(layer, rows_of(x, count), rows_of(y, count), work_.linear, team_, thread_);
  }

  // Add the adapters' changes to a linear layer's y, each for its rows.
  void adapt(OrcaLowRank OrcaAdapterLayer::*place, int64_t index, const OrcaBuffer& x, const OrcaBuffer& y) {
    for (int64_t each = 0; each < call_.num_adapters; ++each) {
      const OrcaAdapter& adapter = call_.adapters[each];
      const OrcaLowRank& change = adapter.layers[index].*place;
      const bool all = num_rows_ == call_.num_tokens;
      const int64_t* rows = all ? adapter.rows : adapter.kept;
      const int64_t count = all ? adapter.num_rows : adapter.num_kept;
      if (change.down == nullptr || count == 0) continue;
      const OrcaBuffer gathered{call_.gathered, change.down->k}, inner{call_.inner, change.down->n};
      const OrcaBuffer added{call_.added, change.up->n};
      by_shares([&](int part) { gather(rows, count, row(x, 0), x.stride, gathered, change.down->k, part); });
      linear(*change.down, gathered, inner, count);
      linear(*change.up, inner, added, count);
      by_shares([&](int part) { scatter(rows, count, added, y, part); });
    }
  }

  // Copy `width` numbers of each of these rows of x.
  void gather(const int64_t* rows, int64_t count, const T* x, int64_t stride, const OrcaBuffer& to, int64_t width, int part) {
    const Range range = share(count, part, team_.size());
    for (int64_t index = range.begin; index < range.end; ++index) {
      std::memcpy(row(to, index), x + rows[index] * stride, width * sizeof(T));
    }
  }

  // Threads share columns, because rows are few and wide.
  void scatter(const int64_t* rows, int64_t count, const OrcaBuffer& added, const OrcaBuffer& y, int part) {
    const Range columns = columns_of(added.stride, part);
    for (int64_t index = 0; index < count; ++index) {
      const T* from = row(added, index);
      T* to = row(y, rows[index]);
      for (int64_t column = columns.begin; column < columns.end; column += kLanes) {
        const int64_t lanes = std::min<int64_t>(columns.end - column, kLanes);
        put_numbers(to + column, take_numbers(to + column, lanes) + take_numbers(from + column, lanes), lanes);
      }
    }
  }

  Range columns_of(int64_t width, int part) const {
    const Range lanes = share((width + kLanes - 1) / kLanes, part, team_.size());
    return {lanes.begin * kLanes, std::min(lanes.end * kLanes, width)};
  }

  // After the last attention, keep only tokens whose logits are wanted; return whether there are any.
  bool keep_wanted() {
    num_rows_ = call_.num_rows;
    if (num_rows_ < call_.num_tokens) {
      by_shares([&](int part) {
        keep_rows(call_.hidden, model_.hidden_size, part);
        if (model_.is_parallel) keep_rows(call_.normed, model_.hidden_size, part);
        keep_rows(call_.attended, model_.num_heads * model_.head_size, part);
      });
    }
    return num_rows_ > 0;
  }

  void embed() {
    by_shares([&](int part) {
      if (model_.shared) {
        return gather_team(*model_.shared, call_.ids, rows_of(call_.hidden, num_rows_), part, team_.size());
      }
      const int64_t size = model_.hidden_size;
      gather(call_.ids, num_rows_, static_cast<const T*>(model_.embedding), size, call_.hidden, size, part);
    });
    scale(rows_of(call_.hidden, num_rows_), model_.hidden_size, model_.embedding_factor, 0);
  }

  // In place: threads share columns, and no row is written before it is read, because rows ascend.
  void keep_rows(const OrcaBuffer& buffer, int64_t width, int part) {
    const Range columns = columns_of(width, part);
    if (columns.begin >= columns.end) return;
    for (int64_t index = 0; index < num_rows_; ++index) {
      const T* from = row(buffer, call_.rows[index]) + columns.begin;
      T* to = row(buffer, index) + columns.begin;
      if (to != from) std::memcpy(to, from, (columns.end - columns.begin) * sizeof(T));
    }
  }

  Vectors stream(const OrcaBuffer& buffer) const {
    return {buffer.data, num_rows_, buffer.stride, 1, model_.hidden_size, model_.format};
  }

  // Heads from number `first` on, of all tokens.
  Vectors heads(int64_t first, int64_t count) const {
    T* data = row(call_.projected, 0) + first * model_.head_size;
    return {data, call_.num_tokens, call_.projected.stride, count, model_.head_size, model_.format};
  }

  void normalize(const Norm& norm) {
    by_shares([&](int part) {
      norm_team(stream(call_.hidden), nullptr, stream(call_.normed), norm, part, team_.size());
    });
  }

  // Add the result of the last part of a layer to the stream, and normalize the stream for the next part.
  void advance(const Norm* of_change, const Norm* next) {
    const Change change{of_change, model_.residual_factor, model_.hidden_size};
    by_shares([&](int part) {
      advance_team(stream(call_.change), change, stream(call_.hidden), stream(call_.normed), next, part, team_.size());
    });
  }

  void scale(const Rows& rows, int64_t width, float factor, float cap) {
    if (factor == 1 && cap == 0) return;
    by_shares([&](int part) { scale_team(rows, width, factor, cap, part, team_.size()); });
  }

  void position_heads(const OrcaDecoderLayer& layer) {
    const bool is_by_head = layer.query_norm && layer.query_norm->width == model_.head_size;
    if (layer.query_norm && !is_by_head) normalize_all_heads(layer);
    if (layer.table < 0 && !is_by_head) return;
    by_shares([&](int part) {
      position(heads(0, model_.num_heads), layer.table, is_by_head ? layer.query_norm : nullptr, part);
      position(heads(model_.num_heads, model_.num_kv_heads), layer.table, is_by_head ? layer.key_norm : nullptr, part);
    });
  }

  void normalize_all_heads(const OrcaDecoderLayer& layer) {
    const Vectors queries = heads(0, 1), keys = heads(model_.num_heads, 1);  // the first of each, and all behind it
    by_shares([&](int part) {
      norm_team(queries, nullptr, queries, *layer.query_norm, part, team_.size());
      norm_team(keys, nullptr, keys, *layer.key_norm, part, team_.size());
    });
  }

  void position(const Vectors& vectors, int64_t table, const Norm* norm, int part) {
    Angles angles{nullptr, nullptr, call_.positions, 0, model_.by_neighbors != 0};
    if (table >= 0) {
      angles.cos = call_.tables[table].cosines;
      angles.sin = call_.tables[table].sines;
      angles.width = model_.rotary_size;
    }
    rotary_team(vectors, norm, angles, part, team_.size());
  }

  void attend_layer(const OrcaDecoderLayer& layer, const OrcaLayerCache& cache, bool is_last) {
    OrcaAttention attention = call_.attention[cache.group];
    attention.keys = cache.keys;
    attention.values = cache.values;
    attention.key_scales = cache.key_scales;
    attention.value_scales = cache.value_scales;
    attention.sinks = layer.sinks;
    const int64_t size = model_.head_size;
    T* query = row(call_.projected, 0);
    attention.query = query;
    attention.key = query + model_.num_heads * size;
    attention.value = query + (model_.num_heads + model_.num_kv_heads) * size;
    attention.output = call_.attended.data;
    attention.output_token_stride = call_.attended.stride;
    attention.rows = !is_last ? nullptr : call_.num_rows ? call_.rows : kNoRows;
    attention.num_rows = call_.num_rows;
    attention.query_head_stride = attention.key_head_stride = attention.value_head_stride = size;
    attention.query_token_stride = attention.key_token_stride = attention.value_token_stride = call_.projected.stride;
    attend(attention, work_.attention, team_, thread_);
  }

  void compute_mlp(const OrcaDecoderLayer& layer, int64_t index, const OrcaBuffer& input) {
    if (layer.mixture) {
      return mixture_team(*layer.mixture, rows_of(input, num_rows_), rows_of(call_.change, num_rows_), work_.linear,
                          work_.mixture, team_, thread_);
    }
    const Mlp mlp{layer.gate_up, layer.down, model_.activation};
    if (model_.is_gated && call_.num_adapters == 0 && mlp.fits(num_rows_)) {
      return mlp_team(mlp, rows_of(input, num_rows_), rows_of(call_.change, num_rows_), work_.linear, work_.gated, team_,
                      thread_);
    }
    linear(*layer.gate_up, input, call_.gate_up);
    adapt(&OrcaAdapterLayer::gate_up, index, input, call_.gate_up);
    const OrcaBuffer& inner = model_.is_gated ? call_.gated : call_.gate_up;
    activate(inner);
    linear(*layer.down, inner, call_.change);
    adapt(&OrcaAdapterLayer::down, index, inner, call_.change);
  }

  void activate(const OrcaBuffer& inner) {
    const int64_t size = model_.intermediate_size;
    const Rows gate = rows_of(call_.gate_up, num_rows_);
    const OrcaBuffer behind{row(call_.gate_up, 0) + size, call_.gate_up.stride};
    by_shares([&](int part) {
      if (!model_.is_gated) return activate_team(gate, size, model_.activation, part, team_.size());
      gated_team(gate, rows_of(behind, num_rows_), rows_of(inner, num_rows_), size, model_.activation, part, team_.size());
    });
  }

  void compute_logits() {
    linear(*model_.head, call_.normed, {call_.logits, model_.head->n});
    const Rows logits{call_.logits, num_rows_, model_.head->n, model_.format};
    scale(logits, logits.stride, model_.logit_factor, model_.logit_cap);
    if (call_.highest) work_.maxima.find(logits, logits.stride, nullptr, team_, thread_);
  }

  const OrcaDecoder& model_;
  const OrcaDecoderCall& call_;
  DecoderWork& work_;
  Team& team_;
  const int thread_;
  int64_t num_rows_;  // rows being computed: all tokens, after the last attention the wanted ones
};

}  // namespace
}  // namespace orca

extern "C" void orca_decode(const OrcaDecoder* model, const OrcaDecoderCall* call, int threads) {
  thread_local orca::DecoderWork shared;
  orca::DecoderWork& work = shared;
  work.reserve(*model, *call, threads);
  orca::run_team(threads, [&](orca::Team& team, int thread) {
    if (model->format == orca::BF16) {
      orca::Decoder<orca::bf16>(*model, *call, work, team, thread).compute();
    } else {
      orca::Decoder<float>(*model, *call, work, team, thread).compute();
    }
  });
  if (call->highest) work.maxima.end(call->highest, call->likeliest);
}
