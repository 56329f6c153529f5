#include "attention_pieces.h"

#include "cache_tile.h"

namespace orca {
namespace {

constexpr int64_t kFewestRows = 64;  // query vectors of one piece of work, if more per piece would give too few pieces
constexpr int64_t kMostRows = 256;
constexpr int64_t kPieces = 4;   // of work for each thread, at least, if there are that many
constexpr int64_t kSplit = 512;  // fewest token slots of one part of a context

// The part of tokens `first` ... `last - 1` of a span from the first to the last whose output is wanted.
Range wanted(const OrcaAttention& call, int64_t span, int64_t first, int64_t last) {
  if (call.rows == nullptr) return {first, last};
  const int64_t offset = call.offsets[span], *end = call.rows + call.num_rows;
  const int64_t* begin = std::lower_bound(call.rows, end, offset + first);
  end = std::lower_bound(begin, end, offset + last);
  return begin == end ? Range{first, first} : Range{*begin - offset, end[-1] + 1 - offset};
}

// Visit one piece for each `tokens` tokens of a span, as far as their output is wanted.
template <class Visit>
void visit_pieces(const OrcaAttention& call, int64_t tokens, Visit visit) {
  for (int64_t span = 0; span < call.num_spans; ++span) {
    const int64_t length = call.offsets[span + 1] - call.offsets[span];
    for (int64_t first = 0; first < length; first += tokens) {
      const Range range = wanted(call, span, first, std::min(first + tokens, length));
      if (range.begin < range.end) visit(span, range);
    }
  }
}

void add_parts(const OrcaAttention& call, int64_t span, Range tokens, int64_t parts_wanted, AttentionWork& work) {
  const int64_t group = call.num_heads / call.num_kv_heads, start = context_start(call, span);
  const int64_t begin = first_visible(call, start + tokens.begin), end = start + tokens.end;
  const int64_t parts = std::max<int64_t>(1, std::min(parts_wanted, (end - begin) / kSplit));
  const int64_t share = round_up((end - begin + parts - 1) / parts, kTile);
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t from = std::min(begin + part * share, end), to = std::min(from + share, end);
    work.pieces.push_back({span, tokens.begin, tokens.end, from, to, part, parts, work.vectors});
    if (parts > 1) work.vectors += round_up((tokens.end - tokens.begin) * group, kLanes);
  }
}

int64_t count_pieces(const OrcaAttention& call, int64_t tokens) {
  int64_t pieces = 0;
  visit_pieces(call, tokens, [&](int64_t, Range) { pieces += call.num_kv_heads; });
  return pieces;
}

}  // namespace

void divide(const OrcaAttention& call, int threads, AttentionWork& work) {
  work.pieces.clear();
  work.vectors = 0;
  const int64_t group = call.num_heads / call.num_kv_heads, enough = threads > 1 ? kPieces * threads : 1;
  const int64_t fewest = std::max<int64_t>(1, kFewestRows / group);
  int64_t tokens = std::max<int64_t>(1, kMostRows / group);
  while (tokens > fewest && count_pieces(call, tokens) < enough) tokens = std::max(fewest, tokens / 2);
  const int64_t pieces = count_pieces(call, tokens);
  if (pieces == 0) return;
  const int64_t parts = (enough + pieces - 1) / pieces;
  visit_pieces(call, tokens, [&](int64_t span, Range range) { add_parts(call, span, range, parts, work); });
  std::stable_sort(work.pieces.begin(), work.pieces.end(),
                   [](const Piece& a, const Piece& b) { return a.end - a.begin > b.end - b.begin; });
}

}  // namespace orca
