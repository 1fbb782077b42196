#include "dstorm/segment/scattering.hpp"

namespace dstorm {

using std::chrono::nanoseconds;

std::span<const int> Scattering::scatter(const Segment::Fill& fill, const Graph* graph,
                                         bool may_lag) {
  const Turn turn(state_.turns(), "scatter", state_.options().name);
  if (state_.recorder() != nullptr) began_ = Recorder::now();
  std::byte* const room = begin(graph);
  if (room == nullptr) return skip();
  fill_with(fill, room);
  last_sent_ = state_.writer().payload(slot_);
  state_.writer().show(slot_);
  slot_ = -1;
  state_.channel().deliver(to_, bytes_, may_lag);
  record(bytes_, to_);
  return to_;
}

std::optional<std::span<const int>> Scattering::begin_later(const Segment::Fill& fill,
                                                            const Graph* graph) {
  const Turn turn(state_.turns(), "scatter", state_.options().name);
  if (state_.recorder() != nullptr) began_ = Recorder::now();
  last_sent_ = nullptr;
  std::byte* const room = begin(graph);
  if (room == nullptr) {
    skip();
    return std::nullopt;
  }
  fill_with(fill, room);
  begun_ = std::exchange(slot_, -1);
  is_begun_.store(true, std::memory_order_release);
  record(bytes_, to_);
  return to_;
}

void Scattering::finish() noexcept {
  state_.writer().show(begun_);
  state_.channel().tell(to_);
  is_begun_.store(false, std::memory_order_release);
  state_.channel().wake_self();
}

// Claims a slot. Returns null if, under LATEST, every slot is being read at this moment.
std::byte* Scattering::begin(const Graph* graph) {
  state_.begin_call(true);
  if (state_.rounds.is_of_old_epoch()) state_.rounds.follow_epoch(state_.iteration);
  const Rounds::Round& round = state_.rounds.round_of(graph, state_.iteration);
  to_.clear();
  for (int r : round.out) {
    if (state_.is_live(r)) to_.push_back(r);
  }
  const auto live = [this](int r) { return state_.is_live(r); };
  slot_ = state_.writer().claim(state_.options().policy, live);
  if (slot_ < 0 && state_.is_queue()) slot_ = wait_for_slot(state_.group().timeout());
  if (slot_ < 0 && state_.channel().make_room()) {
    slot_ = state_.writer().claim(state_.options().policy, live);
  }
  state_.rounds.set_current(round);
  return slot_ < 0 ? nullptr : state_.writer().payload(slot_);
}

int Scattering::wait_for_slot(nanoseconds timeout) {
  SlotWriter& writer = state_.writer();
  const auto live = [this](int r) { return state_.is_live(r); };
  const bool crosses_hosts = !state_.group().is_one_host();
  int slot = -1;
  const auto has_slot = [&] {
    strays_.take_in(false);
    if (crosses_hosts) strays_.relieve_senders();
    return (slot = writer.claim(state_.options().policy, live)) >= 0;
  };
  const auto lacks = [&](const std::vector<int>& ranks) {
    return "scatter of " + state_.name() + ": all " + std::to_string(state_.options().depth) +
           " slots hold updates that " + describe_ranks(ranks) + " did not gather";
  };
  const auto missing = [&] { return writer.blocker(live); };
  if (!state_.wait(has_slot, timeout, [&] { return lacks(writer.blockers(live)); }, missing)) {
    const std::vector<int> ranks = writer.blockers(live);
    if (ranks.empty() && has_slot()) return slot;
    throw TimeoutError(lacks(ranks) + " within " + format_seconds(timeout) +
                           "; gather as often as you scatter, or raise depth",
                       ranks);
  }
  return slot;
}

// Fills the claimed slot and announces the update. If it throws, everything is as before.
void Scattering::fill_with(const Segment::Fill& fill, std::byte* room) {
  try {
    const auto [bytes, tag] = [&] {
      const Turns::Inside inside(state_.turns(), Turns::Code::kFold);
      return fill(std::span(room, state_.options().slot_bytes));
    }();
    if (bytes > state_.options().slot_bytes) {
      throw ConfigError(state_.name() + ": an update of " + std::to_string(bytes) +
                        " bytes does not fit a slot of " +
                        std::to_string(state_.options().slot_bytes));
    }
    state_.group().check_standing();  // this rank may have been stopped, and evicted meanwhile
    SlotHeader header{};
    header.iteration = state_.iteration + 1;
    header.payload_bytes = bytes;
    header.count = tag.count;
    header.format = tag.format;
    state_.writer().announce(slot_, header, to_);
    bytes_ = bytes;
  } catch (...) {
    cancel();
    throw;
  }
  ++state_.iteration;
  state_.is_in_round = true;
  state_.bytes_out += bytes_ * to_.size();
}

std::span<const int> Scattering::skip() {
  last_sent_ = nullptr;
  state_.is_in_round = true;
  state_.writer().skip(++state_.iteration, to_);
  state_.channel().deliver(to_, 0);  // they may wait for the clock
  record(0, {});
  return {};
}

void Scattering::record(std::size_t bytes, std::span<const int> to) const noexcept {
  if (state_.recorder() == nullptr) return;
  state_.recorder()->scattered(began_, state_.iteration, bytes * to.size(), to);
}

void Scattering::cancel() noexcept {
  if (state_.group().is_forked()) return;  // the rank itself still writes
  if (slot_ >= 0) state_.writer().abandon(slot_);
  slot_ = -1;
}

std::byte* Scattering::claim_room(nanoseconds timeout) {
  state_.begin_call(false);
  last_sent_ = nullptr;
  slot_ = wait_for_slot(timeout);
  return state_.writer().payload(slot_);
}

}  // namespace dstorm
