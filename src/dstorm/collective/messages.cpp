#include "dstorm/collective/messages.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "dstorm/errors.hpp"
#include "dstorm/host/turn.hpp"
#include "dstorm/segment/parts.hpp"

namespace dstorm {

Messages::Messages(std::shared_ptr<Group> group, std::string name, std::size_t slot_bytes,
                   int depth, bool rejoins)
    : segment_(std::move(group), SegmentOptions{.name = std::move(name),
                                                .slot_bytes = slot_bytes,
                                                .depth = depth,
                                                .policy = Policy::kQueue,
                                                .kind = "messages",
                                                .rejoins = rejoins}) {}

bool Messages::has_room() const {
  const SegmentState& state = segment_.parts().state;
  return state.writer().has_free([&](int rank) { return state.is_live(rank); });
}

bool Messages::try_send(std::span<const std::byte> message) {
  const Turn turn(segment_.turns(), "send", segment_.options().name);
  if (!segment_.is_closed() && !has_room()) return false;
  segment_.scatter(message);
  return true;
}

void Messages::receive(const Take& take) {
  // With a staleness, a gather is not the beginning of a round: it never throws Superseded.
  const GatherOptions any_age{std::numeric_limits<std::uint64_t>::max(), std::nullopt};
  segment_.gather(any_age, [&](std::span<const Update> updates) {
    const std::vector<std::uint64_t>& resumed = segment_.parts().state.resumed;
    for (const Update& update : updates) {
      take(update.rank, update.payload,
           update.iteration <= resumed[static_cast<std::size_t>(update.rank)]);
    }
  });
}

bool Messages::has_message() {
  SegmentState& state = segment_.parts().state;
  return std::ranges::any_of(state.peers(), [&](int rank) {
    if (state.group().is_left_out(rank)) return false;
    if (state.stash.count(rank) > 0) return true;
    SlotReader& reader = state.reader(rank);
    return reader.oldest(reader.consumed(), reader.clock()) >= 0;
  });
}

bool Messages::await(bool for_room, std::span<const int> live, const std::string& what,
                     std::chrono::nanoseconds limit) {
  const Turn turn(segment_.turns(), "wait", segment_.options().name);
  SegmentState& state = segment_.parts().state;
  state.begin_call(false);
  const auto is_news = [&] {
    return (for_room && has_room()) || has_message() || !std::ranges::equal(this->live(), live);
  };
  return state.wait(is_news, limit, [&] { return what; });
}

std::vector<int> Messages::blockers() const {
  const SegmentState& state = segment_.parts().state;
  return state.writer().blockers([&](int rank) { return state.is_live(rank); });
}

std::vector<int> Messages::live() const {
  const SegmentState& state = segment_.parts().state;
  std::vector<int> ranks = state.group().alive();
  std::erase_if(ranks,
                [&](int rank) { return rank != state.group().rank() && !state.is_live(rank); });
  return ranks;
}

}  // namespace dstorm
