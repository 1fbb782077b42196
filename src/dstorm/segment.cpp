// A segment is made of parts, each in a file of segment/: the state that they share, the rounds of
// its graph, its stash, scattering, gathering, and regrouping. This file hands each call to its
// part.
#include "dstorm/segment.hpp"

#include <algorithm>
#include <cstring>

#include "dstorm/segment/parts.hpp"

namespace dstorm {

std::uint64_t memory_of(const SegmentOptions& options, int ranks, const std::vector<int>& locals) {
  View all;
  for (int r = 0; r < ranks; ++r) all.members.push_back(r);
  std::vector<int> senders = senders_to(locals, options.graph, all, ranks);
  std::erase_if(senders, [&](int r) { return std::ranges::binary_search(locals, r); });
  host::SegmentShape shape{MailboxShape(ranks, options.depth, options.slot_bytes), options.policy,
                           options.home_bytes, options.result_bytes};
  if (static_cast<int>(locals.size()) < ranks) {
    shape.copies = locals.size();
    shape.locals = locals;
  }
  return host::SegmentMemory::needed(shape, locals.size(), senders.size());
}

Segment::Segment(std::shared_ptr<Group> group, SegmentOptions options) {
  const std::shared_ptr<Turns> turns = group->turns();
  const Turn turn(*turns, "making", options.name);
  parts_ = std::make_unique<SegmentParts>(std::move(group), std::move(options));
  parts_->regrouping.open();
}

Segment::~Segment() = default;

void Segment::regroup(std::shared_ptr<Group> group) {
  const Turn turn(turns(), "regroup", options().name);
  parts_->regrouping.move_to(group);
  parts_->scattering.forget_last_sent();
}

std::span<const int> Segment::scatter_filled(const Fill& fill, const Graph* graph, bool may_lag) {
  return parts_->scattering.scatter(fill, graph, may_lag);
}

std::span<const int> Segment::scatter(std::span<const std::byte> payload, const Graph* graph) {
  if (payload.size() > options().slot_bytes) {
    throw ConfigError(parts_->state.name() + ": an update of " + std::to_string(payload.size()) +
                      " bytes does not fit a slot of " + std::to_string(options().slot_bytes));
  }
  return scatter(
      [&](std::span<std::byte> room) {
        if (!payload.empty()) std::memcpy(room.data(), payload.data(), payload.size());
        return std::pair(payload.size(), Tag{payload.size(), 0});
      },
      graph);
}

std::size_t Segment::gather_folded(const GatherOptions& options, const Fold& fold) {
  return parts_->gathering.gather(options, fold);
}

std::optional<std::span<const int>> Segment::begin_scatter_filled(const Fill& fill,
                                                                  const Graph* graph) {
  return parts_->scattering.begin_later(fill, graph);
}

void Segment::finish_scatter() noexcept { parts_->scattering.finish(); }

std::size_t Segment::begin_gather_folded(const GatherOptions& options, const Fold& fold) {
  return parts_->gathering.begin_later(options, fold);
}

void Segment::finish_gather() noexcept { parts_->gathering.finish(); }

bool Segment::is_scatter_begun() const noexcept { return parts_->scattering.is_begun(); }

bool Segment::is_gather_begun() const noexcept { return parts_->gathering.is_begun(); }

void Segment::reject(std::size_t update) { parts_->gathering.reject(update); }

bool Segment::await_update(std::size_t live, std::chrono::nanoseconds timeout) {
  return parts_->gathering.await_update(live, timeout);
}

bool Segment::wait_until(const std::function<bool()>& ready, std::chrono::nanoseconds timeout) {
  return parts_->state.wait(ready, timeout);
}

std::uint64_t Segment::iteration() const noexcept { return parts_->state.iteration; }

std::uint64_t Segment::clock_of(int rank) { return parts_->state.clock_of(rank); }

std::uint64_t Segment::frontier() {
  const Turn turn(turns(), "frontier", options().name);
  return parts_->frontier.reached();
}

void Segment::wait_for(std::uint64_t iteration, std::optional<std::chrono::nanoseconds> timeout) {
  const Turn turn(turns(), "wait_for", options().name);
  parts_->frontier.wait_for(iteration, timeout.value_or(group().timeout()));
}

std::vector<int> Segment::left_behind() {
  std::vector<int> ranks;
  for (int r : peers()) {
    if (group().has_left(r) && clock_of(r) < iteration()) ranks.push_back(r);
  }
  return ranks;
}

bool Segment::is_used() const noexcept { return parts_->state.is_used; }

const Segment::Round& Segment::round() const noexcept { return parts_->state.rounds.current(); }

Segment::Round Segment::round(std::uint64_t number) const {
  return parts_->state.rounds.make(number);
}

const std::vector<int>& Segment::peers() const noexcept { return parts_->state.peers(); }

const std::vector<int>& Segment::members() const noexcept { return parts_->state.rounds.members(); }

bool Segment::is_repaired() const noexcept { return parts_->state.rounds.is_repaired(); }

Stats Segment::stats() const { return parts_->state.stats(); }

const SegmentOptions& Segment::options() const noexcept { return parts_->state.options(); }

Group& Segment::group() const noexcept { return parts_->state.group(); }

Turns& Segment::turns() const noexcept { return parts_->state.turns(); }

void Segment::close() {
  const Turn turn(turns(), "close", options().name);
  shut();
}

void Segment::shut() noexcept { parts_->state.shut(); }

void Segment::drop() noexcept { parts_->state.drop(); }

bool Segment::is_closed() const noexcept { return parts_->state.is_closed(); }

}  // namespace dstorm
