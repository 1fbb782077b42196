#include "dstorm/collective/shared_fold.hpp"

#include <algorithm>

namespace dstorm {

// Others may have aborted later rounds without this rank before this rank's round is aborted. They
// cannot have committed any, because that takes every live rank. So "aborted at my round or a
// little beyond" counts as aborted. A commit, in which every live rank has taken part, puts the
// last aborted round just behind its own: one of long ago would be a little beyond once numbers
// wrap.
SharedFold::End SharedFold::ended(std::uint64_t word) const {
  constexpr std::uint32_t kLittle = 1024;
  const auto mine = static_cast<std::uint32_t>(round_);
  if (static_cast<std::uint32_t>(word >> 32) == mine) return End::kCommitted;
  if (static_cast<std::uint32_t>(word) - mine < kLittle) return End::kAborted;
  return End::kOpen;
}

// R3. Returns whether the round is committed, by any rank.
bool SharedFold::end_as(End wish, bool is_interrupted) {
  const auto mine = static_cast<std::uint32_t>(round_);
  std::uint64_t word = outcome().word.load(std::memory_order_acquire);
  while (ended(word) == End::kOpen) {
    if (wish == End::kAborted) {
      const std::uint64_t said = round_ << 1 | (is_interrupted ? 1 : 0);
      line(state_.group().rank()).gave_up.store(said, std::memory_order_relaxed);
    }
    const std::uint64_t next =
        wish == End::kCommitted ? std::uint64_t{mine} << 32 | static_cast<std::uint32_t>(mine - 1)
                                : (word >> 32 << 32) | mine;
    if (outcome().word.compare_exchange_weak(word, next, std::memory_order_acq_rel)) word = next;
  }
  if (wish == End::kAborted) announce();
  return ended(word) == End::kCommitted;
}

// An interrupted wait ends the round for all ranks, so the others need not wait for their limits.
template <class Ready, class Missing>
bool SharedFold::wait(Ready&& ready, std::chrono::nanoseconds limit, const Missing& missing) {
  const auto lacks = [this] {
    return "allreduce of " + state_.name() + ": " + describe_ranks(late()) + " did not come";
  };
  try {
    return state_.wait(ready, limit, lacks, missing);
  } catch (const Superseded&) {
    if (end_as(End::kAborted)) return true;  // another rank has seen all parts done
    throw;
  } catch (...) {
    end_as(End::kAborted, true);
    throw;
  }
}

void SharedFold::announce() { state_.channel().wake(state_.peers()); }

// When all ranks have met in an exchange, all of their earlier rounds have ended, but for that of a
// rank that had given the exchange up; its round fails now. So the first rank that comes here after
// an exchange finds the highest of their numbers, and so do others that come at the same time; the
// ranks after them take the number that it has noted. `ready` is read first: if it is of a round
// since the exchange, `since` shows that. If a rank knows of a later exchange, this one is late,
// and its rounds are over.
std::uint64_t SharedFold::after(std::uint64_t last) {
  Line& own = line(state_.group().rank());
  const std::uint64_t met = state_.group().met();
  if (own.since.load(std::memory_order_relaxed) == met) return last + 1;
  std::uint64_t base = last;
  for (const int r : state_.peers()) {
    const std::uint64_t ready = line(r).ready.load(std::memory_order_acquire);
    const std::uint64_t since = line(r).since.load(std::memory_order_acquire);
    if (since > met) return last + 1;
    if (since == met) {
      base = std::max(last, line(r).base.load(std::memory_order_relaxed));
      break;
    }
    base = std::max(base, ready);
  }
  own.base.store(base, std::memory_order_relaxed);
  own.since.store(met, std::memory_order_release);
  return base + 1;
}

bool SharedFold::meet(std::uint64_t round, std::uint64_t operation, std::uint64_t input,
                      std::chrono::nanoseconds limit) {
  const int rank = state_.group().rank();
  const int size = state_.group().size();
  disagreed_ = false;
  round_ = round;
  Line& own = line(rank);
  own.operation[round_ % 2].store(operation, std::memory_order_relaxed);
  own.input.store(input, std::memory_order_relaxed);
  own.ready.store(round_, std::memory_order_release);
  announce();

  int next = 0;  // ranks before it are ready, or not live
  const auto all_here = [&] {
    while (next < size &&
           (line(next).ready.load(std::memory_order_acquire) >= round_ || !state_.is_live(next))) {
      ++next;
    }
    return next == size || state_.group().has_left_out() ||
           ended(outcome().word.load(std::memory_order_acquire)) == End::kAborted;
  };
  members_.clear();
  const auto missing = [&] { return next < size ? next : -1; };
  const bool met =
      wait(all_here, limit, missing) && next == size && !state_.group().has_left_out();  // R5
  // A rank that died after it was ready takes part with its input and leaves its part undone, which
  // every rank will see. A rank that died before is not a member for any rank.
  bool has_moved_on = false;  // a live rank gave this round up and is in a later one
  for (int r = 0; r < size; ++r) {
    const std::uint64_t ready = line(r).ready.load(std::memory_order_acquire);
    has_moved_on = has_moved_on || (ready > round_ && state_.is_live(r));
    // Its first round since an exchange has the number base + 1: it was in none before that.
    const bool is_first = ready == line(r).base.load(std::memory_order_relaxed) + 1;
    if (ready != round_ && (ready != round_ + 1 || is_first)) continue;
    const std::uint64_t theirs = line(r).operation[round_ % 2].load(std::memory_order_relaxed);
    disagreed_ = disagreed_ || theirs != operation;
    if (!met || ready != round_) continue;
    if (r == rank) own_part_ = members_.size();
    members_.push_back(r);
  }
  if (met && !disagreed_ && !has_moved_on) return true;
  members_.clear();
  end_as(End::kAborted);
  return false;
}

bool SharedFold::finish(std::chrono::nanoseconds limit) {
  line(state_.group().rank()).done.store(round_, std::memory_order_release);
  announce();
  std::size_t next = 0;  // members before it are done
  bool lost = false;     // a member died with its part undone
  const auto all_done = [&] {
    for (; next < members_.size(); ++next) {
      const int r = members_[next];
      const bool live = state_.is_live(r);  // loaded first: what the dead did is settled
      if (line(r).done.load(std::memory_order_acquire) == round_) continue;
      lost = !live;
      break;
    }
    return next == members_.size() || lost ||
           ended(outcome().word.load(std::memory_order_acquire)) != End::kOpen;
  };
  wait(all_done, limit, [&] { return next < members_.size() ? members_[next] : -1; });
  return end_as(next == members_.size() ? End::kCommitted : End::kAborted);
}

bool SharedFold::is_committed() const {
  return ended(outcome().word.load(std::memory_order_acquire)) == End::kCommitted;
}

std::vector<int> SharedFold::dead() const {
  std::vector<int> ranks;
  for (int r = 0; r < state_.group().size(); ++r) {
    // This counts every rank that was ready, whether it met or not: another rank may have seen the
    // death and ended the round before this one had met.
    const bool was_here = line(r).ready.load(std::memory_order_acquire) == round_;
    const bool undone = line(r).done.load(std::memory_order_acquire) != round_;
    if (was_here && undone && !state_.is_live(r)) ranks.push_back(r);
  }
  return ranks;
}

// If no rank has aborted the round, it was over when others were in a later one.
std::vector<int> SharedFold::gave_up() const {
  std::vector<int> ranks, beyond;
  for (const int r : state_.peers()) {
    if (line(r).gave_up.load(std::memory_order_relaxed) >> 1 >= round_) ranks.push_back(r);
    const bool is_beyond = line(r).ready.load(std::memory_order_acquire) > round_;
    if (is_beyond && state_.is_live(r)) beyond.push_back(r);
  }
  return ranks.empty() ? beyond : ranks;
}

std::vector<int> SharedFold::interrupted() const {
  std::vector<int> ranks;
  for (const int r : state_.peers()) {
    const std::uint64_t said = line(r).gave_up.load(std::memory_order_relaxed);
    if (said >> 1 >= round_ && said % 2 == 1) ranks.push_back(r);
  }
  return ranks;
}

std::vector<int> SharedFold::late() const {
  std::vector<int> ranks;
  for (int r = 0; r < state_.group().size(); ++r) {
    const Line& theirs = line(r);
    const bool member = std::binary_search(members_.begin(), members_.end(), r);
    const std::uint64_t reached =
        (member ? theirs.done : theirs.ready).load(std::memory_order_acquire);
    if (state_.is_live(r) && reached < round_) ranks.push_back(r);
  }
  return ranks;
}

}  // namespace dstorm
