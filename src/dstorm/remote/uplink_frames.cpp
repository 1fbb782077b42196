// The sending half of an uplink: it finds the segments that have something to say, and makes the
// frames, or the writes of the adapter, that say it.
#include "dstorm/remote/uplink.hpp"

#include <algorithm>
#include <cstring>

#include "dstorm/remote/downlink.hpp"

namespace dstorm::remote {
namespace {

// Small frames are gathered up to this many bytes before they are sent.
constexpr std::size_t kBatch = 64 * 1024;
// Long payloads are gathered up to this many bytes.
constexpr std::size_t kLongBatch = 256 * 1024;
// A payload up to this long is copied among the small frames, which is cheaper than a part of its
// own.
constexpr std::size_t kCopied = 8 * 1024;
// The age of a segment that is due.
constexpr auto kAge = [](const auto* carried) { return carried->due.front().number; };

}  // namespace

void Uplink::put_head(FrameKind kind, std::uint32_t segment, std::uint64_t bytes) {
  put(FrameHead{kind, segment, bytes});
}

// Returns whether there is something to send. Notices go last, and a goodbye after them. So a rank
// that sees this rank at a barrier has everything that this rank sent before.
bool Uplink::fill(const Attachments& attachments, bool leaving) {
  if (!std::exchange(has_noted_all_, true)) note_all(attachments);
  if (is_blocked()) return true;
  clear();
  may_lag_ = !rdma_;
  fill_record();
  const std::uint64_t posted =
      control_.member(control_.rank()).posted.load(std::memory_order_acquire);
  const bool is_idle = !rdma_ || rdma_->is_idle();
  if (is_idle && carried_.size() > attachments.size()) {
    std::erase_if(carried_, [&](const auto& item) { return !attachments.contains(item.first); });
  }
  if (!rdma_ && !fill_segments()) return true;
  const bool all_through = !rdma_ || post_segments();
  if (rdma_ && (!all_through || !rdma_->is_idle())) {
    awaits_adapter_ = awaits_adapter_ || posted > notice_ || leaving || !all_through;
    return small_at_ < small_.size();
  }
  if (!rdma_ || is_joined_) stalled_since_.reset();
  fill_notices(posted);
  if (leaving && !said_goodbye_) {
    put_head(FrameKind::kLeave, 0, 0);
    said_goodbye_ = true;
    may_lag_ = false;
  }
  return !small_.empty();
}

// The oldest change goes first, whatever its size, and no segment keeps the others waiting. So over
// TCP a rank that has an update of this rank also has what this rank wrote elsewhere before it.
// That holds as far as the engine looked in between, and unless that update has replaced an older
// one that was due.

// Returns false if there is more than one send takes.
bool Uplink::fill_segments() {
  while (!due_.empty()) {
    Carried& first = *due_.front();
    ++looks_;
    const bool goes_on = fill_segment(first);
    due_.pop_front();
    if (!first.due.empty()) {
      drop_passed(first);
      insert_due(first);  // its next change may come after others
    }
    if (!goes_on) return false;
  }
  return true;
}

// Returns false if one of the segments has to go on later.
bool Uplink::post_segments() {
  bool all_through = true;
  looks_ += due_.size();
  for (Carried* const carried : due_) all_through = post_segment(*carried) && all_through;
  std::erase_if(due_, [](const Carried* carried) { return carried->due.empty(); });
  for (Carried* const carried : due_) drop_passed(*carried);
  std::ranges::sort(due_, {}, kAge);
  return all_through;
}

void Uplink::note_all(const Attachments& attachments) {
  for (const auto& [id, attachment] : attachments) {
    ++looks_;
    Carried& made = carried(attachment);
    note_change(made);
    due_.push_back(&made);
  }
  std::ranges::sort(due_, {}, kAge);
}

void Uplink::note(const std::shared_ptr<Attachment>& changed) {
  if (!has_noted_all_) return;
  ++looks_;
  if (is_through(*changed)) return;
  Carried& found = carried(changed);
  const auto place = found.due.empty() ? due_.end() : place_of(found);
  const std::uint64_t before = found.due.empty() ? 0 : found.due.front().number;
  note_change(found);
  if (found.due.front().number == before) return;  // it keeps its place
  if (place != due_.end()) due_.erase(place);
  insert_due(found);
}

void Uplink::note_change(Carried& carried) {
  const Change now{carried.carrier.clock(),
                   carried.attachment->changes.load(std::memory_order_acquire)};
  if (carried.due.empty() || carried.due.back().clock < now.clock) carried.due.push_back(now);
  drop_passed(carried);
}

// Drops changes that have been sent, and the oldest of more changes than there are slots: newer
// updates have replaced theirs.
void Uplink::drop_passed(Carried& carried) {
  const std::size_t slots = carried.attachment->memory->shape().mailbox.depth();
  while (carried.due.size() > 1 &&
         (carried.due.front().clock <= carried.sent || carried.due.size() > slots)) {
    carried.due.pop_front();
  }
}

std::deque<Uplink::Carried*>::iterator Uplink::place_of(const Carried& carried) {
  return std::find(std::ranges::lower_bound(due_, carried.due.front().number, {}, kAge), due_.end(),
                   &carried);
}

// Nearly always the change is the youngest, so this inserts at the end.
void Uplink::insert_due(Carried& carried) {
  due_.insert(std::ranges::upper_bound(due_, carried.due.front().number, {}, kAge), &carried);
}

void Uplink::forget(std::uint32_t segment) {
  const auto found = carried_.find(segment);
  if (found == carried_.end() || found->second.due.empty()) return;
  due_.erase(place_of(found->second));
  found->second.due.clear();
}

Uplink::Carried& Uplink::carried(const std::shared_ptr<Attachment>& attachment) {
  const auto found = carried_.find(attachment->id);
  if (found != carried_.end()) return found->second;
  const host::SegmentMemory& memory = *attachment->memory;
  const Mailbox own(memory.mailbox(control_.rank()), memory.shape().mailbox);
  Carried& made =
      carried_.emplace(attachment->id, Carried{attachment, SlotCarrier(own, host_)}).first->second;
  made.cursors.resize(host_.size());
  return made;
}

bool Uplink::is_through(const Attachment& attachment) const {
  const auto found = carried_.find(attachment.id);
  return found != carried_.end() &&
         found->second.changes == attachment.changes.load(std::memory_order_acquire);
}

bool Uplink::is_done_with(const Attachment& attachment) const {
  if (state_ == State::kDone || !is_needed()) return true;
  const auto found = carried_.find(attachment.id);
  if (found == carried_.end() || found->second.closed_at == 0 || !is_through(attachment)) {
    return false;
  }
  // Changes that are still on their way would have to be sent again if the connection broke.
  return answered_bytes_ >= found->second.closed_at ||
         std::none_of(host_.begin(), host_.end(), [&](int r) { return is_live(attachment, r); });
}

void Uplink::note_through(Carried& carried, std::uint64_t changes) {
  carried.changes = changes;
  carried.due.clear();
}

// Whether a receiver takes part, by the rule that the sender uses.
bool Uplink::is_live(const Attachment& attachment, int rank) const {
  return control_.is_live(rank) && !attachment.memory->is_closed(rank);
}

// Returns false if there is more than one send takes.
bool Uplink::fill_segment(Carried& carried) {
  const Attachment& attachment = *carried.attachment;
  const std::uint64_t changes = attachment.changes.load(std::memory_order_acquire);
  // read before its last clock
  const bool is_closed = attachment.memory->is_closed(control_.rank());
  if (attachment.urgent.load() > carried.changes) may_lag_ = false;
  fill_cursors(carried);
  // Only up to the clock: a sender is still about to publish an update beyond it (S6).
  const std::uint64_t clock = carried.carrier.clock();
  const auto live = [&](int r) { return is_live(attachment, r); };
  for (int slot; (slot = carried.carrier.take(carried.sent, live)) >= 0;) {
    const SlotHeader header = carried.carrier.header();
    if (header.iteration > clock) {
      carried.carrier.let_go();
      break;
    }
    const auto to = carried.carrier.addressees();
    put_head(FrameKind::kUpdate, attachment.id,
             sizeof(header) + to.size() * sizeof(Ticketed) + header.payload_bytes);
    put(header);
    for (const Addressee& receiver : to) {
      put(Ticketed{receiver.ordinal, static_cast<std::uint32_t>(receiver.rank), 0});
    }
    carried.sent = carried.clock = header.iteration;
    const std::span payload(carried.carrier.payload(slot), header.payload_bytes);
    if (payload.size() <= kCopied) {
      small_.insert(small_.end(), payload.begin(), payload.end());
    } else {
      pieces_.push_back({small_.size(), payload});
      long_bytes_ += payload.size();
      if (attachment.memory->shape().policy == Policy::kLatest) {
        reading_ = &carried;
        if (header.iteration == clock && !is_closed) note_through(carried, changes);
        return false;
      }
    }
    carried.carrier.let_go();  // QUEUE: the slot stays as it is until all have consumed it
    if (small_.size() >= kBatch || long_bytes_ >= kLongBatch) return false;
  }
  if (clock > carried.clock) {
    put_head(FrameKind::kClock, attachment.id, sizeof(clock));
    put(clock);
    carried.clock = clock;
  }
  if (is_closed) fill_closed(carried);
  note_through(carried, changes);
  return true;
}

// As fill_segment(), by RDMA. Returns false if it has to go on later: there is no room in the
// queue, or no window yet, or the update to send waits for a slot that the adapter still reads.
bool Uplink::post_segment(Carried& carried) {
  const Attachment& attachment = *carried.attachment;
  const std::uint64_t changes = attachment.changes.load(std::memory_order_acquire);
  // read before its last clock
  const bool is_closed = attachment.memory->is_closed(control_.rank());
  if (carried.in_flight != 0 && carried.in_flight <= rdma_->reap()) {
    carried.carrier.let_go();
    carried.in_flight = 0;
  }
  // If all ranks of the host have closed the segment, its memory may be gone there, and a
  // connection that is made now gets no window.
  if (std::none_of(host_.begin(), host_.end(), [&](int r) { return is_live(attachment, r); })) {
    if (carried.in_flight != 0) return false;
    if (is_closed) fill_closed(carried);
    note_through(carried, changes);
    return true;
  }
  // A segment without changes must not hold back notices: the callee may need this rank's notice
  // before it attaches the segment and gives a window.
  if (!is_joined_ || !rdma_->has_window(attachment.id)) return changes == Attachment::kUnchanged;
  const std::uint64_t clock = carried.carrier.clock();
  // Cursors go before the clock: in lockstep, a rank that sees this clock assumes that this rank
  // has folded what it stands for (Segment). Under QUEUE nothing depends on that, and each cursor
  // is a write of its own. So a cursor goes along with an update only if it frees a quarter of the
  // slots; the others go when there is no update.
  const host::SegmentShape& shape = attachment.memory->shape();
  const bool has_update = clock > carried.clock;
  const bool may_lag = has_update && shape.policy == Policy::kQueue && !is_closed;
  if (!post_cursors(carried, may_lag ? (shape.mailbox.depth() + 3) / 4 : 1, has_update))
    return false;
  while (carried.sent < clock) {
    if (carried.in_flight != 0) return false;
    const int slot =
        carried.carrier.take(carried.sent, [&](int r) { return is_live(attachment, r); });
    if (slot < 0) break;
    const SlotHeader header = carried.carrier.header();
    if (header.iteration > clock || !rdma_->has_room(header.payload_bytes)) {
      carried.carrier.let_go();
      if (header.iteration > clock) break;
      return false;
    }
    const std::uint64_t number =
        rdma_->send_update(attachment.id, *attachment.memory, *attachment.mailbox, slot, header,
                           carried.carrier.addressees(), host_);
    carried.sent = carried.clock = header.iteration;
    carried.last_update = number;
    // QUEUE: the slot stays as it is until all have consumed the update, so there is no need to
    // hold it.
    if (shape.policy == Policy::kLatest) {
      carried.in_flight = number;
    } else {
      carried.carrier.let_go();
    }
  }
  carried.sent = std::max(carried.sent, clock);  // updates that were not found have been replaced
  if (clock > carried.clock) {
    // QUEUE: only when the updates before it have been written (verbs/inbox.hpp, L5).
    const bool may_go =
        shape.policy == Policy::kLatest || rdma_->completed() >= carried.last_update;
    if (!rdma_->has_room() || !may_go) return false;
    rdma_->send_clock(attachment.id, clock);
    carried.clock = clock;
  }
  if (is_closed && carried.closed_at == 0) {
    if (!rdma_->is_idle()) return false;
    fill_closed(carried);
  }
  if (!may_lag) note_through(carried, changes);
  return true;
}

void Uplink::fill_closed(Carried& carried) {
  if (carried.closed_at != 0) return;
  put_head(FrameKind::kClosed, carried.attachment->id, 0);
  carried.closed_at = sent_bytes_ + small_.size() + long_bytes_;
}

// Reads how far this rank has folded the rank at index `place` of the host. Returns false if that
// is not at least `least` updates more than was sent.
bool Uplink::changed_cursor(Carried& carried, std::size_t place, std::uint64_t least,
                            CursorBody& body) const {
  const host::SegmentMemory& memory = *carried.attachment->memory;
  const Mailbox box(memory.mailbox(host_[place]), memory.shape().mailbox);
  const Cursor& cursor = box.cursor(control_.rank());
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

bool Uplink::post_cursors(Carried& carried, std::uint64_t least, bool more_follows) {
  const host::SegmentMemory& memory = *carried.attachment->memory;
  for (std::size_t i = 0; i < host_.size(); ++i) {
    if (!rdma_->has_room()) return false;
    CursorBody body{};
    if (!changed_cursor(carried, i, least, body)) continue;
    const Mailbox box(memory.mailbox(host_[i]), memory.shape().mailbox);
    rdma_->send_cursor(carried.attachment->id, i, control_.rank(), box.cursor(control_.rank()),
                       !more_follows);
  }
  return true;
}

void Uplink::fill_cursors(Carried& carried) {
  const Attachment& attachment = *carried.attachment;
  const std::size_t head_at = small_.size();
  std::size_t count = 0;
  put_head(FrameKind::kCursors, attachment.id, 0);
  for (std::size_t i = 0; i < host_.size(); ++i) {
    CursorBody body{};
    if (!changed_cursor(carried, i, 1, body)) continue;
    put(body);
    ++count;
  }
  if (count == 0) return small_.resize(head_at);
  const FrameHead head{FrameKind::kCursors, attachment.id, count * sizeof(CursorBody)};
  std::memcpy(small_.data() + head_at, &head, sizeof(head));
}

// On a new connection it sends the last two: others may still be at the exchange before this rank's
// last one.
void Uplink::fill_notices(std::uint64_t posted) {
  const host::Member& own = control_.member(control_.rank());
  for (std::uint64_t n = std::max(notice_ + 1, posted < 2 ? 1 : posted - 1); n <= posted; ++n) {
    const host::Notice& notice = own.notices[n % 2];
    const NoticeHead head{n, notice.what_bytes, notice.bytes};
    put_head(FrameKind::kNotice, 0, sizeof(head) + head.what_bytes + head.bytes);
    put(head);
    const auto* what = reinterpret_cast<const std::byte*>(notice.what);
    small_.insert(small_.end(), what, what + head.what_bytes);
    small_.insert(small_.end(), notice.data, notice.data + head.bytes);
    notice_ = n;
    may_lag_ = false;
  }
}

// The record goes before all else, because the others suspect a rank from which no new record
// arrives.
void Uplink::fill_record() {
  const RecordFormat::Cell cell = control_.record(control_.rank());
  if (cell[0].load(std::memory_order_relaxed) == beat_) return;
  const RecordFormat::Words words = RecordFormat::load(cell);
  // The record is torn if it is being written. The next pump then sends it.
  if (!control_.record_format().unpack(words)) return;
  put_head(FrameKind::kRecord, 0, words.size() * sizeof(std::uint64_t));
  for (const std::uint64_t word : words) put(word);
  beat_ = words[0];
  may_lag_ = false;
}

void Uplink::clear() {
  small_.clear();
  pieces_.clear();
  small_at_ = long_bytes_ = 0;
  reading_ = nullptr;
  may_lag_ = false;
}

void Uplink::send(Clock::time_point now) {
  while (is_blocked()) {
    parts_.clear();
    std::size_t at = small_at_;
    const auto put_small = [&](std::size_t end) {
      if (at < end) parts_.push_back({small_.data() + at, end - at});
      at = end;
    };
    for (const Piece& piece : pieces_) {
      put_small(piece.end);
      parts_.push_back({const_cast<std::byte*>(piece.payload.data()), piece.payload.size()});
    }
    put_small(small_.size());
    const tcp::Moved moved = stream_->send(parts_, may_lag_);
    // The partner has to read everything that has arrived before it sees the end.
    if (moved.flow != tcp::Flow::kOpen && partner_ != nullptr && stream_->is_readable()) return;
    if (moved.flow != tcp::Flow::kOpen) return fail(stream_->error());
    if (moved.bytes == 0) return;
    last_sent_ = now;
    sent_bytes_ += moved.bytes;
    lags_ = may_lag_;
    note_sent(moved.bytes);
  }
  may_lag_ = false;
  if (said_goodbye_) stream_->end_writing();
}

void Uplink::note_sent(std::size_t bytes) {
  while (bytes > 0) {
    const std::size_t end = pieces_.empty() ? small_.size() : pieces_.front().end;
    const std::size_t of_small = std::min(bytes, end - small_at_);
    small_at_ += of_small;
    bytes -= of_small;
    if (pieces_.empty()) break;
    std::span<const std::byte>& payload = pieces_.front().payload;
    const std::size_t of_payload = std::min(bytes, payload.size());
    payload = payload.subspan(of_payload);
    bytes -= of_payload;
    if (payload.empty()) pieces_.pop_front();
  }
  if (pieces_.empty() && reading_ != nullptr) {
    reading_->carrier.let_go();
    reading_ = nullptr;
  }
}

}  // namespace dstorm::remote
