#include "dstorm/segment/regrouping.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

namespace dstorm {

void Regrouping::open() {
  if (state_.options().rejoins) agree_on_iterations(state_.group());
  SegmentState::Mailboxes mailboxes = state_.open(state_.group());
  state_.resumed.resize(mailboxes.readers.size());
  mailboxes.writer->advance(state_.iteration);
  state_.use(state_.group().shared_from_this(), std::move(mailboxes));
}

void Regrouping::move_to(const std::shared_ptr<Group>& group) {
  state_.check_room();  // the updates that were passed over are lost
  const Rounds::Round last = state_.rounds.current();
  agree_on_iterations(*group);
  await_updates(*group);
  SegmentState::Mailboxes mailboxes = state_.open(*group);
  for (int r : state_.peers()) {
    if (comes_along(r)) {
      mailboxes.writer->go_on_from(r, state_.writer().addressed(r));
      mailboxes.readers[static_cast<std::size_t>(r)].go_on_from(state_.reader(r), last_ordinal(r));
    } else {
      state_.add_stats(r, false, state_.gone);  // updates sent to it will never be folded
    }
  }
  mailboxes.writer->advance(state_.iteration);
  state_.use(group, std::move(mailboxes));
  state_.rounds.restore(last);
}

// Every rank of the next group makes this call, so no rank does anything in the old group any more.
void Regrouping::agree_on_iterations(Group& group) {
  std::vector<std::byte> mine;
  if (state_.is_open()) {
    const std::uint64_t own[] = {state_.iteration, state_.iteration - (state_.is_in_round ? 1 : 0)};
    const auto bytes = std::as_bytes(std::span(own));
    mine.assign(bytes.begin(), bytes.end());
  }
  const auto posts = group.exchange(state_.name() + ", step 0", mine);
  std::uint64_t least = kMostIteration;
  along_.clear();
  state_.resumed.assign(posts.size(), 0);
  for (std::size_t r = 0; r < posts.size(); ++r) {
    std::uint64_t state[2];
    if (!posts[r] || posts[r]->size() != sizeof(state)) continue;
    std::memcpy(state, posts[r]->data(), sizeof(state));
    state_.resumed[r] = state[0];
    along_.push_back(static_cast<int>(r));
    least = std::min(least, state[1]);
  }
  if (along_.empty()) return;
  for (std::size_t r = 0; r < posts.size(); ++r) {
    if (!comes_along(static_cast<int>(r))) state_.resumed[r] = least;
  }
  state_.iteration = state_.resumed[static_cast<std::size_t>(group.rank())];
}

bool Regrouping::comes_along(int rank) const {
  return std::binary_search(along_.begin(), along_.end(), rank);
}

// The ordinal of the last update of `rank` that this rank has folded, rejected or stashed.
std::uint64_t Regrouping::last_ordinal(int rank) const {
  const Cursor& cursor = state_.mailbox(rank).cursor(state_.group().rank());
  return std::max(cursor.ordinal.load(std::memory_order_relaxed), state_.stash.last_ordinal(rank));
}

// Waits for the pending updates of the old group, and stashes them.
void Regrouping::await_updates(const Group& next) {
  const int own = state_.group().rank();
  std::erase_if(along_, [&](int r) { return r != own && !state_.is_live(r); });
  state_.stash.erase_senders([this](int r) { return !comes_along(r); });
  for (int r : along_) {
    if (r == own) continue;
    // Another host's updates may still be on their way (S6: the clock comes last).
    const auto all_here = [&] {
      return state_.clock_of(r) >= state_.resumed[static_cast<std::size_t>(r)] || !next.is_live(r);
    };
    if (!state_.group().await(all_here, next.timeout())) {
      throw TimeoutError(state_.name() + ": what " + describe_ranks({r}) +
                             " sent last did not come within " + format_seconds(next.timeout()),
                         {r});
    }
    strays_.stash(r, kMostIteration, std::numeric_limits<std::size_t>::max());
  }
}

}  // namespace dstorm
