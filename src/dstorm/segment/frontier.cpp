#include "dstorm/segment/frontier.hpp"

#include <algorithm>
#include <string>

#include "dstorm/errors.hpp"

namespace dstorm {

using std::chrono::nanoseconds;

bool Frontier::lacks(int rank, std::uint64_t iteration) {
  return state_.reader(rank).clock() < iteration && state_.is_live(rank);
}

// The ranks whose update of `iteration` has yet to arrive.
std::vector<int> Frontier::lacking(std::uint64_t iteration) {
  std::vector<int> ranks = state_.rounds.make(iteration - 1).in;
  std::erase_if(ranks, [&](int r) { return !lacks(r, iteration); });
  return ranks;
}

bool Frontier::has_live_peers() const {
  return std::ranges::any_of(state_.peers(), [&](int r) { return state_.is_live(r); });
}

std::uint64_t Frontier::reached() {
  state_.take_in();
  // Beyond this nobody has come, and an iteration without live in-neighbours says nothing.
  std::uint64_t furthest = state_.iteration;
  for (int r : state_.peers()) {
    if (state_.is_live(r)) furthest = std::max(furthest, state_.reader(r).clock());
  }
  if (is_static()) {
    std::uint64_t least = furthest;
    bool is_any = false;
    for (int r : state_.rounds.make(0).in) {
      if (!state_.is_live(r)) continue;
      least = std::min(least, state_.reader(r).clock());
      is_any = true;
    }
    reached_ = std::max(reached_, is_any ? least : state_.iteration);
  } else {
    while (reached_ < furthest && lacking(reached_ + 1).empty()) ++reached_;
  }
  return reached_;
}

void Frontier::wait_for(std::uint64_t iteration, nanoseconds timeout) {
  state_.begin_call(false);
  const Deadline deadline(timeout);
  for (std::uint64_t next = is_static() ? iteration : reached() + 1;
       next <= iteration && reached() < iteration && has_live_peers(); ++next) {
    const std::vector<int> awaited = lacking(next);
    const auto missing = [&] {
      std::vector<int> ranks = awaited;
      std::erase_if(ranks, [&](int r) { return !lacks(r, next); });
      return ranks;
    };
    const auto text = [&] {
      return "wait_for of " + state_.name() + ": " + describe_ranks(missing()) +
             " did not scatter iteration " + std::to_string(next);
    };
    if (state_.wait([&] { return missing().empty(); }, deadline.left(), text)) {
      continue;
    }
    throw TimeoutError(text() + " within " + format_seconds(timeout), missing());
  }
}

}  // namespace dstorm
