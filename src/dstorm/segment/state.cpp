#include "dstorm/segment/state.hpp"

#include "dstorm/segment/agreement.hpp"

namespace dstorm {

SegmentState::SegmentState(std::shared_ptr<Group> group, SegmentOptions options)
    : group_(std::move(group)),
      turns_(group_->turns()),
      recorder_(group_->recorder()),
      options_(std::move(options)),
      name_(describe(options_)),
      shape_(group_->size(), options_.depth, options_.slot_bytes),
      rounds(options_.graph) {
  group_->check_standing();
  check_options(options_, group_->size());
  for (int r = 0; r < group_->size(); ++r) {
    if (r != group_->rank()) peers_.push_back(r);
  }
}

SegmentState::~SegmentState() {
  drop();
  if (!group_->is_forked()) return;
  [[maybe_unused]] const Channel* const kept = channel_.release();  // its adapter is the rank's
}

SegmentState::Mailboxes SegmentState::open(Group& group) const {
  check_agreement(options_, group);
  group.add_name(options_.name);
  Mailboxes made;
  try {
    made.channel = group.open_channel(
        name_, {shape_, options_.policy, options_.home_bytes, options_.result_bytes},
        options_.graph);
  } catch (...) {
    group.remove_name(options_.name);
    throw;
  }
  for (int r = 0; r < group.size(); ++r) made.readers.push_back(made.channel->reader(r));
  made.writer.emplace(made.channel->memory().box(group.rank()), group.rank());
  return made;
}

void SegmentState::use(std::shared_ptr<Group> group, Mailboxes mailboxes) {
  readers_ = std::move(mailboxes.readers);
  writer_ = std::move(mailboxes.writer);
  channel_ = std::move(mailboxes.channel);
  group_ = std::move(group);
  rounds.draw(*group_, iteration);
  channel_->deliver({}, 0);
}

std::uint64_t SegmentState::clock_of(int rank) {
  take_in();
  return reader(rank).clock();
}

SlotHeader SegmentState::header_of(int rank, int slot, std::uint64_t after, std::uint64_t limit) {
  const SlotHeader header = reader(rank).header(slot);  // copied, then checked
  if (header.payload_bytes > options_.slot_bytes ||
      header.sender != static_cast<std::uint32_t>(rank) || header.iteration <= after ||
      header.iteration > limit) {
    group_->check_standing();  // once this rank has been evicted, others write what it holds
    throw Error("rank " + std::to_string(rank) + " wrote an invalid slot header (payload of " +
                std::to_string(header.payload_bytes) + " bytes in a slot of " +
                std::to_string(options_.slot_bytes) + ", sender " + std::to_string(header.sender) +
                ", iteration " + std::to_string(header.iteration) + " where " +
                std::to_string(after + 1) + " to " + std::to_string(limit) +
                " are valid); its memory is damaged");
  }
  return header;
}

void SegmentState::begin_call(bool begins_round) {
  group_->check_standing();
  is_used = true;
  if (is_closed()) throw ConfigError(name_ + " has been closed");
  check_room();
  if (begins_round && group_->may_go_over_at(options_.name)) group_->check_open();
}

void SegmentState::check_room() const {
  const int sender = memory().lacks_room_for();
  if (sender < 0) return;
  throw ConfigError(name_ + ": this host has no memory for the updates of rank " +
                    std::to_string(sender) + ", which has sent it one for the first time (" +
                    std::to_string((shape_.bytes() >> 20) + 1) +
                    " MB); free some, and make it again");
}

void SegmentState::shut() noexcept { leave(false); }

void SegmentState::drop() noexcept { leave(!is_used); }

void SegmentState::leave(bool is_dropped) noexcept {
  const Turns::Look look(*turns_);
  if (channel_ == nullptr || group_->is_forked() || channel_->has_gone(group_->rank())) return;
  channel_->leave(is_dropped);
  group_->remove_name(options_.name);
}

Stats SegmentState::stats() const {
  const Turns::Look look(*turns_);
  Stats stats = gone;
  for (int r : peers_) add_stats(r, is_live(r), stats);
  stats.bytes_out = bytes_out;
  stats.bytes_in = bytes_in;
  stats.wait_seconds = std::chrono::duration<double>(waited_).count();
  stats.memory_bytes = memory().taken();
  return stats;
}

void SegmentState::add_stats(int rank, bool is_live, Stats& stats) const {
  const Cursor& cursor = mailbox(group_->rank()).cursor(rank);
  const std::uint64_t sent = writer_->addressed(rank);
  const std::uint64_t folded = cursor.folded.load(std::memory_order_acquire);
  const std::uint64_t rejected = cursor.rejected.load(std::memory_order_acquire);
  std::uint64_t overwritten = cursor.overwritten.load(std::memory_order_acquire);
  stats.sent += sent;
  stats.folded += folded;
  stats.rejected += rejected;
  if (is_live && is_queue()) {
    stats.pending += sent - folded - rejected;
  } else if (is_live) {
    // Beyond the receiver's last gather, what is not in a slot has been replaced. In this order,
    // a gather in between cannot make the difference negative.
    const std::uint64_t last = cursor.ordinal.load(std::memory_order_acquire);
    const std::uint64_t pending = writer_->pending(rank);
    overwritten += sent - last - pending;
    stats.pending += pending;
  } else {
    stats.to_dead += sent - folded - rejected - overwritten;
  }
  stats.overwritten += overwritten;
}

}  // namespace dstorm
