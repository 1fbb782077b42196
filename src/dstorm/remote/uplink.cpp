// How an uplink works. pump() drives it. While the connection is being made, pump() advances the
// handshake. Then it repeats: fill() puts frames into the outbox, and send() gives them to the
// socket, until there is nothing to send or the socket is full.
//
// The backlog lists the segments with changes that have not been sent. The transport's ChangeSender
// sends them: as frames of this connection, or by writes of an adapter. Membership records,
// notices, heartbeats and the goodbye always go over the connection.
//
// The answers of the callee (uplink_answers.cpp) say how many bytes it has taken in. A connection
// that fails is given up; call() then goes to the next rank of the host, to which this rank sends
// everything again.
#include "dstorm/remote/uplink.hpp"

#include <algorithm>

#include "dstorm/recorder/recorder.hpp"
#include "dstorm/remote/downlink.hpp"
#include "dstorm/remote/transport_choice.hpp"

namespace dstorm::remote {
namespace {

// How long a rank waits to be called before it calls by itself; and the time between two trials
// whether it can.
constexpr std::chrono::seconds kAwaited{1};
constexpr std::chrono::milliseconds kBetweenTrials{20};

}  // namespace

Uplink::Uplink(host::Control& control, const Settings& settings, const std::vector<int>& host)
    : control_(control),
      settings_(settings),
      host_(host),
      next_(first_proxy(control.rank(), host)),
      backlog_(control, host),
      changes_(make_change_sender({control, settings, host, backlog_, outbox_})) {}

// After a failure: two ranks in turn that are given three quarters of a silence each take longer
// than the silence after which the host suspects this rank. Each second time round there is no
// haste, in case the ranks are only slow.
bool Uplink::is_in_haste() const noexcept {
  return host_.size() > 1 && failed_ > 0 && failed_ / host_.size() % 2 == 0;
}

// The index of the next live rank. In haste one that is silent is passed over where this host has
// just heard from another.
std::optional<std::size_t> Uplink::choose(Clock::time_point now) const {
  const auto is_silent = [&](int r) {
    const std::chrono::nanoseconds heard(control_.member(r).heard.load(std::memory_order_relaxed));
    return now.time_since_epoch() - heard > settings_.suspect_after / 2;
  };
  std::optional<std::size_t> passed_over;
  for (std::size_t tried = 0; tried < host_.size(); ++tried) {
    const std::size_t index = (next_ + tried) % host_.size();
    if (!control_.is_live(host_[index])) continue;
    if (!is_in_haste() || !is_silent(host_[index])) return index;
    if (!passed_over) passed_over = index;
  }
  return passed_over;
}

bool Uplink::call(std::uint64_t number, Clock::time_point now) {
  hang_up();
  const std::optional<std::size_t> chosen = choose(now);
  if (!chosen) return false;
  next_ = *chosen;
  proxy_ = host_[next_];
  const net::Address& to = settings_.addresses[static_cast<std::size_t>(proxy_)];
  const auto rank = static_cast<std::uint32_t>(control_.rank());
  const auto callee = static_cast<std::uint32_t>(proxy_);
  stream_ = std::make_shared<net::Stream>(
      net::Stream::connect(to, settings_.own, settings_.tls, settings_.suspect_after));
  call_ = {rank, callee, number};
  handshake_ = net::Handshake::caller(settings_.key, call_, to);
  state_ = State::kCalling;
  last_call_ = last_heard_ = last_sent_ = now;
  if (!down_since_) down_since_ = now;
  return true;
}

void Uplink::await(int proxy, Clock::time_point now) {
  proxy_ = proxy;
  state_ = State::kAwaiting;
  last_call_ = now;
  down_since_ = now;
  reason_ = describe_proxy() + ": no answer";
  try_to_call(now);
}

void Uplink::try_to_call(Clock::time_point now) {
  trial_ = net::Stream::connect(settings_.addresses[static_cast<std::size_t>(proxy_)],
                                settings_.own, nullptr, settings_.suspect_after);
  last_trial_ = now;
}

bool Uplink::can_call(Clock::time_point now) {
  if (!trial_) return state_ == State::kUp;
  const net::Moved moved = trial_->send({});
  if (moved.flow == net::Flow::kOpen && !trial_->wants_write()) {
    trial_.reset();
    note_call(0);
    return state_ == State::kUp;
  }
  if (moved.flow != net::Flow::kOpen) {
    reason_ = describe_proxy() + ": " + trial_->error();
    if (now - last_trial_ > kBetweenTrials) {
      note_call(trial_->code());
      try_to_call(now);
    }
  }
  return false;
}

void Uplink::share(Downlink& partner, std::uint64_t number, Clock::time_point now) {
  join(partner);
  stream_ = partner.stream();
  call_ = {static_cast<std::uint32_t>(control_.rank()), static_cast<std::uint32_t>(proxy_), number};
  state_ = State::kUp;
  failed_ = 0;
  down_since_.reset();
  last_heard_ = last_sent_ = now;
  outbox_.put_proved(settings_.key, partner.call(), FrameKind::kShare,
                     std::as_bytes(std::span(&number, 1)));
}

void Uplink::say(std::span<const std::byte> answer) {
  if (said_goodbye_) return;
  outbox_.put_bytes(answer);
}

void Uplink::part() {
  Downlink* const partner = std::exchange(partner_, nullptr);
  if (partner != nullptr) partner->partner_is_over();
}

void Uplink::partner_is_over(bool in_order, const std::string& why) {
  partner_ = nullptr;
  if (in_order && has_said_all()) {
    hang_up();
    state_ = State::kDone;
  } else if (in_order) {
    give_up(why);
  } else {
    fail(why);
  }
}

void Uplink::hang_up() {
  part();
  shared_.reset();
  trial_.reset();
  changes_->end();  // before the slots are released
  backlog_.clear();
  outbox_.clear();
  notice_ = abandoned_ = beat_ = 0;
  said_goodbye_ = false;
  evicted_since_.reset();
  answered_bytes_ = asked_bytes_ = 0;
  answers_end_ = 0;
  handshake_.reset();
  stream_.reset();
  state_ = State::kOver;
}

void Uplink::fail(const std::string& why) {
  changes_->note_failure();
  turned_away_ = stream_->is_closed_there() ? turned_away_ + 1 : 0;
  if (state_ == State::kCalling && stream_->code() != 0) note_call(stream_->code());
  stream_->reset_at_end();
  give_up(why);
}

void Uplink::note_call(int error) {
  if (settings_.recorder == nullptr) return;
  const net::Address& to = settings_.addresses[static_cast<std::size_t>(proxy_)];
  settings_.recorder->called(proxy_, to.port(), error);
}

std::string Uplink::describe_proxy() const {
  return "rank " + std::to_string(proxy_) + " at " +
         settings_.addresses[static_cast<std::size_t>(proxy_)].text();
}

// Gives up this connection. The next call goes to the next rank of the host.
void Uplink::give_up(const std::string& why) {
  if (state_ == State::kUp) disconnected_ = proxy_;
  reason_ = describe_proxy() + ": " + why;
  hang_up();
  ++failed_;
  next_ = (next_ + 1) % host_.size();
}

// Moves the handshake on. Returns whether the connection is up.
bool Uplink::advance_handshake() {
  switch (handshake_->advance(*stream_)) {
    case net::Handshake::Step::kWaiting:
      return false;
    case net::Handshake::Step::kRefused:
      fail(handshake_->reason());
      return false;
    case net::Handshake::Step::kDone:
      break;
  }
  handshake_.reset();
  state_ = State::kUp;
  failed_ = 0;
  down_since_.reset();
  note_call(0);
  try {
    changes_->begin(call_);
  } catch (const Error& error) {
    fail(error.what());
  }
  return state_ == State::kUp;
}

void Uplink::pump(const Attachments& attachments, bool leaving, bool with_answers, bool may_lag,
                  Clock::time_point now) {
  if (state_ == State::kCalling && !advance_handshake()) return;
  if (state_ != State::kUp) return;
  if (stream_->wants_write()) stream_->send({});
  if (with_answers && partner_ == nullptr) take_answers(now);
  do {
    awaits_adapter_ = false;
    while (state_ == State::kUp && fill(attachments, leaving, now)) {
      send(now);
      if (is_blocked()) break;  // as much as the connection takes for now
    }
  } while (state_ == State::kUp && reap(now) && awaits_adapter_);
  outbox_.hurry();  // frames put there meanwhile go at once
  if (state_ == State::kUp && outbox_.lags() && !may_lag) {
    stream_->push();
    outbox_.note_pushed();
  }
}

// Returns whether changes have arrived since the last call. Makes adapter_fd() report further ones.
bool Uplink::reap(Clock::time_point now) {
  try {
    return changes_->reap(awaits_adapter_, now);
  } catch (const Error& error) {
    fail(error.what());
    return false;
  }
}

bool Uplink::tend(Clock::time_point now) {
  if (state_ == State::kAwaiting &&
      (!control_.is_live(proxy_) ||
       now - last_call_ >
           std::min<std::chrono::nanoseconds>(settings_.suspect_after / 2, kAwaited))) {
    give_up("no call came");
  }
  if (state_ != State::kCalling && state_ != State::kUp) return false;
  if (control_.state(proxy_) == host::State::kEvicted) {
    // The evicted proxy is to read this in this rank's record, which a reset could destroy. So the
    // connection stays for a while, unless other ranks of the host need a proxy.
    if (!evicted_since_) evicted_since_ = now;
    if (is_needed() || now - *evicted_since_ > settings_.suspect_after / 4) {
      fail("evicted");
      return false;
    }
  }
  // Early enough for another proxy to report that this rank is well, before its host suspects this
  // rank.
  if (is_silent(now)) {
    fail(state_ == State::kCalling ? "no answer" : "no heartbeat");
    return false;
  }
  if (state_ != State::kUp) return true;
  try {
    changes_->tend(now);
  } catch (const Error& error) {
    fail(error.what());
    return false;
  }
  if (is_watched_ && !is_blocked() && !said_goodbye_ &&
      now - last_sent_ > settings_.suspect_after / 8) {
    outbox_.put_head(FrameKind::kBeat, 0, 0);
    send(now);
  }
  return state_ == State::kUp;
}

void Uplink::watch(bool is_watched, Clock::time_point now) noexcept {
  if (is_watched && !is_watched_) due_since_ = now;
  is_watched_ = is_watched;
}

// A callee that is not watched has nothing to say unless it owes an answer.
bool Uplink::is_silent(Clock::time_point now) const noexcept {
  const bool is_due = is_watched_ || state_ == State::kCalling || answered_bytes_ < asked_bytes_;
  const auto limit = state_ == State::kCalling && is_in_haste() ? settings_.suspect_after / 8
                                                                : settings_.suspect_after * 3 / 4;
  return is_due && now - std::max(last_heard_, due_since_) > limit;
}

bool Uplink::is_needed() const noexcept {
  return std::any_of(host_.begin(), host_.end(), [this](int r) { return control_.is_live(r); });
}

bool Uplink::is_done_with(const Attachment& attachment) const {
  if (state_ == State::kDone || !is_needed()) return true;
  const Carried* const found = backlog_.find(attachment.id);
  if (found == nullptr || found->closed_at == 0 || !backlog_.is_through(attachment)) return false;
  // Changes that are still on their way would have to be sent again if the connection broke.
  return answered_bytes_ >= found->closed_at || !backlog_.has_receiver(attachment);
}

// ---- frames ----

// Returns whether there is something to send. Notices go last, and a goodbye after them. So a rank
// that sees this rank at a barrier has everything that this rank sent before.
bool Uplink::fill(const Attachments& attachments, bool leaving, Clock::time_point now) {
  backlog_.begin(attachments);
  if (is_blocked()) return true;
  outbox_.begin();
  const bool has_frames = put_frames(attachments, leaving, now);
  if (is_blocked()) {
    if (answered_bytes_ >= asked_bytes_) due_since_ = now;
    asked_bytes_ = outbox_.end();
  }
  return has_frames;
}

bool Uplink::put_frames(const Attachments& attachments, bool leaving, Clock::time_point now) {
  using Progress = ChangeSender::Progress;
  fill_record();
  const std::uint64_t posted =
      control_.member(control_.rank()).posted.load(std::memory_order_acquire);
  switch (changes_->send(attachments, now)) {
    case Progress::kFull:
      return true;
    case Progress::kStuck:
      awaits_adapter_ = true;
      return is_blocked();
    case Progress::kPosted:
      awaits_adapter_ = awaits_adapter_ || posted > notice_ || leaving;
      return is_blocked();
    case Progress::kDone:
      break;
  }
  fill_notices(posted);
  if (leaving && !said_goodbye_) {
    outbox_.put_head(FrameKind::kLeave, 0, 0);
    outbox_.hurry();
    said_goodbye_ = true;
  }
  return is_blocked();
}

// On a new connection it sends the last two: others may still be at the exchange before this rank's
// last one.
void Uplink::fill_notices(std::uint64_t posted) {
  const host::Member& own = control_.member(control_.rank());
  for (std::uint64_t n = std::max(notice_ + 1, posted < 2 ? 1 : posted - 1); n <= posted; ++n) {
    const host::Notice& notice = own.notices[n % 2];
    const NoticeHead head{n, notice.what_bytes, notice.bytes};
    outbox_.put_head(FrameKind::kNotice, 0, sizeof(head) + head.what_bytes + head.bytes);
    outbox_.put(head);
    const auto* what = reinterpret_cast<const std::byte*>(notice.what);
    outbox_.put_bytes({what, head.what_bytes});
    outbox_.put_bytes({notice.data, head.bytes});
    notice_ = n;
    outbox_.hurry();
  }
  const std::uint64_t abandoned = own.abandoned.load(std::memory_order_acquire);
  if (abandoned <= abandoned_ || abandoned > notice_) return;
  outbox_.put_head(FrameKind::kAbandoned, 0, sizeof(abandoned));
  outbox_.put(abandoned);
  abandoned_ = abandoned;
  outbox_.hurry();
}

// The record goes before all else, because the others suspect a rank from which no new record
// arrives. A record without news is not sent: whatever arrives shows that this rank is well.
void Uplink::fill_record() {
  const RecordFormat::Cell cell = control_.record(control_.rank());
  if (RecordFormat::news(cell) <= beat_) return;
  const RecordFormat::Words words = RecordFormat::load(cell);
  // The record is torn if it is being written. The next pump then sends it.
  if (!control_.record_format().unpack(words)) return;
  outbox_.put_head(FrameKind::kRecord, 0, words.size() * sizeof(std::uint64_t));
  outbox_.put_bytes(std::as_bytes(std::span(words)));
  beat_ = words[0];
  outbox_.hurry();
}

void Uplink::send(Clock::time_point now) {
  const net::Flow flow = outbox_.send(*stream_, [&] { last_sent_ = now; });
  if (flow == net::Flow::kOpen) {
    if (said_goodbye_ && !is_blocked()) stream_->end_writing();
    return;
  }
  // The partner has to read everything that has arrived before it sees the end.
  if (partner_ == nullptr || !stream_->is_readable()) fail(stream_->error());
}

}  // namespace dstorm::remote
