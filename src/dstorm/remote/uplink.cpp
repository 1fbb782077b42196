// How an uplink works. pump() drives it. While the connection is being made, pump() advances the
// handshake. Then it repeats: fill() puts frames into small_ and long payloads into pieces_, and
// send() gives them to the socket, until there is nothing to send or the socket is full.
//
// due_ lists the segments with changes that have not been sent, the oldest change first.
// fill_segment() sends one of them over TCP: the cursors, the updates in order, then the clock.
// Under RDMA post_segment() does the same by writes of the adapter, and the connection carries only
// the rest. In both cases a SlotCarrier takes the update out of its slot and holds the slot while
// it is read.
//
// The callee's answers say how many bytes it has taken in, or introduce its adapter and its memory
// (take()). A connection that fails is given up; call() then goes to the next rank of the host, to
// which this rank sends everything again.
#include "dstorm/remote/uplink.hpp"

#include <algorithm>
#include <cstring>

#include "dstorm/remote/downlink.hpp"

namespace dstorm::remote {
namespace {

// A payload up to this long is copied among the small frames, which is cheaper than a part of its
// own.
constexpr std::size_t kAnswers = 1024;
// How long a rank waits to be called before it calls by itself; and the time between two trials
// whether it can.
constexpr std::chrono::seconds kAwaited{1};
constexpr std::chrono::milliseconds kBetweenTrials{20};

}  // namespace

Uplink::Uplink(host::Control& control, const Settings& settings, const std::vector<int>& host)
    : control_(control),
      settings_(settings),
      host_(host),
      next_(first_proxy(control.rank(), host)) {}

bool Uplink::call(std::uint64_t number, Clock::time_point now) {
  hang_up();
  for (std::size_t tried = 0; tried < host_.size(); ++tried, next_ = (next_ + 1) % host_.size()) {
    if (!control_.is_live(host_[next_])) continue;
    proxy_ = host_[next_];
    const tcp::Address& to = settings_.addresses[static_cast<std::size_t>(proxy_)];
    const auto rank = static_cast<std::uint32_t>(control_.rank());
    const auto callee = static_cast<std::uint32_t>(proxy_);
    stream_ = std::make_shared<tcp::Stream>(
        tcp::Stream::connect(to, settings_.own, settings_.tls, settings_.silence));
    call_ = {rank, callee, number};
    handshake_ = tcp::Handshake::caller(settings_.key, call_, to);
    state_ = State::kCalling;
    last_call_ = last_heard_ = last_sent_ = now;
    if (moved_ == Clock::time_point{}) moved_ = now;
    if (!down_since_) down_since_ = now;
    return true;
  }
  return false;
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
  trial_ = tcp::Stream::connect(settings_.addresses[static_cast<std::size_t>(proxy_)],
                                settings_.own, nullptr, settings_.silence);
  last_trial_ = now;
}

bool Uplink::can_call(Clock::time_point now) {
  if (!trial_) return state_ == State::kUp;
  const tcp::Moved moved = trial_->send({});
  if (moved.flow == tcp::Flow::kOpen && !trial_->wants_write()) {
    trial_.reset();
    return state_ == State::kUp;
  }
  if (moved.flow != tcp::Flow::kOpen) {
    reason_ = describe_proxy() + ": " + trial_->error();
    if (now - last_trial_ > kBetweenTrials) try_to_call(now);
  }
  return false;
}

void Uplink::share(Downlink& partner, std::uint64_t number, Clock::time_point now) {
  join(partner);
  stream_ = partner.stream();
  call_ = {static_cast<std::uint32_t>(control_.rank()), static_cast<std::uint32_t>(proxy_), number};
  state_ = State::kUp;
  down_since_.reset();
  last_heard_ = last_sent_ = now;
  const FrameHead head{FrameKind::kShare, 0, sizeof(number) + sizeof(tcp::Mac)};
  put(head);
  put(number);
  put(prove(settings_.key, head, std::as_bytes(std::span(&number, 1)), partner.call()));
}

void Uplink::say(std::span<const std::byte> answer) {
  if (said_goodbye_) return;
  small_.insert(small_.end(), answer.begin(), answer.end());
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
  rdma_.reset();  // after this its adapter reads nothing any more
  reaped_ = 0;
  is_joined_ = false;
  for (auto& [id, carried] : carried_) carried.carrier.let_go();
  clear();
  due_.clear();
  carried_.clear();
  has_noted_all_ = false;
  notice_ = beat_ = 0;
  said_goodbye_ = lags_ = false;
  left_out_since_.reset();
  sent_bytes_ = answered_bytes_ = 0;
  answers_end_ = 0;
  handshake_.reset();
  stream_.reset();
  state_ = State::kOver;
}

void Uplink::fail(const std::string& why) {
  // The writes of its adapter have not arrived, although the next connection may come about: a host
  // that refuses that one, too, counts as not reached.
  if (rdma_ && !stalled_since_) stalled_since_ = moved_;
  turned_away_ = stream_->is_closed_there() ? turned_away_ + 1 : 0;
  stream_->reset_at_end();
  give_up(why);
}

void Uplink::fail_by_adapter(const std::string& why) {
  if (!stalled_since_) stalled_since_ = moved_;
  adapter_trouble_ = why;
  fail("RDMA: " + why);
}

void Uplink::hear_adapter(const verbs::DeviceEvent& event) {
  if (rdma_) rdma_->hear(event);
}

std::string Uplink::describe_proxy() const {
  return "rank " + std::to_string(proxy_) + " at " +
         settings_.addresses[static_cast<std::size_t>(proxy_)].text();
}

// Gives up this connection. The next call goes to the next rank of the host.
void Uplink::give_up(const std::string& why) {
  if (state_ == State::kUp) lost_ = proxy_;
  reason_ = describe_proxy() + ": " + why;
  hang_up();
  next_ = (next_ + 1) % host_.size();
}

// Moves the handshake on. Returns whether the connection is up.
bool Uplink::advance_handshake() {
  switch (handshake_->advance(*stream_)) {
    case tcp::Handshake::Step::kWaiting:
      return false;
    case tcp::Handshake::Step::kRefused:
      fail(handshake_->reason());
      return false;
    case tcp::Handshake::Step::kDone:
      break;
  }
  handshake_.reset();
  state_ = State::kUp;
  down_since_.reset();
  if (!settings_.rdma[static_cast<std::size_t>(proxy_)]) return true;
  try {
    introduce_adapter();
  } catch (const Error& error) {
    fail_by_adapter(error.what());
  }
  return state_ == State::kUp;
}

void Uplink::introduce_adapter() {
  rdma_ = std::make_unique<verbs::Sender>(
      *settings_.device, settings_.most_ranks,
      std::chrono::ceil<std::chrono::milliseconds>(settings_.silence));
  const FrameHead head{FrameKind::kEndpoint, 0, sizeof(EndpointBody)};
  const verbs::Endpoint endpoint = rdma_->local();
  put(head);
  put(EndpointBody{endpoint,
                   prove(settings_.key, head, std::as_bytes(std::span(&endpoint, 1)), call_)});
}

void Uplink::pump(const Attachments& attachments, bool leaving, bool with_answers, bool may_lag,
                  Clock::time_point now) {
  if (state_ == State::kCalling && !advance_handshake()) return;
  if (state_ != State::kUp) return;
  if (stream_->wants_write()) stream_->send({});
  if (with_answers && partner_ == nullptr) take_answers(now);
  if (rdma_ && rdma_->is_idle() && !stalled_since_) moved_ = now;
  do {
    awaits_adapter_ = false;
    while (state_ == State::kUp && fill(attachments, leaving)) {
      send(now);
      if (is_blocked()) break;  // as much as the connection takes for now
    }
  } while (state_ == State::kUp && rdma_ && reap(now) && awaits_adapter_);
  may_lag_ = false;  // frames put there meanwhile go at once
  if (state_ == State::kUp && lags_ && !may_lag) {
    stream_->push();
    lags_ = false;
  }
}

// Returns whether writes have completed since the last call. Makes adapter_fd() report further
// ones.
bool Uplink::reap(Clock::time_point now) {
  if (awaits_adapter_) rdma_->arm();
  const bool has_moved = rdma_->reap() > reaped_;
  reaped_ = rdma_->completed();
  if (has_moved) {
    moved_ = tried_ = now;
    stalled_since_.reset();
    adapter_trouble_.clear();
  }
  if (rdma_->failed()) {
    const std::string why = rdma_->failed()->what;
    fail_by_adapter(why);
    return false;
  }
  return has_moved;
}

// Writes a clock once more. So a network that no longer works is noticed even if there is nothing
// to send.
void Uplink::try_adapter() {
  for (const auto& [id, carried] : carried_) {
    if (!rdma_->has_window(id)) continue;
    rdma_->send_clock(id, carried.clock);
    return;
  }
}

bool Uplink::tend(Clock::time_point now) {
  if (state_ == State::kAwaiting &&
      (!control_.is_live(proxy_) ||
       now - last_call_ > std::min<std::chrono::nanoseconds>(settings_.silence / 2, kAwaited))) {
    give_up("no call came");
  }
  if (state_ != State::kCalling && state_ != State::kUp) return false;
  if (control_.state(proxy_) == host::State::kEvicted) {
    // The evicted proxy is to read this in this rank's record, which a reset could destroy. So the
    // connection stays for a while, unless other ranks of the host need a proxy.
    if (!left_out_since_) left_out_since_ = now;
    if (is_needed() || now - *left_out_since_ > settings_.silence / 4) {
      fail("evicted");
      return false;
    }
  }
  // Early enough for another proxy to report that this rank is well, before its host suspects this
  // rank.
  if (now - last_heard_ > settings_.silence * 3 / 4) {
    fail(state_ == State::kCalling ? "no answer" : "no heartbeat");
    return false;
  }
  if (state_ == State::kUp && rdma_ && (stalled_since_ || !rdma_->is_idle()) &&
      now - stalled_since_.value_or(moved_) > settings_.silence) {
    fail_by_adapter("the adapter gets nothing through");
    return false;
  }
  // So often that all ranks that one cut concerns notice it at about the same time.
  if (state_ == State::kUp && rdma_ && rdma_->is_idle() && now - tried_ > settings_.silence / 16) {
    tried_ = now;
    try_adapter();
  }
  if (state_ == State::kUp && !is_blocked() && !said_goodbye_ &&
      now - last_sent_ > settings_.silence / 4) {
    put_head(FrameKind::kBeat, 0, 0);
    send(now);
  }
  return state_ == State::kCalling || state_ == State::kUp;
}

bool Uplink::is_needed() const noexcept {
  return std::any_of(host_.begin(), host_.end(), [this](int r) { return control_.is_live(r); });
}

bool Uplink::make_room(std::uint32_t segment) {
  const auto found = carried_.find(segment);
  if (found != carried_.end() && found->second.in_flight != 0) {
    // The adapter may go on reading this slot. The bytes that it then sends have the wrong
    // checksum, and a newer update follows.
    found->second.carrier.let_go();
    found->second.in_flight = 0;
    return true;
  }
  if (reading_ == nullptr || reading_->attachment->id != segment) return false;
  std::span<const std::byte>& payload = pieces_.back().payload;
  staged_.assign(payload.begin(), payload.end());
  payload = staged_;
  reading_->carrier.let_go();
  reading_ = nullptr;
  return true;
}

// ---- what the callee answers ----

void Uplink::take_answers(Clock::time_point now) {
  // The longest answer is a window.
  const std::size_t most =
      sizeof(FrameHead) + (1 + host_.size()) * sizeof(verbs::Target) + sizeof(tcp::Mac);
  answers_.resize(std::max(kAnswers, most));
  while (state_ == State::kUp && !shared_) {
    const iovec part{answers_.data() + answers_end_, answers_.size() - answers_end_};
    const tcp::Moved moved = stream_->receive({&part, 1});
    if (moved.bytes == 0) {
      if (moved.flow == tcp::Flow::kEnded && said_goodbye_) {
        hang_up();
        state_ = State::kDone;
      } else if (moved.flow == tcp::Flow::kEnded) {
        fail("it ended the connection");
      } else if (moved.flow == tcp::Flow::kFailed) {
        fail(stream_->error());
      }
      return;
    }
    last_heard_ = now;
    answers_end_ += moved.bytes;
    std::size_t begin = 0;
    FrameHead head{};
    while (state_ == State::kUp && !shared_ && answers_end_ - begin >= sizeof(head)) {
      std::memcpy(&head, answers_.data() + begin, sizeof(head));
      if (head.bytes > most - sizeof(head)) return fail("answered with an invalid frame");
      if (answers_end_ - begin < sizeof(head) + head.bytes) break;
      take(head, {answers_.data() + begin + sizeof(head), head.bytes});
      begin += sizeof(head) + head.bytes;
    }
    if (state_ != State::kUp) return;
    std::memmove(answers_.data(), answers_.data() + begin, answers_end_ - begin);
    answers_end_ -= begin;
    if (shared_) {
      const auto rest = answers_.begin() + static_cast<std::ptrdiff_t>(answers_end_);
      shared_->unparsed.assign(answers_.begin(), rest);
      answers_end_ = 0;
    }
  }
}

void Uplink::take(const FrameHead& head, std::span<const std::byte> body) {
  if (head.kind == FrameKind::kTaken && body.size() == sizeof(std::uint64_t)) {
    std::uint64_t taken_in = 0;
    std::memcpy(&taken_in, body.data(), sizeof(taken_in));
    if (taken_in < answered_bytes_ || taken_in > sent_bytes_) {
      return fail("answered with an invalid number");
    }
    answered_bytes_ = taken_in;
    turned_away_ = 0;
    return;
  }
  const bool is_proved = head.kind == FrameKind::kShare || head.kind == FrameKind::kEndpoint ||
                         head.kind == FrameKind::kWindow;
  if (!is_proved || (head.kind == FrameKind::kShare) == (rdma_ != nullptr) || partner_ != nullptr ||
      body.size() < sizeof(tcp::Mac)) {
    return fail("answered with an invalid frame");
  }
  const auto said = body.first(body.size() - sizeof(tcp::Mac));
  if (!is_proof(body.last(sizeof(tcp::Mac)), prove(settings_.key, head, said, call_))) {
    return fail("answered with an address or a number that was changed on the way");
  }
  if (head.kind == FrameKind::kShare) return take_share(said);
  if (head.kind == FrameKind::kWindow) return take_window(head.segment, said);
  verbs::Endpoint endpoint{};
  if (said.size() != sizeof(endpoint) || is_joined_) {
    return fail("answered with an invalid frame");
  }
  std::memcpy(&endpoint, said.data(), sizeof(endpoint));
  try {
    rdma_->connect(endpoint);
    is_joined_ = true;
  } catch (const Error& error) {
    fail_by_adapter(error.what());
  }
}

void Uplink::take_share(std::span<const std::byte> body) {
  std::uint64_t number = 0;
  if (body.size() != sizeof(number)) return fail("answered with an invalid frame");
  std::memcpy(&number, body.data(), sizeof(number));
  shared_ = Shared{{call_.to, call_.rank, number}, {}};
}

void Uplink::take_window(std::uint32_t segment, std::span<const std::byte> body) {
  if (body.size() != (1 + host_.size()) * sizeof(verbs::Target)) {
    return fail("answered with an invalid frame");
  }
  verbs::Sender::Window window{{}, std::vector<verbs::Target>(host_.size())};
  std::memcpy(&window.inbox, body.data(), sizeof(window.inbox));
  std::memcpy(window.cursors.data(), body.data() + sizeof(window.inbox),
              host_.size() * sizeof(verbs::Target));
  rdma_->open_window(segment, std::move(window));
}

}  // namespace dstorm::remote
