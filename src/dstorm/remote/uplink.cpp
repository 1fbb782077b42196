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

// Small frames are gathered up to this many bytes before they are sent.
constexpr std::size_t kBatch = 64 * 1024;
// Long payloads are gathered up to this many bytes.
constexpr std::size_t kLongBatch = 256 * 1024;
// A payload up to this long is copied among the small frames, which is cheaper than a part of its
// own.
constexpr std::size_t kCopied = 8 * 1024;
constexpr std::size_t kAnswers = 1024;
// How long a rank waits to be called before it calls by itself; and the time between two trials
// whether it can.
constexpr std::chrono::seconds kAwaited{1};
constexpr std::chrono::milliseconds kBetweenTrials{20};

// The age of a segment that is due.
constexpr auto kAge = [](const auto* carried) { return carried->due.front().number; };

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
      fail("left out");
      return false;
    }
  }
  // Early enough for another proxy to report that this rank is well, before its host suspects this
  // rank.
  if (now - last_heard_ > settings_.silence * 3 / 4) {
    fail(state_ == State::kCalling ? "no answer" : "silent");
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
      if (head.bytes > most - sizeof(head)) return fail("answered with a frame that cannot be");
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
      return fail("answered with a number that cannot be");
    }
    answered_bytes_ = taken_in;
    turned_away_ = 0;
    return;
  }
  const bool is_proved = head.kind == FrameKind::kShare || head.kind == FrameKind::kEndpoint ||
                         head.kind == FrameKind::kWindow;
  if (!is_proved || (head.kind == FrameKind::kShare) == (rdma_ != nullptr) || partner_ != nullptr ||
      body.size() < sizeof(tcp::Mac)) {
    return fail("answered with a frame that cannot be");
  }
  const auto said = body.first(body.size() - sizeof(tcp::Mac));
  if (!is_proof(body.last(sizeof(tcp::Mac)), prove(settings_.key, head, said, call_))) {
    return fail("answered with an address or a number that somebody has changed on the way");
  }
  if (head.kind == FrameKind::kShare) return take_share(said);
  if (head.kind == FrameKind::kWindow) return take_window(head.segment, said);
  verbs::Endpoint endpoint{};
  if (said.size() != sizeof(endpoint) || is_joined_) {
    return fail("answered with a frame that cannot be");
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
  if (body.size() != sizeof(number)) return fail("answered with a frame that cannot be");
  std::memcpy(&number, body.data(), sizeof(number));
  shared_ = Shared{{call_.to, call_.rank, number}, {}};
}

void Uplink::take_window(std::uint32_t segment, std::span<const std::byte> body) {
  if (body.size() != (1 + host_.size()) * sizeof(verbs::Target)) {
    return fail("answered with a frame that cannot be");
  }
  verbs::Sender::Window window{{}, std::vector<verbs::Target>(host_.size())};
  std::memcpy(&window.inbox, body.data(), sizeof(window.inbox));
  std::memcpy(window.cursors.data(), body.data() + sizeof(window.inbox),
              host_.size() * sizeof(verbs::Target));
  rdma_->open_window(segment, std::move(window));
}

// ---- what this rank says ----

template <class Part>
void Uplink::put(const Part& part) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&part);
  small_.insert(small_.end(), bytes, bytes + sizeof(part));
}

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
