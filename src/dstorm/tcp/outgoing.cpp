#include "dstorm/tcp/outgoing.hpp"

#include <algorithm>
#include <cstring>

namespace dstorm::tcp {
namespace {

// Small frames are gathered up to this much before they are sent.
constexpr std::size_t kBatch = 64 * 1024;
// A payload up to this long is copied among them, which is cheaper than a part of its own.
constexpr std::size_t kCopied = 8 * 1024;

}  // namespace

Outgoing::Outgoing(shm::Control& control, const Settings& settings, const std::vector<int>& host)
    : control_(control),
      settings_(settings),
      host_(host),
      next_(static_cast<std::size_t>(control.rank()) % host.size()) {}

bool Outgoing::call(std::uint64_t number, Clock::time_point now) {
  hang_up();
  for (std::size_t tried = 0; tried < host_.size(); ++tried, next_ = (next_ + 1) % host_.size()) {
    if (!control_.is_live(host_[next_])) continue;
    proxy_ = host_[next_];
    const Address& to = settings_.addresses[static_cast<std::size_t>(proxy_)];
    const auto rank = static_cast<std::uint32_t>(control_.rank());
    const auto callee = static_cast<std::uint32_t>(proxy_);
    stream_ = Stream::connect(to, settings_.own, settings_.tls, settings_.silence);
    handshake_ = Handshake::caller(settings_.key, {rank, callee, 0, number}, to);
    state_ = State::kCalling;
    last_call_ = last_heard_ = last_sent_ = now;
    if (!down_since_) down_since_ = now;
    return true;
  }
  return false;
}

void Outgoing::hang_up() {
  if (reading_ != nullptr) reading_->carrier.let_go();
  reading_ = nullptr;
  payload_ = {};
  small_.clear();
  small_at_ = 0;
  carried_.clear();
  notice_ = 0;
  said_goodbye_ = false;
  sent_bytes_ = answered_bytes_ = 0;
  answer_at_ = 0;
  handshake_.reset();
  stream_.reset();
  state_ = State::kOver;
}

// The next call goes to the next rank.
void Outgoing::fail(const std::string& why) {
  reason_ = "rank " + std::to_string(proxy_) + " at " +
            settings_.addresses[static_cast<std::size_t>(proxy_)].text() + ": " + why;
  stream_->reset_at_end();
  hang_up();
  next_ = (next_ + 1) % host_.size();
}

bool Outgoing::advance_handshake() {
  switch (handshake_->advance(*stream_)) {
    case Handshake::Step::kWaiting:
      return false;
    case Handshake::Step::kRefused:
      fail(handshake_->reason());
      return false;
    case Handshake::Step::kDone:
      break;
  }
  handshake_.reset();
  state_ = State::kUp;
  down_since_.reset();
  return true;
}

void Outgoing::pump(const Attachments& attachments, bool leaving, Clock::time_point now) {
  if (state_ == State::kCalling && !advance_handshake()) return;
  if (state_ != State::kUp) return;
  if (stream_->wants_write()) stream_->send({});
  take_answers(now);
  while (state_ == State::kUp && fill(attachments, leaving)) {
    send(now);
    if (small_at_ < small_.size() || !payload_.empty()) return;  // as much as it takes for now
  }
}

bool Outgoing::tend(Clock::time_point now) {
  if (state_ != State::kCalling && state_ != State::kUp) return false;
  if (now - last_heard_ > settings_.silence) {
    fail(state_ == State::kCalling ? "no answer" : "silent");
    return false;
  }
  const bool idle = small_at_ == small_.size() && payload_.empty();
  if (state_ == State::kUp && idle && !said_goodbye_ && now - last_sent_ > settings_.silence / 4) {
    put_head(FrameKind::kBeat, 0, 0);
    send(now);
  }
  return state_ == State::kCalling || state_ == State::kUp;
}

bool Outgoing::make_room(std::uint32_t segment) {
  if (reading_ == nullptr || reading_->attachment->id != segment) return false;
  staged_.assign(payload_.begin(), payload_.end());
  payload_ = staged_;
  reading_->carrier.let_go();
  reading_ = nullptr;
  return true;
}

// ---- what the callee answers ----

void Outgoing::take_answers(Clock::time_point now) {
  for (;;) {
    const iovec part{answer_.data() + answer_at_, answer_.size() - answer_at_};
    const Moved moved = stream_->receive({&part, 1});
    if (moved.bytes == 0) {
      if (moved.flow == Flow::kEnded && said_goodbye_) {
        hang_up();
        state_ = State::kDone;
      } else if (moved.flow == Flow::kEnded) {
        fail("it ended the connection");
      } else if (moved.flow == Flow::kFailed) {
        fail(stream_->error());
      }
      return;
    }
    last_heard_ = now;
    answer_at_ += moved.bytes;
    if (answer_at_ < answer_.size()) continue;
    answer_at_ = 0;
    std::uint64_t taken_in = 0;
    std::memcpy(&taken_in, answer_.data(), sizeof(taken_in));
    if (taken_in < answered_bytes_ || taken_in > sent_bytes_) {
      return fail("answered with a number that cannot be");
    }
    answered_bytes_ = taken_in;
  }
}

// ---- what this rank says ----

template <class Part>
void Outgoing::put(const Part& part) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&part);
  small_.insert(small_.end(), bytes, bytes + sizeof(part));
}

void Outgoing::put_head(FrameKind kind, std::uint32_t segment, std::uint64_t bytes) {
  put(FrameHead{kind, segment, bytes});
}

// True if there is something to send. Notices go last, and a goodbye after them: who sees a rank at
// a barrier has what it sent before.
bool Outgoing::fill(const Attachments& attachments, bool leaving) {
  if (small_at_ < small_.size() || !payload_.empty()) return true;
  small_.clear();
  small_at_ = 0;
  const std::uint64_t posted =
      control_.member(control_.rank()).posted.load(std::memory_order_acquire);
  std::erase_if(carried_, [&](const auto& item) { return !attachments.contains(item.first); });
  for (const auto& [id, attachment] : attachments) {
    if (!is_through(*attachment) && !fill_segment(carried(attachment))) return true;
  }
  fill_notices(posted);
  if (leaving && !said_goodbye_) {
    put_head(FrameKind::kLeave, 0, 0);
    said_goodbye_ = true;
  }
  return !small_.empty();
}

Outgoing::Carried& Outgoing::carried(const std::shared_ptr<Attachment>& attachment) {
  const auto found = carried_.find(attachment->id);
  if (found != carried_.end()) return found->second;
  const shm::SegmentMemory& memory = *attachment->memory;
  const Mailbox own(memory.mailbox(control_.rank()), memory.shape().mailbox);
  Carried& made =
      carried_.emplace(attachment->id, Carried{attachment, SlotCarrier(own, host_)}).first->second;
  made.cursors.resize(host_.size());
  return made;
}

bool Outgoing::is_through(const Attachment& attachment) const {
  const auto found = carried_.find(attachment.id);
  return found != carried_.end() &&
         found->second.changes == attachment.changes.load(std::memory_order_acquire);
}

// False if there is more than one sending takes.
bool Outgoing::fill_segment(Carried& carried) {
  const Attachment& attachment = *carried.attachment;
  const std::uint64_t changes = attachment.changes.load(std::memory_order_acquire);
  fill_cursors(carried);
  // Up to the clock: what is beyond it, its sender is still about to publish (S6).
  const std::uint64_t clock = carried.carrier.clock();
  for (int slot; (slot = carried.carrier.take(carried.sent)) >= 0;) {
    const SlotHeader header = carried.carrier.header(slot);
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
    if (payload.size() > kCopied) {
      payload_ = payload;
      reading_ = &carried;
      return false;
    }
    small_.insert(small_.end(), payload.begin(), payload.end());
    carried.carrier.let_go();
    if (small_.size() >= kBatch) return false;
  }
  if (clock > carried.clock) {
    put_head(FrameKind::kClock, attachment.id, sizeof(clock));
    put(clock);
    carried.clock = clock;
  }
  if (!carried.closed && attachment.memory->is_closed(control_.rank())) {
    put_head(FrameKind::kClosed, attachment.id, 0);
    carried.closed = true;
  }
  carried.changes = changes;
  return true;
}

void Outgoing::fill_cursors(Carried& carried) {
  const Attachment& attachment = *carried.attachment;
  const std::size_t head_at = small_.size();
  std::size_t count = 0;
  put_head(FrameKind::kCursors, attachment.id, 0);
  for (std::size_t i = 0; i < host_.size(); ++i) {
    const Mailbox box(attachment.memory->mailbox(host_[i]), attachment.memory->shape().mailbox);
    const Cursor& cursor = box.cursor(control_.rank());
    CursorBody body{};
    body.consumed = cursor.consumed.load(std::memory_order_acquire);
    body.folded = cursor.folded.load(std::memory_order_relaxed);
    body.overwritten = cursor.overwritten.load(std::memory_order_relaxed);
    body.rejected = cursor.rejected.load(std::memory_order_relaxed);
    body.ordinal = cursor.ordinal.load(std::memory_order_relaxed);
    body.sender = static_cast<std::uint32_t>(host_[i]);
    if (body.consumed == carried.cursors[i].consumed &&
        body.ordinal == carried.cursors[i].ordinal) {
      continue;
    }
    put(body);
    carried.cursors[i] = body;
    ++count;
  }
  if (count == 0) return small_.resize(head_at);
  const FrameHead head{FrameKind::kCursors, attachment.id, count * sizeof(CursorBody)};
  std::memcpy(small_.data() + head_at, &head, sizeof(head));
}

// After a new connection the last two: others may still be at the exchange before this rank's last.
void Outgoing::fill_notices(std::uint64_t posted) {
  const shm::Member& own = control_.member(control_.rank());
  for (std::uint64_t n = std::max(notice_ + 1, posted < 2 ? 1 : posted - 1); n <= posted; ++n) {
    const shm::Notice& notice = own.notices[n % 2];
    const NoticeHead head{n, notice.what_bytes, notice.bytes};
    put_head(FrameKind::kNotice, 0, sizeof(head) + head.what_bytes + head.bytes);
    put(head);
    const auto* what = reinterpret_cast<const std::byte*>(notice.what);
    small_.insert(small_.end(), what, what + head.what_bytes);
    small_.insert(small_.end(), notice.data, notice.data + head.bytes);
    notice_ = n;
  }
}

void Outgoing::send(Clock::time_point now) {
  while (small_at_ < small_.size() || !payload_.empty()) {
    const std::array parts{
        iovec{small_.data() + small_at_, small_.size() - small_at_},
        iovec{const_cast<std::byte*>(payload_.data()), payload_.size()}};
    const bool has_small = small_at_ < small_.size();
    const Moved moved =
        stream_->send(std::span(parts).subspan(has_small ? 0 : 1, has_small && !payload_.empty() ? 2 : 1));
    if (moved.flow != Flow::kOpen) return fail(stream_->error());
    if (moved.bytes == 0) return;
    last_sent_ = now;
    sent_bytes_ += moved.bytes;
    const std::size_t of_small = std::min(moved.bytes, small_.size() - small_at_);
    small_at_ += of_small;
    payload_ = payload_.subspan(moved.bytes - of_small);
    if (payload_.empty() && reading_ != nullptr && small_at_ == small_.size()) {
      reading_->carrier.let_go();
      reading_ = nullptr;
    }
  }
  if (said_goodbye_) stream_->end_writing();
}

}  // namespace dstorm::tcp
