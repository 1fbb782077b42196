// How a downlink works. take_in() reads from the connection into buffer_, and parse() takes whole
// frames out of it. Frames about segments go to the transport's ChangeReceiver. The payload of a
// long update goes straight to the place that the transport names: later reads fill it, and then
// finish_payload() hands the update over. A frame that has to wait for another rank of this host
// stays in the buffer (hold_up()).
//
// Every length, rank and iteration in a frame is checked before use. A frame that breaks the
// protocol ends the connection as kBroken; if this rank merely lacks something, the connection ends
// as kRefused, and the sender calls another rank of this host.
#include "dstorm/remote/downlink.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "dstorm/remote/transport_choice.hpp"

namespace dstorm::remote {
namespace {

// Frames are parsed in a buffer of this size. A large payload goes straight to its slot.
constexpr std::size_t kBuffer = 64 * 1024;
// After the head of a long payload, and after its end, at most this much is read at once. The next
// frame may be as long, and much of it would have to be copied.
constexpr std::size_t kBehind = 1024;
// The sender learns at least this often how far its bytes have come.
constexpr std::uint64_t kAnswerBytes = 1024 * 1024;
// Makes this call the newest of its sender, if there is no newer one. Two ranks of a host may be
// called at the same time: the later call counts, whichever rank takes it first. Returns the call's
// number, or 0.
std::uint64_t become_newest(host::Control& control, const net::Introduction& caller) {
  std::atomic<std::uint64_t>& link = control.member(static_cast<int>(caller.rank)).link;
  for (std::uint64_t last = link.load(); last < caller.number;) {
    if (link.compare_exchange_weak(last, caller.number)) return caller.number;
  }
  return 0;
}

}  // namespace

Downlink::Downlink(host::Control& control, const Settings& settings,
                   std::shared_ptr<net::Stream> stream, const net::Introduction& caller,
                   Clock::time_point now, std::span<const std::byte> unparsed,
                   std::uint64_t parsed_bytes)
    : control_(control),
      settings_(settings),
      stream_(std::move(stream)),
      origin_{
          control, settings, caller, static_cast<int>(caller.rank), become_newest(control, caller),
          now,     answers_},
      changes_(make_change_receiver(origin_)),
      taken_in_(parsed_bytes + unparsed.size()),
      last_answer_(now) {
  const auto ranks = static_cast<std::size_t>(control.size());
  buffer_.resize(
      std::max({kBuffer, sizeof(FrameHead) + ranks * sizeof(CursorBody) + kLine,
                sizeof(FrameHead) + control.record_format().words() * 8, unparsed.size()}));
  std::copy(unparsed.begin(), unparsed.end(), buffer_.begin());
  end_of_data_ = unparsed.size();
  has_unparsed_ = !unparsed.empty();
  hear(now);
}

void Downlink::hear(Clock::time_point now) {
  last_heard_ = now;
  control_.member(origin_.sender)
      .heard.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  if (partner_ != nullptr) partner_->hear(now);
}

void Downlink::over(End end, std::string reason, bool in_order) {
  payload_.reset();
  held_up_since_.reset();
  release_board();
  // If the caller has called again, it gave up this connection before.
  if ((end == End::kDisconnected || end == End::kBroken) && !is_current()) end = End::kReplaced;
  if (end == End::kLeft) {
    stream_->end_writing();  // under TLS, merely closing it looks to the sender like a cut
  } else if (!in_order) {
    stream_->reset_at_end();
  }
  changes_->end();
  end_ = end;
  reason_ = std::move(reason);
  Uplink* const partner = std::exchange(partner_, nullptr);
  if (partner != nullptr) partner->partner_is_over(is_at_end_, reason_);
}

void Downlink::partner_is_over() {
  partner_ = nullptr;
  // If this side failed, it has asked for a reset already.
  if (end_ == End::kNot) over(End::kDisconnected, "the connection has been given up", true);
}

// Whether the beginning of a frame that is no answer lies in the buffer.
bool Downlink::has_part_of_frame() const {
  FrameHead head{};
  if (end_of_data_ - begin_ < sizeof(head)) return false;
  std::memcpy(&head, buffer_.data() + begin_, sizeof(head));
  return head.kind != FrameKind::kTaken;
}

void Downlink::watch(bool is_watched, Clock::time_point now) noexcept {
  if (is_watched && !is_watched_) watched_since_ = now;
  is_watched_ = is_watched;
}

bool Downlink::is_current() const {
  return control_.member(origin_.sender).link.load(std::memory_order_acquire) == origin_.number;
}

std::size_t Downlink::take_in(const Attachments& attachments, std::uint32_t last_attached,
                              bool to_the_end, Clock::time_point now) {
  std::size_t taken = 0;
  while (end_ == End::kNot && taken < kTurn) {
    // A newer connection is in use. If it begins right after this look, this one writes to copies
    // that no other process writes (C1).
    if (!is_current()) {
      over(End::kReplaced, "another connection is in use");
      break;
    }
    // A dead rank's clock is settled for good (S6).
    if (!has_left_ && !control_.is_live(origin_.sender)) {
      // An evicted sender may still have to learn of its eviction, from the partner.
      if (partner_ != nullptr && control_.state(origin_.sender) == host::State::kEvicted) break;
      over(End::kDisconnected, "it has been given up");
      break;
    }
    if (std::exchange(has_unparsed_, false)) {
      parse_whole(attachments, last_attached);
      if (has_unparsed_) break;
      continue;
    }
    std::array<iovec, 2> parts;
    std::size_t count = 0;
    const bool in_place = payload_ && payload_->to != nullptr;
    const bool is_in_parts = is_long_ && (in_place || !payload_);
    if (in_place) parts[count++] = {payload_->to, payload_->missing};
    parts[count++] = {buffer_.data() + end_of_data_,
                      std::min(buffer_.size() - end_of_data_, is_in_parts ? kBehind : kBuffer)};
    std::size_t room = 0;
    for (std::size_t i = 0; i < count; ++i) room += parts[i].iov_len;
    const net::Moved moved = stream_->receive(std::span(parts).first(count));
    if (moved.bytes == 0) {
      is_at_end_ = moved.flow == net::Flow::kEnded;
      if (is_at_end_ && has_left_) {
        over(End::kLeft, "left");
      } else if (is_at_end_ && partner_ != nullptr && partner_->has_said_all()) {
        over(End::kReplaced, "has received the goodbye");
      } else if (is_at_end_) {
        over(End::kDisconnected, "ended the connection");
      } else if (moved.flow == net::Flow::kFailed) {
        over(End::kDisconnected, stream_->error());
      }
      break;
    }
    hear(now);
    taken += moved.bytes;
    taken_in_ += moved.bytes;
    end_of_data_ += moved.bytes - (in_place ? place_payload(moved.bytes) : 0);
    parse_whole(attachments, last_attached);
    owes_answer_ = owes_answer_ || has_part_of_frame();
    // Fewer bytes than asked for: nothing is left, except perhaps the end, and epoll tells the
    // engine's thread of that.
    if (!to_the_end && moved.bytes < room && !stream_->has_buffered()) break;
  }
  try {
    if (end_ == End::kNot) changes_->announce(attachments);
  } catch (const Error& error) {
    over(End::kRefused, error.what());
  }
  if (end_ == End::kNot) answer(taken_in_ - answered_ >= kAnswerBytes, now);
  return taken;
}

void Downlink::parse_whole(const Attachments& attachments, std::uint32_t last_attached) {
  try {
    parse(attachments, last_attached);
  } catch (const BrokenRule& error) {
    over(End::kBroken, error.what());
  } catch (const Error& error) {
    over(End::kRefused, error.what());
  }
}

// Takes all whole frames out of the buffer, and the beginning of a payload.
void Downlink::parse(const Attachments& attachments, std::uint32_t last_attached) {
  for (;;) {
    const std::span<const std::byte> rest(buffer_.data() + begin_, end_of_data_ - begin_);
    if (payload_) {
      std::byte* const to = payload_->to;
      const std::size_t part = place_payload(rest.size());
      if (to != nullptr) std::memcpy(to, rest.data(), part);
      begin_ += part;
      if (payload_->missing > 0) break;
      finish_payload();
      continue;
    }
    if (rest.size() < sizeof(FrameHead)) break;
    const auto head = get<FrameHead>(rest);
    // Before anything else this checks how long the frame can be.
    if (rest.size() < sizeof(FrameHead) + length_of_fixed(head)) break;
    std::size_t fixed = length_of_fixed(head);
    std::shared_ptr<Attachment> attachment;
    if (head.segment != 0) {
      require(head.segment <= last_attached, "a segment that is not there");
      const auto found = attachments.find(head.segment);
      if (found != attachments.end()) attachment = found->second;
    }
    if (head.kind == FrameKind::kUpdate) {
      const auto header = get<SlotHeader>(rest, sizeof(FrameHead));
      require(header.payload_bytes <= head.bytes - sizeof(SlotHeader), "a payload beyond its end");
      fixed = static_cast<std::size_t>(head.bytes - header.payload_bytes);
      require(fixed <=
                  sizeof(SlotHeader) + static_cast<std::size_t>(control_.size()) * sizeof(Ticketed),
              "more receivers than there are ranks");
      if (rest.size() < sizeof(FrameHead) + fixed) break;
    }
    if (!take(head, rest.subspan(sizeof(FrameHead), fixed), attachment)) {
      hold_up();
      break;
    }
    held_up_since_.reset();
    begin_ += sizeof(FrameHead) + fixed;
    if (end_ != End::kNot) return;
  }
  // The beginning of a frame that is left moves to the front, so that the rest finds room.
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_of_data_ - begin_);
    end_of_data_ -= begin_;
    begin_ = 0;
  }
}

// Of `bytes` that have arrived, so many belong to the payload.
std::size_t Downlink::place_payload(std::size_t bytes) {
  const std::size_t placed = std::min(bytes, payload_->missing);
  if (payload_->to != nullptr) payload_->to += placed;
  owes_answer_ = owes_answer_ || placed > 0;
  payload_->missing -= placed;
  return placed;
}

void Downlink::finish_payload() {
  ++updates_;
  changes_->finish_update();
  payload_.reset();
}

// Arrived bytes wait in the buffer and in the connection, but not for long: then the sender has to
// try another rank, to which it sends everything again, so nothing is lost.
void Downlink::hold_up() {
  has_unparsed_ = true;
  const auto now = Clock::now();
  if (!held_up_since_ || changes_->is_at_work()) held_up_since_ = now;
  if (changes_->is_at_work()) hear(now);  // it is this rank that keeps the sender waiting
  if (now - *held_up_since_ > settings_.suspect_after / 2) {
    throw Error("a rank of this host has not made room for its update");
  }
}

// The number of bytes of the body that have to be here before anything is done with the frame.
std::size_t Downlink::length_of_fixed(const FrameHead& head) const {
  const std::uint64_t ranks = static_cast<std::uint64_t>(control_.size());
  const auto exactly = [&](std::uint64_t bytes, const char* rule) {
    require(head.bytes == bytes, rule);
    return static_cast<std::size_t>(bytes);
  };
  const bool needs_segment = head.kind == FrameKind::kUpdate || head.kind == FrameKind::kClock ||
                             head.kind == FrameKind::kCursors || head.kind == FrameKind::kClosed ||
                             head.kind == FrameKind::kDropped;
  require(needs_segment == (head.segment != 0), "a segment where none belongs, or without one");
  switch (head.kind) {
    case FrameKind::kBeat:
    case FrameKind::kClosed:
    case FrameKind::kDropped:
    case FrameKind::kLeave:
      return exactly(0, "a body where none belongs");
    case FrameKind::kClock:
      return exactly(sizeof(std::uint64_t), "a clock of another length");
    case FrameKind::kEndpoint:
      require(head.bytes <= kMostEndpointBytes, "an adapter's address of another length");
      return static_cast<std::size_t>(head.bytes);
    case FrameKind::kAbandoned:
      return exactly(sizeof(std::uint64_t), "an exchange given up, of another length");
    case FrameKind::kTaken:
      require(partner_ != nullptr, "an answer where none is due");
      return exactly(sizeof(std::uint64_t), "an answer of another length");
    case FrameKind::kShare:
    case FrameKind::kWindow:
      throw BrokenRule("it sent a frame with an answer where none is due");
    case FrameKind::kNotice:
      require(head.bytes >= sizeof(NoticeHead) &&
                  head.bytes <= sizeof(NoticeHead) + sizeof(host::Notice),
              "a notice of another length");
      return static_cast<std::size_t>(head.bytes);
    case FrameKind::kRecord:
      return exactly(control_.record_format().words() * sizeof(std::uint64_t),
                     "a record of another length");
    case FrameKind::kCursors:
      require(head.bytes % sizeof(CursorBody) == 0 && head.bytes / sizeof(CursorBody) <= ranks,
              "cursors of another length");
      return static_cast<std::size_t>(head.bytes);
    case FrameKind::kUpdate:
      require(head.bytes >= sizeof(SlotHeader), "an update without a header");
      return sizeof(SlotHeader);
  }
  throw BrokenRule("it sent a frame of unknown kind " +
                   std::to_string(static_cast<std::uint32_t>(head.kind)));
}

// Returns false if the frame has to be taken again later, because it waits for another rank of this
// host.
bool Downlink::take(const FrameHead& head, std::span<const std::byte> body,
                    const std::shared_ptr<Attachment>& attachment) {
  if (head.kind == FrameKind::kTaken) {
    partner_->take(head, body);
    return true;
  }
  owes_answer_ = true;
  require(!has_left_, "more after its goodbye");
  switch (head.kind) {
    case FrameKind::kBeat:
      return true;
    case FrameKind::kNotice:
      return take_notice(body);
    case FrameKind::kAbandoned:
      take_abandoned(get<std::uint64_t>(body));
      break;
    case FrameKind::kRecord:
      take_record(body);
      return true;
    case FrameKind::kLeave:
      has_left_ = true;
      control_.mark(origin_.sender, host::State::kLeft);
      break;
    case FrameKind::kUpdate:
      return begin_update(head, body, attachment);
    case FrameKind::kClock:
      return changes_->take_clock(get<std::uint64_t>(body), attachment);
    case FrameKind::kCursors:
      if (attachment) take_cursors(body, *attachment->memory);
      return true;
    case FrameKind::kEndpoint:
      changes_->take_endpoint(body);
      return true;
    case FrameKind::kTaken:
    case FrameKind::kShare:
    case FrameKind::kWindow:
      return true;  // for the partner, or refused by length_of_fixed()
    case FrameKind::kClosed:
    case FrameKind::kDropped:
      if (attachment) {
        attachment->memory->closed(origin_.sender)
            .store(head.kind == FrameKind::kClosed ? host::SegmentMemory::kClosed
                                                   : host::SegmentMemory::kDropped,
                   std::memory_order_release);
      }
      break;
  }
  control_.ring(control_.locals());
  return true;
}

bool Downlink::take_notice(std::span<const std::byte> body) {
  const auto head = get<NoticeHead>(body);
  if (!board_) {
    const auto taken = origin_.take_copy(
        control_.board_table(origin_.sender),
        [this](std::size_t copy) { control_.reserve_board(origin_.sender, copy); });
    if (!taken) return false;
    board_ = BoardCopy{*taken, &control_.board_copy(origin_.sender, taken->copy), true};
  }
  host::Board& board = *board_->board;
  host::Notice& notice = board.notices[head.number % 2];
  require(head.what_bytes <= sizeof(notice.what) && head.bytes <= sizeof(notice.data) &&
              body.size() == sizeof(head) + head.what_bytes + head.bytes,
          "a notice of another length");
  const std::uint64_t posted = board.posted.load(std::memory_order_relaxed);
  // A connection begins with the last two notices; a copy of the board that was begun now has
  // neither.
  const bool may_begin = std::exchange(board_->is_first, false) && board_->taken.is_another;
  require(head.number <= posted + 1 || may_begin, "a notice ahead of its turn");
  if (head.number <= posted) return true;  // sent again on a new connection
  notice.what_bytes = head.what_bytes;
  notice.bytes = head.bytes;
  std::memcpy(notice.what, body.data() + sizeof(head), head.what_bytes);
  std::memcpy(notice.data, body.data() + sizeof(head) + head.what_bytes, head.bytes);
  board.posted.store(head.number, std::memory_order_release);
  control_.ring(control_.locals());
  return true;
}

void Downlink::take_abandoned(std::uint64_t number) {
  require(board_ && number <= board_->board->posted.load(std::memory_order_relaxed),
          "an exchange given up before it was posted to");
  raise_to(board_->board->abandoned, number);
}

void Downlink::take_record(std::span<const std::byte> body) {
  RecordFormat::Words words(body.size() / sizeof(std::uint64_t));
  std::memcpy(words.data(), body.data(), body.size());
  require(control_.record_format().unpack(words).has_value(), "an invalid record");
  RecordFormat::store(control_.record(origin_.sender), words);
}

void Downlink::take_cursors(std::span<const std::byte> body, const host::SegmentMemory& memory) {
  std::vector<int> senders;
  for (std::size_t at = 0; at < body.size(); at += sizeof(CursorBody)) {
    const auto given = get<CursorBody>(body, at);
    const auto rank = static_cast<int>(given.sender);
    require(given.sender < static_cast<std::uint32_t>(control_.size()) && control_.is_here(rank),
            "the cursor of a rank that is not here");
    Cursor& cursor = memory.box(rank).cursor(origin_.sender);
    // In the order of SlotReader::consume. Values that a new connection repeats change nothing, nor
    // do those that a rank stores late because it was stopped in the middle of this.
    raise_to(cursor.overwritten, given.overwritten);
    raise_to(cursor.folded, given.folded);
    raise_to(cursor.rejected, given.rejected);
    raise_to(cursor.ordinal, given.ordinal);
    raise_to(cursor.consumed, given.consumed);
    senders.push_back(rank);
  }
  control_.ring(senders);
}

void Downlink::release_board() noexcept {
  if (board_) control_.board_table(origin_.sender).release(board_->taken);
  board_.reset();
}

bool Downlink::begin_update(const FrameHead& head, std::span<const std::byte> body,
                            const std::shared_ptr<Attachment>& attachment) {
  payload_ = changes_->begin_update(head, body, attachment);
  if (!payload_) return false;
  is_long_ = payload_->missing >= kBuffer / 2;
  return true;
}

void Downlink::tend(const Attachments& attachments, std::uint64_t detached,
                    std::chrono::nanoseconds suspect_after, Clock::time_point now) {
  if (is_watched_ && !is_held_up() && now - std::max(last_heard_, watched_since_) > suspect_after)
    over(End::kDisconnected, "sent no heartbeat");
  const bool is_due = is_watched_ || owes_answer_;
  if (end_ == End::kNot) answer(is_due && now - last_answer_ > suspect_after / 4, now);
  if (let_go_ == detached) return;
  if (changes_->keep_only(attachments)) let_go_ = detached;
}

void Downlink::answer(bool is_due, Clock::time_point now) {
  if (is_due) {
    const FrameHead head{FrameKind::kTaken, 0, sizeof(taken_in_)};
    answers_.put(head, std::as_bytes(std::span(&taken_in_, 1)));
    answered_ = taken_in_;
    owes_answer_ = false;
    last_answer_ = now;
  }
  if (partner_ == nullptr) return answers_.send(*stream_);
  answers_.hand_over([this](std::span<const std::byte> bytes) { partner_->say(bytes); });
}

}  // namespace dstorm::remote
