#include "dstorm/remote/tcp/change_receiver.hpp"

#include <sched.h>

#include <utility>

namespace dstorm::tcp {
namespace {

using remote::BrokenRule;
using remote::get;
using remote::require;
using remote::Ticketed;

// Looks at a mailbox whose slots are all being read, before an update is passed over.
constexpr int kLooksForSlot = 64;

}  // namespace

// Reads what comes before the payload.
ChangeReceiver::Arriving ChangeReceiver::read_update(const remote::FrameHead& head,
                                                     std::span<const std::byte> body) const {
  Arriving arriving;
  arriving.header = get<SlotHeader>(body);
  const std::span<const std::byte> tickets = body.subspan(sizeof(SlotHeader));
  require(tickets.size() % sizeof(Ticketed) == 0 &&
              head.bytes == body.size() + arriving.header.payload_bytes,
          "an update of another length");
  require(arriving.header.iteration <= kMostIteration, "an invalid iteration");
  require(arriving.header.sender == static_cast<std::uint32_t>(origin_.sender),
          "another sender's name");
  const host::Control& control = origin_.control;
  for (std::size_t at = 0; at < tickets.size(); at += sizeof(Ticketed)) {
    const auto given = get<Ticketed>(tickets, at);
    const auto rank = static_cast<int>(given.receiver);
    require(given.receiver < static_cast<std::uint32_t>(control.size()) && control.is_here(rank),
            "a receiver that is not here");
    require(arriving.to.empty() || arriving.to.back().rank < rank, "its receivers out of order");
    arriving.to.push_back({rank, given.ordinal});
  }
  return arriving;
}

std::optional<ChangeReceiver::Payload> ChangeReceiver::begin_update(const remote::FrameHead& head,
                                                                    std::span<const std::byte> body,
                                                                    const Attached& attachment) {
  is_making_room_ = false;  // the segment may be gone since the last call
  Arriving arriving = read_update(head, body);
  Payload payload{nullptr, static_cast<std::size_t>(arriving.header.payload_bytes)};
  if (attachment) {
    const host::SegmentMemory& memory = *attachment->memory;
    require(arriving.header.payload_bytes <= memory.shape().mailbox.slot_bytes(),
            "a payload that fits no slot");
    Copy* const copy = copy_of(attachment);
    if (copy == nullptr) return std::nullopt;
    is_making_room_ = !make_room(*copy);
    if (is_making_room_) return std::nullopt;
    if (arriving.header.iteration > copy->box.clock().load(std::memory_order_relaxed)) {
      arriving.attachment = attachment;
      // Without memory the update is passed over, and the ranks here have been told.
      if (copy->writer) arriving.slot = copy->writer->begun(arriving.header.iteration);
      arriving.is_begun = arriving.slot >= 0;
      const bool is_due = copy->writer && !arriving.is_begun && !is_for_left(arriving.to);
      if (is_due) arriving.slot = claim(*copy->writer, memory);
      // QUEUE: the sender has evicted a rank that holds a slot, and the ranks of this host are
      // about to read that in its record. LATEST: the update has been overwritten before it could
      // be folded, as when a sender on this host finds no slot; its receivers see that by the
      // ordinals.
      if (is_due && arriving.slot < 0 && memory.shape().policy == Policy::kQueue) {
        return std::nullopt;
      }
      if (arriving.slot >= 0 && !arriving.is_begun) {
        payload.to = copy->writer->payload(arriving.slot);
      }
    }
  }
  arriving_ = std::move(arriving);
  return payload;
}

// Whether an update is for this rank alone, which has left.
bool ChangeReceiver::is_for_left(std::span<const Addressee> to) const {
  const int own = origin_.control.rank();
  return to.size() == 1 && to[0].rank == own && !origin_.control.is_live(own);
}

int ChangeReceiver::claim(SlotWriter& writer, const host::SegmentMemory& memory) const {
  const Policy policy = memory.shape().policy;
  const int looks = policy == Policy::kLatest ? kLooksForSlot : 0;
  // A thread of this rank may be reading while another one leaves.
  const auto live = [&](int r) {
    return (origin_.control.is_live(r) || r == origin_.control.rank()) && !memory.has_gone(r);
  };
  int slot = writer.claim(policy, live);
  for (int look = 0; slot < 0 && look < looks; ++look) {
    sched_yield();
    slot = writer.claim(policy, live);
  }
  return slot;
}

void ChangeReceiver::finish_update() {
  if (arriving_->attachment) {
    Copy& copy = copies_.at(arriving_->attachment->id);
    if (arriving_->is_begun) {
      copy.writer->complete(arriving_->slot, arriving_->to);
    } else if (arriving_->slot >= 0) {
      copy.writer->publish_copy(arriving_->slot, arriving_->header, arriving_->to);
    } else {
      SlotWriter::advance(copy.box, arriving_->header.iteration);
    }
    origin_.control.ring(origin_.control.locals());
  }
  arriving_.reset();
}

bool ChangeReceiver::take_clock(std::uint64_t clock, const Attached& attachment) {
  if (!attachment) return true;  // every rank of this host has closed it
  require(clock <= kMostIteration, "an invalid iteration");
  Copy* const copy = copy_of(attachment);
  if (copy == nullptr) return false;
  if (clock > copy->box.clock().load(std::memory_order_relaxed)) {
    SlotWriter::advance(copy->box, clock);
  }
  origin_.control.ring(origin_.control.locals());
  return true;
}

void ChangeReceiver::take_endpoint(std::span<const std::byte>) {
  throw BrokenRule("it sent a frame with an adapter's address where none is due");
}

ChangeReceiver::Copy* ChangeReceiver::copy_of(
    const std::shared_ptr<const remote::Attachment>& attachment) {
  const auto found = copies_.find(attachment->id);
  if (found != copies_.end()) return &found->second;
  const host::SegmentMemory& memory = *attachment->memory;
  const int sender = origin_.sender;
  const Copies copies = memory.copies(sender);
  const auto taken = origin_.take_copy(
      copies.table(), [&](std::size_t copy) { memory.reserve_copy(sender, copy); });
  if (!taken) return nullptr;
  const Mailbox box = copies.box(taken->copy);
  return &copies_.emplace(attachment->id, Copy{attachment, *taken, box}).first->second;
}

// Sees to the memory for the sender's updates. Returns false if it has to be called again: then the
// time for now is over. If there is no memory, the ranks here are told, before the sender's clock
// goes on (SegmentState::check_room), and the copy gets no writer.
bool ChangeReceiver::make_room(Copy& copy) {
  const host::SegmentMemory& memory = *copy.attachment->memory;
  const int sender = origin_.sender;
  if (copy.writer || memory.lacks_room_for() == sender) return true;
  try {
    // A copy other than the first has its own memory.
    if (copy.taken.copy == 0 && !memory.make_room_for(sender)) return false;
    copy.writer.emplace(SlotWriter::of_copy(copy.box, sender));
  } catch (const ConfigError&) {
    memory.note_lack(sender);
    origin_.control.ring(origin_.control.locals());
  }
  return true;
}

bool ChangeReceiver::keep_only(const remote::Attachments& attachments) {
  std::erase_if(copies_, [&](const auto& item) {
    return !attachments.contains(item.first) &&
           !(arriving_ && arriving_->attachment == item.second.attachment);
  });
  return !arriving_;  // else one may have stayed
}

void ChangeReceiver::end() noexcept {
  arriving_.reset();
  for (const auto& [id, copy] : copies_) {
    copy.attachment->memory->copies(origin_.sender).table().release(copy.taken);
  }
  copies_.clear();
}

}  // namespace dstorm::tcp
