// Which thread computes which part of attention.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attention.h"

namespace orca {

// The position of a span's first token.
inline int64_t context_start(const OrcaAttention& call, int64_t span) {
  return call.contexts[span] - (call.offsets[span + 1] - call.offsets[span]);
}

// The first position that a token at `position` sees.
inline int64_t first_visible(const OrcaAttention& call, int64_t position) {
  return call.window ? std::max<int64_t>(0, position - call.window + 1) : 0;
}

// Into pieces, the longest work first, so that no thread is left with it alone.
void divide(const OrcaAttention& call, int threads, AttentionWork& work);

// What a thread takes at a time: some key heads of a piece, the more of them the more pieces there are.
class Takes {
 public:
  Takes(const std::vector<Piece>& pieces, int64_t heads, int threads) : pieces_(pieces), heads_(heads) {
    const int64_t most = int64_t(pieces.size()) * heads / (threads * kTakes);
    shares_ = heads / std::clamp<int64_t>(most, 1, heads);
  }

  int64_t size() const { return int64_t(pieces_.size()) * shares_; }
  const Piece& piece(int64_t index) const { return pieces_[index / shares_]; }
  Range heads(int64_t index) const { return share(heads_, index % shares_, shares_); }

 private:
  static constexpr int64_t kTakes = 4;  // how often a thread takes work, about, to be done no later than the others

  const std::vector<Piece>& pieces_;
  const int64_t heads_;
  int64_t shares_;  // of a piece
};

}  // namespace orca
