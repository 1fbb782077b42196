// How a downlink works. take_in() reads from the connection into buffer_, and parse() takes whole
// frames out of it. The payload of a long update goes straight to its slot: begin_update() claims
// one in the copy of the sender's mailbox, later reads fill it, and finish_update() publishes it. A
// frame that has to wait for another rank of this host stays in the buffer (hold_up()).
//
// Every length, rank and iteration in a frame is checked before use. A frame that breaks the
// protocol ends the connection as kBroken; if this rank merely lacks something, the connection ends
// as kRefused, and the sender calls another rank of this host.
#include "dstorm/remote/downlink.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>

namespace dstorm::remote {
namespace {

// Frames are parsed in a buffer of this size. A large payload goes straight to its slot.
constexpr std::size_t kBuffer = 64 * 1024;
// After the head of a long payload, and after its end, at most this much is read at once. The next
// frame may be as long, and much of it would have to be copied.
constexpr std::size_t kBehind = 1024;
// The sender learns at least this often how far its bytes have come.
constexpr std::uint64_t kAnswerBytes = 1024 * 1024;
// Looks at a mailbox whose slots are all being read, before an update is passed over.
constexpr int kLooksForSlot = 64;

// An error that a rank with the job's key cannot cause, unless its memory is damaged.
class BrokenRule : public Error {
 public:
  using Error::Error;
};

template <class Part>
Part get(std::span<const std::byte> bytes, std::size_t at = 0) {
  Part part;
  std::memcpy(&part, bytes.data() + at, sizeof(part));
  return part;
}

void require(bool condition, const char* rule) {
  if (!condition) throw BrokenRule(std::string("it sent a frame with ") + rule);
}

}  // namespace

Downlink::Downlink(host::Control& control, const Settings& settings,
                   std::shared_ptr<tcp::Stream> stream, const tcp::Introduction& caller,
                   Clock::time_point now, std::span<const std::byte> unparsed)
    : control_(control),
      settings_(settings),
      stream_(std::move(stream)),
      caller_(caller),
      sender_(static_cast<int>(caller.rank)),
      made_(now),
      last_answer_(now) {
  const auto ranks = static_cast<std::size_t>(control.size());
  buffer_.resize(
      std::max({kBuffer, sizeof(FrameHead) + ranks * sizeof(CursorBody) + kLine,
                sizeof(FrameHead) + control.record_format().words() * 8, unparsed.size()}));
  std::copy(unparsed.begin(), unparsed.end(), buffer_.begin());
  end_of_data_ = unparsed.size();
  has_unparsed_ = !unparsed.empty();
  // Two ranks of a host may be called at the same time: the later call counts, whichever rank takes
  // it first.
  std::atomic<std::uint64_t>& link = control.member(sender_).link;
  for (std::uint64_t last = link.load(); last < caller.number;) {
    if (link.compare_exchange_weak(last, caller.number)) number_ = caller.number;
  }
  hear(now);
}

void Downlink::hear(Clock::time_point now) {
  last_heard_ = now;
  control_.member(sender_).heard.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  if (partner_ != nullptr) partner_->hear(now);
}

void Downlink::over(End end, std::string reason, bool in_order) {
  arriving_.reset();
  held_up_since_.reset();
  release_copies();
  // If the caller has called again, it gave up this connection before.
  if ((end == End::kLost || end == End::kBroken) && !is_current()) end = End::kReplaced;
  if (end != End::kLeft && !in_order) stream_->reset_at_end();
  queue_.reset();  // its adapter can write nothing more
  end_ = end;
  reason_ = std::move(reason);
  Uplink* const partner = std::exchange(partner_, nullptr);
  if (partner != nullptr) partner->partner_is_over(is_at_end_, reason_);
}

void Downlink::partner_is_over() {
  partner_ = nullptr;
  // If this side failed, it has asked for a reset already.
  if (end_ == End::kNot) over(End::kLost, "the connection has been given up", true);
}

bool Downlink::is_current() const {
  return control_.member(sender_).link.load(std::memory_order_acquire) == number_;
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
    // What a dead rank reached is settled for good (S6).
    if (!has_left_ && !control_.is_live(sender_)) {
      // An evicted sender may still have to learn of its eviction, from the partner.
      if (partner_ != nullptr && control_.state(sender_) == host::State::kEvicted) break;
      over(End::kLost, "it has been given up");
      break;
    }
    if (std::exchange(has_unparsed_, false)) {
      parse_whole(attachments, last_attached);
      if (has_unparsed_) break;
      continue;
    }
    std::array<iovec, 2> parts;
    std::size_t count = 0;
    const bool in_place = arriving_ && arriving_->data != nullptr;
    const bool is_in_parts = is_long_ && (in_place || !arriving_);
    if (in_place) parts[count++] = {arriving_->data, arriving_->missing};
    parts[count++] = {buffer_.data() + end_of_data_,
                      std::min(buffer_.size() - end_of_data_, is_in_parts ? kBehind : kBuffer)};
    std::size_t room = 0;
    for (std::size_t i = 0; i < count; ++i) room += parts[i].iov_len;
    const tcp::Moved moved = stream_->receive(std::span(parts).first(count));
    if (moved.bytes == 0) {
      is_at_end_ = moved.flow == tcp::Flow::kEnded;
      if (is_at_end_ && has_left_) {
        over(End::kLeft, "left");
      } else if (is_at_end_ && partner_ != nullptr && partner_->has_said_all()) {
        over(End::kReplaced, "has received the goodbye");
      } else if (is_at_end_) {
        over(End::kLost, "ended the connection");
      } else if (moved.flow == tcp::Flow::kFailed) {
        over(End::kLost, stream_->error());
      }
      break;
    }
    hear(now);
    taken += moved.bytes;
    taken_in_ += moved.bytes;
    std::size_t placed = 0;
    if (in_place) {
      placed = std::min(moved.bytes, arriving_->missing);
      arriving_->data += placed;
      arriving_->missing -= placed;
    }
    end_of_data_ += moved.bytes - placed;
    parse_whole(attachments, last_attached);
    // Fewer bytes than asked for: nothing is left, except perhaps the end, and epoll tells the
    // engine's thread of that.
    if (!to_the_end && moved.bytes < room && !stream_->has_buffered()) break;
  }
  try {
    if (end_ == End::kNot && queue_) announce_windows(attachments);
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
    if (arriving_) {
      const std::size_t part = std::min(arriving_->missing, rest.size());
      if (arriving_->data != nullptr) {
        std::memcpy(arriving_->data, rest.data(), part);
        arriving_->data += part;
      }
      arriving_->missing -= part;
      begin_ += part;
      if (arriving_->missing > 0) break;
      finish_update();
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

// Arrived bytes wait in the buffer and in the connection, but not for long: then the sender has to
// try another rank, to which it sends everything again, so nothing is lost.
void Downlink::hold_up() {
  has_unparsed_ = true;
  const auto now = Clock::now();
  if (!held_up_since_) held_up_since_ = now;
  if (now - *held_up_since_ > settings_.silence / 2) {
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
                             head.kind == FrameKind::kCursors || head.kind == FrameKind::kClosed;
  require(needs_segment == (head.segment != 0), "a segment where none belongs, or without one");
  switch (head.kind) {
    case FrameKind::kBeat:
    case FrameKind::kClosed:
    case FrameKind::kLeave:
      return exactly(0, "a body where none belongs");
    case FrameKind::kClock:
      return exactly(sizeof(std::uint64_t), "a clock of another length");
    case FrameKind::kEndpoint:
      return exactly(sizeof(EndpointBody), "an adapter's address of another length");
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
  require(!has_left_, "more after its goodbye");
  const bool is_by_adapter = settings_.rdma[static_cast<std::size_t>(sender_)];
  require(!is_by_adapter || (head.kind != FrameKind::kUpdate && head.kind != FrameKind::kClock),
          "an update that its adapter should have written");
  switch (head.kind) {
    case FrameKind::kBeat:
      return true;
    case FrameKind::kNotice:
      return take_notice(body);
    case FrameKind::kRecord:
      take_record(body);
      return true;
    case FrameKind::kLeave:
      has_left_ = true;
      control_.mark(sender_, host::State::kLeft);
      break;
    case FrameKind::kUpdate:
      return begin_update(head, body, attachment);
    case FrameKind::kClock:
      if (!attachment) return true;  // every rank of this host has closed it
      {
        const auto clock = get<std::uint64_t>(body);
        require(clock <= kMostIteration, "an invalid iteration");
        Copy* const copy = copy_of(attachment);
        if (copy == nullptr) return false;
        if (clock > copy->box.clock().load(std::memory_order_relaxed)) copy->writer.advance(clock);
      }
      break;
    case FrameKind::kCursors:
      if (attachment) take_cursors(body, *attachment->memory);
      return true;
    case FrameKind::kEndpoint:
      take_endpoint(body);
      return true;
    case FrameKind::kTaken:
    case FrameKind::kShare:
    case FrameKind::kWindow:
      return true;  // for the partner, or refused by length_of_fixed()
    case FrameKind::kClosed:
      if (attachment) attachment->memory->closed(sender_).store(1, std::memory_order_release);
      break;
  }
  control_.ring(control_.locals());
  return true;
}

bool Downlink::take_notice(std::span<const std::byte> body) {
  const auto head = get<NoticeHead>(body);
  if (!board_) {
    const auto taken = take_copy(control_.board_table(sender_), [this](std::size_t copy) {
      control_.reserve_board(sender_, copy);
    });
    if (!taken) return false;
    board_ = BoardCopy{*taken, &control_.board_copy(sender_, taken->copy), true};
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

void Downlink::take_record(std::span<const std::byte> body) {
  RecordFormat::Words words(body.size() / sizeof(std::uint64_t));
  std::memcpy(words.data(), body.data(), body.size());
  require(control_.record_format().unpack(words).has_value(), "an invalid record");
  RecordFormat::store(control_.record(sender_), words);
}

void Downlink::take_cursors(std::span<const std::byte> body, const host::SegmentMemory& memory) {
  std::vector<int> senders;
  for (std::size_t at = 0; at < body.size(); at += sizeof(CursorBody)) {
    const auto given = get<CursorBody>(body, at);
    const auto rank = static_cast<int>(given.sender);
    require(given.sender < static_cast<std::uint32_t>(control_.size()) && control_.is_local(rank),
            "the cursor of a rank that is not here");
    Cursor& cursor = Mailbox(memory.mailbox(rank), memory.shape().mailbox).cursor(sender_);
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

// Takes a copy to write, or returns nothing while the rank that holds it is likely to release it
// soon, as a rank does when it sees that its connection has been replaced.
template <class Prepare>
std::optional<CopyTable::Taken> Downlink::take_copy(const CopyTable& table, Prepare&& prepare) {
  const std::vector<int>& locals = control_.locals();
  const auto state = [&](int place) {
    const auto index = static_cast<std::size_t>(place);
    return index < locals.size() ? control_.state(locals[index]) : host::State::kDead;
  };
  const bool is_early = Clock::now() - made_ < settings_.silence / 8;
  const auto place = std::lower_bound(locals.begin(), locals.end(), control_.rank());
  const CopyTable::Taken taken = table.take(
      number_, static_cast<int>(place - locals.begin()),
      [&](int other) { return state(other) == host::State::kDead; },
      [&](int other) { return is_early && state(other) == host::State::kAlive; },
      std::forward<Prepare>(prepare));
  if (taken.outcome == CopyTable::Outcome::kTaken) return taken;
  return std::nullopt;
}

Downlink::Copy* Downlink::copy_of(const std::shared_ptr<const Attachment>& attachment) {
  const auto found = copies_.find(attachment->id);
  if (found != copies_.end()) return &found->second;
  const host::SegmentMemory& memory = *attachment->memory;
  const Copies copies = memory.copies(sender_);
  const auto taken =
      take_copy(copies.table(), [&](std::size_t copy) { memory.reserve_copy(sender_, copy); });
  if (!taken) return nullptr;
  const Mailbox box = copies.box(taken->copy);
  Copy made{attachment, *taken, box, SlotWriter::of_copy(box, sender_)};
  return &copies_.emplace(attachment->id, std::move(made)).first->second;
}

void Downlink::release_copies() noexcept {
  for (const auto& [id, copy] : copies_) {
    copy.attachment->memory->copies(sender_).table().release(copy.taken);
  }
  copies_.clear();
  if (board_) control_.board_table(sender_).release(board_->taken);
  board_.reset();
}

bool Downlink::begin_update(const FrameHead& head, std::span<const std::byte> body,
                            const std::shared_ptr<Attachment>& attachment) {
  Arriving arriving;
  arriving.header = get<SlotHeader>(body);
  arriving.missing = static_cast<std::size_t>(arriving.header.payload_bytes);
  const std::span<const std::byte> tickets = body.subspan(sizeof(SlotHeader));
  require(tickets.size() % sizeof(Ticketed) == 0 &&
              head.bytes == body.size() + arriving.header.payload_bytes,
          "an update of another length");
  is_long_ = arriving.missing >= kBuffer / 2;
  require(arriving.header.iteration <= kMostIteration, "an invalid iteration");
  require(arriving.header.sender == static_cast<std::uint32_t>(sender_), "another sender's name");
  for (std::size_t at = 0; at < tickets.size(); at += sizeof(Ticketed)) {
    const auto given = get<Ticketed>(tickets, at);
    const auto rank = static_cast<int>(given.receiver);
    require(given.receiver < static_cast<std::uint32_t>(control_.size()) && control_.is_local(rank),
            "a receiver that is not here");
    require(arriving.to.empty() || arriving.to.back().rank < rank, "its receivers out of order");
    arriving.to.push_back({rank, given.ordinal});
  }
  if (attachment) {
    const host::SegmentMemory& memory = *attachment->memory;
    require(arriving.header.payload_bytes <= memory.shape().mailbox.slot_bytes(),
            "a payload that fits no slot");
    Copy* const copy = copy_of(attachment);
    if (copy == nullptr) return false;
    if (arriving.header.iteration > copy->box.clock().load(std::memory_order_relaxed)) {
      arriving.attachment = attachment;
      arriving.slot = copy->writer.begun(arriving.header.iteration);
      arriving.is_begun = arriving.slot >= 0;
      if (!arriving.is_begun) arriving.slot = claim(copy->writer, memory);
      // QUEUE: the sender has evicted a rank that holds a slot, and the ranks of this host are
      // about to read that in its record. LATEST: the update has been overwritten before it could
      // be folded, as when a sender on this host finds no slot; its receivers see that by the
      // ordinals.
      if (arriving.slot < 0 && memory.shape().policy == Policy::kQueue) return false;
      if (arriving.slot >= 0 && !arriving.is_begun) {
        arriving.data = copy->writer.payload(arriving.slot);
      }
    }
  }
  arriving_ = std::move(arriving);
  return true;
}

int Downlink::claim(SlotWriter& writer, const host::SegmentMemory& memory) const {
  const Policy policy = memory.shape().policy;
  const int looks = policy == Policy::kLatest ? kLooksForSlot : 0;
  const auto live = [&](int r) { return control_.is_live(r) && !memory.is_closed(r); };
  int slot = writer.claim(policy, live);
  for (int look = 0; slot < 0 && look < looks; ++look) {
    sched_yield();
    slot = writer.claim(policy, live);
  }
  return slot;
}

void Downlink::finish_update() {
  ++updates_;
  if (arriving_->attachment) {
    SlotWriter& writer = copies_.at(arriving_->attachment->id).writer;
    if (arriving_->is_begun) {
      writer.complete(arriving_->slot, arriving_->to);
    } else if (arriving_->slot >= 0) {
      writer.publish_copy(arriving_->slot, arriving_->header, arriving_->to);
    } else {
      writer.advance(arriving_->header.iteration);
    }
    control_.ring(control_.locals());
  }
  arriving_.reset();
}

void Downlink::tend(const Attachments& attachments, std::uint64_t detached,
                    std::chrono::nanoseconds silence, Clock::time_point now) {
  if (!is_held_up() && now - last_heard_ > silence) over(End::kLost, "sent no heartbeat");
  if (end_ == End::kNot) answer(now - last_answer_ > silence / 4, now);
  if (let_go_ == detached) return;
  // Drops the copies of removed segments, except the one that is being written.
  std::erase_if(copies_, [&](const auto& item) {
    return !attachments.contains(item.first) &&
           !(arriving_ && arriving_->attachment == item.second.attachment);
  });
  if (!arriving_) let_go_ = detached;  // else one copy may have stayed
}

// ---- RDMA ----

void Downlink::hear_adapter(const verbs::DeviceEvent& event) {
  if (end_ != End::kNot || !queue_) return;
  queue_->hear(event);
  if (queue_->failed()) over(End::kRefused, "RDMA: " + queue_->failed()->what);
}

void Downlink::take_endpoint(std::span<const std::byte> body) {
  const auto given = get<EndpointBody>(body);
  const FrameHead head{FrameKind::kEndpoint, 0, body.size()};
  require(settings_.rdma[static_cast<std::size_t>(sender_)] && !queue_,
          "an adapter's address where none is due");
  require(
      is_proof(std::as_bytes(std::span(given.proof)),
               prove(settings_.key, head, std::as_bytes(std::span(&given.endpoint, 1)), caller_)),
      "an adapter's address that was changed on the way");
  queue_.emplace(*settings_.device, verbs::QueueOptions{.depth = 1});
  queue_->connect(given.endpoint);
  const verbs::Endpoint own = queue_->local();
  put_answer(FrameKind::kEndpoint, 0, std::as_bytes(std::span(&own, 1)), true);
}

// Tells the sender where it may write: its own inbox, and its cursors in the mailboxes of this
// host.
void Downlink::announce_windows(const Attachments& attachments) {
  for (auto next = attachments.upper_bound(announced_); next != attachments.end(); ++next) {
    Attachment& attachment = *next->second;
    const verbs::Region& inbox = attachment.inbox_of(sender_, *settings_.device);
    std::vector<verbs::Target> targets{{inbox.address(), inbox.rkey()}};
    for (const verbs::Region& cursors : attachment.cursors) {
      targets.push_back({cursors.address(), cursors.rkey()});
    }
    put_answer(FrameKind::kWindow, attachment.id, std::as_bytes(std::span(targets)), true);
    announced_ = attachment.id;
  }
}

// ---- answers ----

void Downlink::put_answer(FrameKind kind, std::uint32_t segment, std::span<const std::byte> body,
                          bool proved) {
  const FrameHead head{kind, segment, body.size() + (proved ? sizeof(tcp::Mac) : 0)};
  const auto put = [this](std::span<const std::byte> bytes) {
    answers_.insert(answers_.end(), bytes.begin(), bytes.end());
  };
  put(std::as_bytes(std::span(&head, 1)));
  put(body);
  if (proved) put(prove(settings_.key, head, body, caller_));
}

void Downlink::answer(bool is_due, Clock::time_point now) {
  if (is_due) {
    put_answer(FrameKind::kTaken, 0, std::as_bytes(std::span(&taken_in_, 1)), false);
    answered_ = taken_in_;
    last_answer_ = now;
  }
  if (partner_ != nullptr) {
    partner_->say(answers_);
    answers_.clear();
    return;
  }
  while (answers_at_ < answers_.size()) {
    const iovec part{answers_.data() + answers_at_, answers_.size() - answers_at_};
    const tcp::Moved moved = stream_->send({&part, 1});
    if (moved.bytes == 0) return;  // what the sender sent before it ended is still to be read
    answers_at_ += moved.bytes;
  }
  answers_.clear();
  answers_at_ = 0;
}

}  // namespace dstorm::remote
