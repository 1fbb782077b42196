#include "dstorm/remote/tcp/change_sender.hpp"

#include "dstorm/errors.hpp"

namespace dstorm::tcp {

using remote::Carried;
using remote::FrameKind;

ChangeSender::Progress ChangeSender::send(const remote::Attachments& attachments,
                                          Clock::time_point) {
  route_.backlog.keep_only(attachments);
  const bool is_all =
      route_.backlog.send_in_turn([this](Carried& carried) { return send_segment(carried); });
  return is_all ? Progress::kDone : Progress::kFull;
}

// Returns false if there is more than one send takes.
bool ChangeSender::send_segment(Carried& carried) {
  const remote::Attachment& attachment = *carried.attachment;
  const std::uint64_t changes = attachment.changes.load(std::memory_order_acquire);
  // read before its last clock
  const bool has_gone = attachment.memory->has_gone(route_.control.rank());
  if (attachment.urgent.load() > carried.changes) route_.outbox.hurry();
  send_cursors(carried);
  // Only up to the clock: a sender is still about to publish an update beyond it (S6).
  const std::uint64_t clock = carried.carrier.clock();
  if (!send_updates(carried, clock)) {
    if (carried.sent == clock && !has_gone) carried.note_through(changes);
    return false;
  }
  if (clock > carried.clock) {
    route_.outbox.put_head(FrameKind::kClock, attachment.id, sizeof(clock));
    route_.outbox.put(clock);
    carried.clock = clock;
  }
  if (has_gone) remote::put_gone(carried, route_.outbox, route_.control.rank());
  carried.note_through(changes);
  return true;
}

// Sends the updates up to `clock`. Returns false if the outbox is full.
bool ChangeSender::send_updates(Carried& carried, std::uint64_t clock) {
  const remote::Attachment& attachment = *carried.attachment;
  remote::Outbox& outbox = route_.outbox;
  const auto live = [&](int r) { return route_.backlog.is_live(attachment, r); };
  for (int slot; (slot = carried.carrier.take(carried.sent, live)) >= 0;) {
    const SlotHeader header = carried.carrier.header();
    if (header.iteration > clock) {
      carried.carrier.let_go();
      break;
    }
    const auto to = carried.carrier.addressees();
    outbox.put_head(FrameKind::kUpdate, attachment.id,
                    sizeof(header) + to.size() * sizeof(remote::Ticketed) + header.payload_bytes);
    outbox.put(header);
    for (const Addressee& receiver : to) {
      outbox.put(remote::Ticketed{receiver.ordinal, static_cast<std::uint32_t>(receiver.rank), 0});
    }
    carried.sent = carried.clock = header.iteration;
    const bool is_copied =
        outbox.put_payload({carried.carrier.payload(slot), header.payload_bytes});
    if (!is_copied && attachment.memory->shape().policy == Policy::kLatest) {
      outbox.let_go_after(carried.carrier, attachment.id);
      return false;
    }
    carried.carrier.let_go();  // QUEUE: the slot stays as it is until all have consumed it
    if (outbox.is_full()) return false;
  }
  return true;
}

void ChangeSender::send_cursors(Carried& carried) {
  cursors_.clear();
  for (std::size_t place = 0; place < route_.host.size(); ++place) {
    remote::CursorBody body{};
    if (route_.backlog.changed_cursor(carried, place, 1, body)) cursors_.push_back(body);
  }
  if (cursors_.empty()) return;
  const auto bytes = std::as_bytes(std::span(cursors_));
  route_.outbox.put_head(FrameKind::kCursors, carried.attachment->id, bytes.size());
  route_.outbox.put_bytes(bytes);
}

void ChangeSender::take(const remote::FrameHead&, std::span<const std::byte>) {
  throw Error("answered with an invalid frame");
}

}  // namespace dstorm::tcp
