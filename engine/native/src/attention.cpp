#include "attention.h"

#include <algorithm>

#include "amx.h"
#include "attention_amx.h"
#include "attention_output.h"
#include "attention_partials.h"
#include "attention_pieces.h"
#include "attention_queries.h"
#include "attention_scores.h"
#include "attention_softmax.h"
#include "attention_values.h"
#include "cache_write.h"
#include "stage.h"

namespace orca {
namespace {

template <int kFormat, bool kDot>
class Attention {
 public:
  explicit Attention(const OrcaAttention& call) : state_(call) {}

  // Compute some key heads of a piece, together as their blocks are adjacent, or one after the other if each has many
  // rows. `next` and its heads are what this thread will probably compute next. Results are kept if `claim()`.
  template <class Claim>
  void compute(const Piece& piece, Range heads, float* partials, const Piece& next, Range next_heads, Claim claim) {
    for (Range left = heads; left.begin < left.end;) {
      const Range together = first_together(piece, left);
      left.begin = together.end;
      const bool more = left.begin < left.end;
      const Piece& then = more ? piece : next;
      compute_together(piece, together, then, first_together(then, more ? left : next_heads));
      if (!claim()) return;
      piece.parts == 1 ? write_output(state_, piece, running()) : keep_partial(state_, piece, running(), partials);
    }
  }

  // Combine the parts of a context; `piece` is the first of them.
  void combine(const Piece& piece, int64_t head, float* partials) {
    state_.take(piece, {head, head + 1});
    write_output(state_, piece, combine_partials(state_, piece, head, partials));
  }

  // Number of floats for the parts of all key heads.
  int64_t partial_floats(int64_t vectors) const { return orca::partial_floats(state_, vectors); }

 private:
  // The first of some key heads of a piece that are computed together.
  Range first_together(const Piece& piece, Range heads) const {
    const int64_t rows = state_.rows_of(piece), most = by_tiles(state_, rows) ? 1 : std::max<int64_t>(kBand / rows, 1);
    return {heads.begin, std::min(heads.begin + most, heads.end)};
  }

  RunningSoftmax running() { return {state_.most, state_.sum, state_.sums}; }

  void compute_together(const Piece& piece, Range heads, const Piece& next, Range next_heads) {
    state_.take(piece, heads);
    const int64_t rows = state_.all_rows();
    shape_tiles(state_, few_by_tiles(state_) ? state_.rows : 0);
    prepare(state_, piece);
    const RunningSoftmax running = this->running();
    std::fill_n(running.most, rows, kNothing);
    std::fill_n(running.sum, rows, 0.0f);
    std::fill_n(running.values, rows * state_.sum_stride, 0.0f);
    for (int64_t position = piece.begin; position < piece.end;) {
      position = collect_tiles(state_, piece, position);
      if (by_tiles(state_, state_.rows)) {
        widen_keys(state_);
        lay_values(state_);
      } else {
        const bool more = position < piece.end;
        collect_ahead(state_, more ? piece : next, more ? heads : next_heads, more ? position : next.begin);
      }
      for (int64_t begin = 0; begin < rows; begin = state_.band.end) {
        state_.band = {begin, std::min(begin + kBand, rows)};
        state_.seen = visible_tiles(state_, piece);
        if (state_.seen.begin >= state_.seen.end) continue;
        score_band();
        for (int64_t row = state_.band.begin; row < state_.band.end; ++row) weigh(state_, piece, row, running);
        add_band(running.values);
      }
    }
  }

  void score_band() {
    if (by_tiles(state_, state_.rows)) return score_by_tiles(state_);
    visit_heads(state_, [&](int64_t head, Range rows, Range tiles) {
      if (few_by_tiles(state_)) return score_few(state_, head, rows, tiles);
      for (Range left = rows; left.begin < left.end;) {
        left.begin += score_rows(state_, head, left, tiles, left.begin == rows.begin);
      }
    });
  }

  void add_band(float* values) {
    if (by_tiles(state_, state_.rows)) return add_by_tiles(state_, values);
    visit_heads(state_, [&](int64_t head, Range rows, Range tiles) {
      if (few_by_tiles(state_)) return add_few(state_, head, rows, tiles, values);
      for (Range left = rows; left.begin < left.end;) {
        left.begin += add_values(state_, head, left, tiles, values, left.begin == rows.begin);
      }
    });
  }

  AttentionState<kFormat, kDot> state_;
};

template <int kFormat, bool kDot>
void attend_as(const OrcaAttention& call, AttentionWork& work, Team& team, int thread) {
  Attention<kFormat, kDot> attention(call);
#if defined(__AMX_BF16__)
  const TileRegisters tiles;
#endif
  for (Stage stage = Stage::of_threads(team, thread); stage.take();) {
    if (stage.piece() == 0) {
      divide(call, team.size(), work);
      work.partials.get<float>(attention.partial_floats(work.vectors));
    }
    const Range written = share(call.num_tokens, stage.piece(), team.size());
    CacheWriter<kFormat>(call, memory().wide).write(written.begin, written.end);
  }
  // What follows was divided for a later call if this thread has missed the stage, and is not used then.
  float* partials = work.partials.get<float>(0);
  const Takes takes(work.pieces, call.num_kv_heads, team.size());
  for (Stage stage = Stage::queue(team, thread, takes.size()); stage.take();) {
    const int64_t index = stage.piece(), following = stage.next(), next = following < 0 ? index : following;
    const Piece piece = takes.piece(index), next_piece = takes.piece(next);
    stage.offer();
    attention.compute(piece, takes.heads(index), partials, next_piece, takes.heads(next), [&] { return stage.claim(); });
  }
  const int64_t heads = call.num_kv_heads, total = work.vectors ? int64_t(work.pieces.size()) * heads : 0;
  for (Stage stage = Stage::queue(team, thread, total); stage.take();) {
    const Piece& piece = work.pieces[stage.piece() / heads];
    if (piece.parts > 1 && piece.part == 0) attention.combine(piece, stage.piece() % heads, partials);
  }
}

}  // namespace

void attend(const OrcaAttention& call, AttentionWork& work, Team& team, int thread) {
#if defined(__AVX512BF16__)
  constexpr bool kHasDot = true;
#else
  constexpr bool kHasDot = false;
#endif
  const bool dot = kHasDot && call.query_format == BF16;
  switch (call.cache_format) {
    case F32:
      return attend_as<F32, false>(call, work, team, thread);
    case BF16:
      return dot ? attend_as<BF16, kHasDot>(call, work, team, thread)
                 : attend_as<BF16, false>(call, work, team, thread);
    case INT8:
      return dot ? attend_as<INT8, kHasDot>(call, work, team, thread)
                 : attend_as<INT8, false>(call, work, team, thread);
    default:
      return dot ? attend_as<FP8, kHasDot>(call, work, team, thread)
                 : attend_as<FP8, false>(call, work, team, thread);
  }
}

}  // namespace orca

// The entry point for Python: attend with at most `threads` threads.
extern "C" void orca_attend(const OrcaAttention* call, int threads) {
  thread_local orca::AttentionWork shared;
  orca::AttentionWork& work = shared;
  orca::run_team(threads, [&](orca::Team& team, int thread) { orca::attend(*call, work, team, thread); });
}
