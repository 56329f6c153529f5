// Stages of a computation, whose pieces the threads of a team share.

#pragma once

#include <algorithm>
#include <chrono>

#include "parallel.h"
#include "team.h"

namespace orca {

// How the pieces of a stage are divided among the threads.
struct Division {
  int64_t pieces;
  int64_t groups = 1;   // threads i, i + groups ... compute all pieces together, and each group computes them
  bool queued = false;  // pieces are taken in order by any thread, instead of by shares first
};

// One thread's way through a stage. Each thread takes the pieces of its own share, then those that are left of others, whose
// threads may have been descheduled. A stage ends when its pieces are complete, not when all threads have arrived: a thread
// that comes late finds over what it missed. A piece that its thread has offered and does not finish is computed again by
// another one. Only one of the two stores the results, see `claim`. All threads must pass the same stages.
class Stage {
 public:
  Stage(Team& team, int thread, const Division& division)
      : team_(team),
        thread_(thread),
        division_(division),
        pieces_(std::max<int64_t>(division.pieces, 1)),
        shares_(division.queued ? 1 : std::min<int64_t>(team.size() / division.groups, pieces_)),
        group_(thread % division.groups),
        number_(++team.member(thread).stage) {
    turn_to(thread / division.groups % shares_);
    // Arguments that were read from memory which a later stage overwrites must not pass for this stage's.
    std::atomic_thread_fence(std::memory_order_acquire);
  }

  // The share of each thread is one piece, whose number is that of the thread.
  static Stage of_threads(Team& team, int thread) { return {team, thread, {team.size()}}; }

  // Pieces that are taken in order by any thread.
  static Stage queue(Team& team, int thread, int64_t pieces) { return {team, thread, {pieces, 1, true}}; }

  // Begin the next piece and return true; or return false once the whole stage is complete.
  bool take() {
    end_piece();
    while (!team_.is_over(number_)) {
      if (!take_free() && !wait()) continue;
      if (piece_ < division_.pieces) return true;
      end_piece();
    }
    return false;
  }

  int64_t piece() const { return piece_; }

  // The piece that this thread takes next, unless another one does; -1: unknown.
  int64_t next() const {
    const int64_t piece = first_free(taken_->load(std::memory_order_relaxed));
    return piece < own_.end ? piece : -1;
  }

  // Let another thread compute the piece, too, if this one takes long. From here on the stage can end, and what it reads may
  // be overwritten, before this thread has computed the piece: its results, and all else it stores, need a `claim`.
  void offer() {
    if (team_.size() == 1 || is_taken_over_) return;  // a second thread finishes it
    if (num_done_ == 0) began_ = Clock::now();
    claimed_ = false;
    offers_ = true;
    team_.member(thread_).held.store(word(id()), std::memory_order_release);
  }

  // To be called when results are ready to be stored, at any time before the next `take`. Return whether they are to be
  // stored: not if another thread has taken the piece over. Once this thread has claimed a piece, the others wait for it.
  bool claim() {
    if (claimed_) return true;
    uint64_t held = word(id());
    has_piece_ = claimed_ = team_.member(thread_).held.compare_exchange_strong(held, 0, std::memory_order_acq_rel);
    return claimed_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  static constexpr int kPatience = 2;  // a thread that needs so many times as long as another for a piece has been descheduled

  uint64_t word(uint64_t low) const { return static_cast<uint64_t>(number_) << 32 | low; }
  uint64_t id() const { return static_cast<uint64_t>(piece_) + 1; }

  void turn_to(int64_t share) {
    share_ = share;
    own_ = orca::share(pieces_, share, shares_);
    taken_ = &team_.member(share * division_.groups + group_).taken;
  }

  // A word of an earlier stage says that no piece has been taken.
  int64_t first_free(uint64_t taken) const {
    return own_.begin + (taken >> 32 == number_ ? static_cast<uint32_t>(taken) : 0);
  }

  void end_piece() {
    if (has_piece_ && claim()) team_.member(thread_).done.store(word(++num_done_), std::memory_order_release);
    has_piece_ = claimed_ = false;
  }

  void hold(int64_t piece, bool is_taken_over) {
    piece_ = piece;
    is_taken_over_ = is_taken_over;
    has_piece_ = claimed_ = true;
  }

  bool take_free() {
    for (int64_t tried = 0; tried < shares_; ++tried) {
      uint64_t seen = taken_->load(std::memory_order_relaxed);
      while (seen >> 32 <= number_ && first_free(seen) < own_.end) {
        const int64_t piece = first_free(seen);
        if (!taken_->compare_exchange_weak(seen, word(piece + 1 - own_.begin), std::memory_order_relaxed)) continue;
        hold(piece, false);
        return true;
      }
      turn_to(share_ + 1 == shares_ ? 0 : share_ + 1);
    }
    return false;
  }

  // Wait for the stage's end, or take a piece over and return true.
  bool wait() {
    const int64_t all = pieces_ * division_.groups;
    if (team_.ends_soon(number_, all)) return false;
    if (offers_ && num_done_ > 0) {
      const Clock::time_point now = Clock::now();
      while (Clock::now() - now < kPatience * (now - began_) / num_done_) {
        if (team_.ends_soon(number_, all)) return false;
      }
      if (take_over()) return true;
    }
    team_.sleep_through(number_, all);
    return false;
  }

  // Take a piece over that another thread has offered and not claimed.
  bool take_over() {
    for (int64_t other = group_; other < team_.size(); other += division_.groups) {
      std::atomic<uint64_t>& held = team_.member(other).held;
      uint64_t seen = held.load(std::memory_order_relaxed);
      if (seen >> 32 != number_ || !held.compare_exchange_strong(seen, 0, std::memory_order_acq_rel)) continue;
      hold(static_cast<int64_t>(static_cast<uint32_t>(seen)) - 1, true);
      return true;
    }
    return false;
  }

  Team& team_;
  const int thread_;
  const Division division_;
  const int64_t pieces_;  // one that holds nothing if there are none: a stage must be ended
  const int64_t shares_, group_;
  const uint32_t number_;
  int64_t share_;                 // whose pieces this thread takes
  Range own_;                     // they, and
  std::atomic<uint64_t>* taken_;  // how many of them have been taken
  int64_t piece_ = 0;
  bool has_piece_ = false, claimed_ = false, is_taken_over_ = false, offers_ = false;
  uint32_t num_done_ = 0;
  Clock::time_point began_{};
};

}  // namespace orca
