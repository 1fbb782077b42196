#include "dstorm/remote/transport/backlog.hpp"

#include <utility>

namespace dstorm::remote {
namespace {

// The age of a segment that is due.
constexpr auto kAge = [](const auto* carried) { return carried->due.front().number; };

}  // namespace

void Backlog::begin(const Attachments& attachments) {
  if (std::exchange(has_begun_, true)) return;
  for (const auto& [id, attachment] : attachments) {
    ++looks_;
    Carried& made = carried(attachment);
    note_change(made);
    due_.push_back(&made);
  }
  sort();
}

void Backlog::clear() {
  for (auto& [id, carried] : carried_) carried.carrier.let_go();
  due_.clear();
  carried_.clear();
  has_begun_ = false;
}

void Backlog::note(const std::shared_ptr<Attachment>& changed) {
  if (!has_begun_) return;
  ++looks_;
  if (is_through(*changed)) return;
  Carried& found = carried(changed);
  const auto place = found.due.empty() ? due_.end() : place_of(found);
  const std::uint64_t before = found.due.empty() ? 0 : found.due.front().number;
  note_change(found);
  if (found.due.front().number == before) return;  // it keeps its place
  if (place != due_.end()) due_.erase(place);
  insert(found);
}

void Backlog::note_change(Carried& carried) {
  const Carried::Change now{carried.carrier.clock(),
                            carried.attachment->changes.load(std::memory_order_acquire)};
  if (carried.due.empty() || carried.due.back().clock < now.clock) carried.due.push_back(now);
  drop_passed(carried);
}

// Drops changes that have been sent, and the oldest of more changes than there are slots: newer
// updates have replaced theirs.
void Backlog::drop_passed(Carried& carried) {
  const std::size_t slots = carried.attachment->memory->shape().mailbox.depth();
  while (carried.due.size() > 1 &&
         (carried.due.front().clock <= carried.sent || carried.due.size() > slots)) {
    carried.due.pop_front();
  }
}

std::deque<Carried*>::iterator Backlog::place_of(const Carried& carried) {
  return std::find(std::ranges::lower_bound(due_, carried.due.front().number, {}, kAge), due_.end(),
                   &carried);
}

// Nearly always the change is the youngest, so this inserts at the end.
void Backlog::insert(Carried& carried) {
  due_.insert(std::ranges::upper_bound(due_, carried.due.front().number, {}, kAge), &carried);
}

void Backlog::sort() { std::ranges::sort(due_, {}, kAge); }

void Backlog::forget(std::uint32_t segment) {
  const auto found = carried_.find(segment);
  if (found == carried_.end() || found->second.due.empty()) return;
  due_.erase(place_of(found->second));
  found->second.due.clear();
}

void Backlog::let_go(std::uint32_t segment) {
  const auto found = carried_.find(segment);
  if (found != carried_.end()) found->second.carrier.let_go();
}

void Backlog::keep_only(const Attachments& attachments) {
  if (carried_.size() <= attachments.size()) return;
  std::erase_if(carried_, [&](const auto& item) { return !attachments.contains(item.first); });
}

Carried& Backlog::carried(const std::shared_ptr<Attachment>& attachment) {
  const auto found = carried_.find(attachment->id);
  if (found != carried_.end()) return found->second;
  const host::SegmentMemory& memory = *attachment->memory;
  const Mailbox own = memory.box(control_.rank());
  Carried& made =
      carried_.emplace(attachment->id, Carried{attachment, SlotCarrier(own, host_)}).first->second;
  made.cursors.resize(host_.size());
  return made;
}

const Carried* Backlog::find(std::uint32_t segment) const {
  const auto found = carried_.find(segment);
  return found == carried_.end() ? nullptr : &found->second;
}

bool Backlog::is_through(const Attachment& attachment) const {
  const Carried* const found = find(attachment.id);
  return found != nullptr && found->changes == attachment.changes.load(std::memory_order_acquire);
}

bool Backlog::has_receiver(const Attachment& attachment) const {
  return std::ranges::any_of(host_, [&](int r) { return is_live(attachment, r); });
}

bool Backlog::changed_cursor(Carried& carried, std::size_t place, std::uint64_t least,
                             CursorBody& body) const {
  const host::SegmentMemory& memory = *carried.attachment->memory;
  const Cursor& cursor = memory.box(host_[place]).cursor(control_.rank());
  body.consumed = cursor.consumed.load(std::memory_order_acquire);
  body.folded = cursor.folded.load(std::memory_order_relaxed);
  body.overwritten = cursor.overwritten.load(std::memory_order_relaxed);
  body.rejected = cursor.rejected.load(std::memory_order_relaxed);
  body.ordinal = cursor.ordinal.load(std::memory_order_relaxed);
  body.sender = static_cast<std::uint32_t>(host_[place]);
  CursorBody& sent = carried.cursors[place];
  if (body.consumed == sent.consumed && body.ordinal == sent.ordinal) return false;
  if (least > 1 && body.ordinal - sent.ordinal < least) return false;
  sent = body;
  return true;
}

}  // namespace dstorm::remote
