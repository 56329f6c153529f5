// Distribution of attention over threads.

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

// Return the first position that a token at `position` sees.
inline int64_t first_visible(const OrcaAttention& call, int64_t position) {
  return call.window ? std::max<int64_t>(0, position - call.window + 1) : 0;
}

// Divide the work into pieces, longest first, so that no thread ends up alone with a long one.
void divide(const OrcaAttention& call, int threads, AttentionWork& work);

// The unit that a thread takes at a time: some key heads of a piece; the more pieces, the more heads per unit.
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
  static constexpr int64_t kTakes = 4;  // approximate number of units per thread, so that all finish at about the same time

  const std::vector<Piece>& pieces_;
  const int64_t heads_;
  int64_t shares_;  // of a piece
};

}  // namespace orca
