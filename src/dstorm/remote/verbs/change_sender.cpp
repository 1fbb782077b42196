// How changes go by RDMA. begin() makes a Writer, which has a queue pair, and introduces it to the
// callee in a frame. take() connects the pair with the callee's, and notes each window that the
// callee opens. send() then goes through the segments that have changed; of each it writes the
// cursors, the updates and the clock, in that order, as far as the queue has room and a window is
// there.
//
// reap() takes completions in. tend() notices a network that no longer works: it writes a clock now
// and then, and ends the connection when nothing has completed for suspect_after.
#include "dstorm/remote/verbs/change_sender.hpp"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "dstorm/errors.hpp"
#include "dstorm/remote/verbs/registration.hpp"

namespace dstorm::verbs {

using remote::Carried;
using remote::FrameKind;

void ChangeSender::begin(const net::Introduction& call) {
  const remote::Settings& settings = route_.settings;
  try {
    writer_ = std::make_unique<Writer>(
        adapter_.device(), adapter_.most_ranks(),
        std::chrono::ceil<std::chrono::milliseconds>(settings.suspect_after));
  } catch (const Error& error) {
    fail(error.what());
  }
  const Endpoint own = writer_->local();
  route_.outbox.put_proved(settings.key, call, FrameKind::kEndpoint,
                           std::as_bytes(std::span(&own, 1)));
}

void ChangeSender::end() noexcept {
  writer_.reset();
  is_joined_ = false;
  reaped_ = 0;
  written_.clear();
}

// The next connection may work. A host that refuses that one too counts as not reached since now.
void ChangeSender::note_failure() noexcept {
  if (writer_ && !stalled_since_) stalled_since_ = moved_;
}

void ChangeSender::fail(const std::string& why) {
  if (!stalled_since_) stalled_since_ = moved_;
  trouble_ = why;
  throw Error("RDMA: " + why);
}

ChangeSender::Progress ChangeSender::send(const remote::Attachments& attachments,
                                          Clock::time_point now) {
  route_.outbox.hurry();
  if (writer_->is_idle()) {
    if (!stalled_since_) moved_ = now;
    route_.backlog.keep_only(attachments);
    std::erase_if(written_, [&](const auto& item) { return !attachments.contains(item.first); });
  }
  const bool all_through =
      route_.backlog.send_each([this](Carried& carried) { return send_segment(carried); });
  if (!all_through) return Progress::kStuck;
  if (!writer_->is_idle()) return Progress::kPosted;
  if (is_joined_) stalled_since_.reset();
  return Progress::kDone;
}

bool ChangeSender::reap(bool is_awaited, Clock::time_point now) {
  if (is_awaited) writer_->arm();
  const bool has_moved = writer_->reap() > reaped_;
  reaped_ = writer_->completed();
  if (has_moved) {
    moved_ = tried_ = now;
    stalled_since_.reset();
    trouble_.clear();
  }
  if (writer_->failed()) fail(writer_->failed()->what);
  return has_moved;
}

void ChangeSender::tend(Clock::time_point now) {
  if (writer_->is_idle() && !stalled_since_) moved_ = now;
  if ((stalled_since_ || !writer_->is_idle()) &&
      now - stalled_since_.value_or(moved_) > route_.settings.suspect_after) {
    fail("the adapter gets nothing through");
  }
  // Often enough that all ranks which are concerned by one cut notice it at about the same time.
  if (writer_->is_idle() && now - tried_ > route_.settings.suspect_after / 16) {
    tried_ = now;
    send_clock_again();
  }
}

// A network that no longer works is then noticed even if there is nothing to send.
void ChangeSender::send_clock_again() {
  for (const auto& [id, carried] : route_.backlog.all()) {
    if (!writer_->has_window(id)) continue;
    writer_->send_clock(id, carried.clock);
    return;
  }
}

bool ChangeSender::make_room(std::uint32_t segment) {
  const auto found = written_.find(segment);
  if (found == written_.end() || found->second.in_flight == 0) return false;
  // The adapter may go on reading this slot. The bytes that it then sends have the wrong
  // checksum, and a newer update follows.
  route_.backlog.let_go(segment);
  found->second.in_flight = 0;
  return true;
}

void ChangeSender::take(const remote::FrameHead& head, std::span<const std::byte> body) {
  if (head.kind == FrameKind::kWindow) return take_window(head.segment, body);
  Endpoint endpoint{};
  if (body.size() != sizeof(endpoint) || is_joined_) {
    throw Error("answered with an invalid frame");
  }
  std::memcpy(&endpoint, body.data(), sizeof(endpoint));
  try {
    writer_->connect(endpoint);
    is_joined_ = true;
  } catch (const Error& error) {
    fail(error.what());
  }
}

// The longest answer is that for a window.
std::size_t ChangeSender::longest_answer() const {
  return (1 + route_.host.size()) * sizeof(Target);
}

void ChangeSender::take_window(std::uint32_t segment, std::span<const std::byte> body) {
  const std::size_t ranks = route_.host.size();
  if (body.size() != longest_answer()) {
    throw Error("answered with an invalid frame");
  }
  Writer::Window window{{}, std::vector<Target>(ranks)};
  std::memcpy(&window.inbox, body.data(), sizeof(window.inbox));
  std::memcpy(window.cursors.data(), body.data() + sizeof(window.inbox), ranks * sizeof(Target));
  writer_->open_window(segment, std::move(window));
}

// Returns false if it has to go on later: there is no room in the queue, or no window yet, or the
// update to send waits until an earlier one has been written.
bool ChangeSender::send_segment(Carried& carried) {
  const remote::Attachment& attachment = *carried.attachment;
  Written& written = written_[attachment.id];
  const std::uint64_t changes = attachment.changes.load(std::memory_order_acquire);
  // read before its last clock
  const bool has_gone = attachment.memory->has_gone(route_.control.rank());
  if (written.in_flight != 0 && written.in_flight <= writer_->reap()) {
    carried.carrier.let_go();
    written.in_flight = 0;
  }
  // If all ranks of the host have closed the segment, its memory may be gone there, and a
  // connection that is made now gets no window.
  if (!route_.backlog.has_receiver(attachment)) {
    if (written.in_flight != 0) return false;
    if (has_gone) remote::put_gone(carried, route_.outbox, route_.control.rank());
    carried.note_through(changes);
    return true;
  }
  // A segment without changes must not hold back notices: the callee may need this rank's notice
  // before it attaches the segment and gives a window.
  if (!is_joined_ || !writer_->has_window(attachment.id)) {
    return changes == remote::Attachment::kUnchanged;
  }
  const std::uint64_t clock = carried.carrier.clock();
  // Cursors go before the clock: in lockstep, a rank that sees this clock assumes that this rank
  // has folded what it stands for (Segment). Under QUEUE nothing depends on that, and each cursor
  // is a write of its own. So a cursor goes along with an update only if it frees a quarter of the
  // slots; the others go when there is no update.
  const host::SegmentShape& shape = attachment.memory->shape();
  const bool has_update = clock > carried.clock;
  const bool may_lag = has_update && shape.policy == Policy::kQueue && !has_gone;
  if (!send_cursors(carried, may_lag ? (shape.mailbox.depth() + 3) / 4 : 1, has_update) ||
      !send_updates(carried, written, clock)) {
    return false;
  }
  if (clock > carried.clock) {
    // QUEUE: only when the updates before it have been written (inbox.hpp, L5).
    const bool may_go =
        shape.policy == Policy::kLatest || writer_->completed() >= written.last_update;
    if (!writer_->has_room() || !may_go) return false;
    writer_->send_clock(attachment.id, clock);
    carried.clock = clock;
  }
  if (has_gone && carried.closed_at == 0) {
    if (!writer_->is_idle()) return false;
    remote::put_gone(carried, route_.outbox, route_.control.rank());
  }
  if (!may_lag) carried.note_through(changes);
  return true;
}

// Sends the updates up to `clock`. Returns false if it has to go on later.
bool ChangeSender::send_updates(Carried& carried, Written& written, std::uint64_t clock) {
  const remote::Attachment& attachment = *carried.attachment;
  const auto& registration = static_cast<const Registration&>(*attachment.registration);
  const auto live = [&](int r) { return route_.backlog.is_live(attachment, r); };
  while (carried.sent < clock) {
    if (written.in_flight != 0) return false;
    const int slot = carried.carrier.take(carried.sent, live);
    if (slot < 0) break;
    const SlotHeader header = carried.carrier.header();
    const std::span<const Addressee> to = carried.carrier.addressees();
    const bool is_beyond = header.iteration > clock;
    if (is_beyond || !may_go(written, to) || !writer_->has_room(header.payload_bytes)) {
      carried.carrier.let_go();
      if (is_beyond) break;
      return false;
    }
    written.last_update = writer_->send_update(
        attachment.id, *attachment.memory, registration.mailbox(), slot, header, to, route_.host);
    written.receivers.assign(to.begin(), to.end());
    carried.sent = carried.clock = header.iteration;
    // QUEUE: the slot stays as it is until all have consumed the update, so there is no need to
    // hold it.
    if (attachment.memory->shape().policy == Policy::kLatest) {
      written.in_flight = written.last_update;
    } else {
      carried.carrier.let_go();
    }
  }
  carried.sent = std::max(carried.sent, clock);  // updates that were not found have been replaced
  return true;
}

// Whether an update to these ranks may go before the last one has been written (inbox.hpp, L5).
bool ChangeSender::may_go(const Written& written, std::span<const Addressee> to) const {
  return written.last_update <= writer_->completed() ||
         std::ranges::includes(to, written.receivers, {}, &Addressee::rank, &Addressee::rank);
}

bool ChangeSender::send_cursors(Carried& carried, std::uint64_t least, bool more_follows) {
  const host::SegmentMemory& memory = *carried.attachment->memory;
  for (std::size_t place = 0; place < route_.host.size(); ++place) {
    if (!writer_->has_room()) return false;
    remote::CursorBody body{};
    if (!route_.backlog.changed_cursor(carried, place, least, body)) continue;
    const Mailbox box = memory.box(route_.host[place]);
    const int rank = route_.control.rank();
    writer_->send_cursor(carried.attachment->id, place, rank, box.cursor(rank), !more_follows);
  }
  return true;
}

}  // namespace dstorm::verbs
