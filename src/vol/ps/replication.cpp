#include "vol/ps/replication.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace vol::ps {
namespace {

constexpr std::uint64_t kAllForwarded = std::numeric_limits<std::uint64_t>::max();

// A new source makes the copy anew, and keeps what it has not applied.
void follow(Held& held, int place) {
  if (held.source == place) return;
  held.source = place;
  held.applied = 0;
}

}  // namespace

Replication::Replication(ServerState& state, HeldRanges& held, Arrivals& arrivals)
    : state_(state),
      held_(held),
      arrivals_(arrivals),
      unanswered_(static_cast<std::size_t>(state.clients)),
      forwardings_(unanswered_.size()) {}

// ---- pushes ----

void Replication::take_push(const Head& head, const Rows& rows, const std::byte* gradients) {
  if (state_.options.is_bsp() && !state_.members.is_client_live(head.client)) return;  // P6
  const auto made = begin_answer(static_cast<int>(head.client), head.id);
  std::map<int, std::vector<Stretch>> by_copy;
  for (const Stretch& stretch : held_.stretches_of(rows)) {
    Held* const held = primary_of(stretch.range);
    if (held == nullptr) {
      made->lost = rows.at(stretch.begin);
      continue;
    }
    if (held->range->note_push(made->client, head.push) &&  // P2
        !held_.change(stretch.range, head, rows.part(stretch.begin, stretch.end),
                      gradients + stretch.begin * state_.options.row_bytes(), made->failure)) {
      continue;
    }
    for (int copy : held->copies) by_copy[copy].push_back(stretch);
  }
  for (const auto& [copy, stretches] : by_copy) {
    forward(head, rows, gradients, stretches, copy, made);
  }
  answer_if_done(made);
}

// Rows without keys go in stretches without keys, as they fit a slot in no other way.
void Replication::forward(const Head& head, const Rows& rows, const std::byte* gradients,
                          std::span<const Stretch> stretches, int to,
                          const std::shared_ptr<Answer>& answer) {
  const std::size_t row_bytes = state_.options.row_bytes();
  Head sent = head;
  sent.kind = Head::Kind::kForward;
  const auto send = [&](const Rows& part, const std::byte* values) {
    sent.id = await_forwarded(to, answer);
    state_.writer.send_rows(sent, part, values, to);
  };
  if (rows.keys == nullptr) {
    for (const Stretch& each : stretches) {
      send(rows.part(each.begin, each.end), gradients + each.begin * row_bytes);
    }
    return;
  }
  std::vector<std::int64_t> keys;
  std::vector<std::byte> values;
  for (const Stretch& each : stretches) {
    keys.insert(keys.end(), rows.keys + each.begin, rows.keys + each.end);
    values.insert(values.end(), gradients + each.begin * row_bytes,
                  gradients + each.end * row_bytes);
  }
  send({keys.data(), 0, keys.size()}, values.data());
}

void Replication::take_forward(int from, const Head& head, const Rows& rows,
                               const std::byte* gradients) {
  std::string failure;  // the primary's function has failed in the same way
  for (const Stretch& stretch : held_.stretches_of(rows)) {
    Held& held = held_[stretch.range];
    const int place = state_.placement.place_of(stretch.range, from);
    const bool moves = held.mover == from;                             // P10 (c)
    if (!moves && (held.is_primary || place < held.source)) continue;  // P4
    const Rows part = rows.part(stretch.begin, stretch.end);
    const std::byte* const values = gradients + stretch.begin * state_.options.row_bytes();
    if (held.coming != nullptr) {
      if ((moves || place == held.source) &&  // kept by its primary
          !held_.keep(*held.coming, head, part, values, false)) {
        state_.reader.throw_damaged("more pushes than a server keeps");
      }
    } else if (held.range != nullptr) {
      follow(held, place);
      if (held.range->note_push(static_cast<int>(head.client), head.push) &&
          !held_.change(stretch.range, head, part, values, failure)) {
        state_.reader.throw_damaged("more pushes than a server keeps");
      }
    }
  }
  answer_server(from, head.id);
}

// One answer is for all messages up to `id`: they have come in their order (P1).
void Replication::take_forwarded(int from, std::uint64_t id) {
  std::deque<Forwarding>& sent = forwardings_[static_cast<std::size_t>(from)];
  while (!sent.empty() && sent.front().id <= id) {
    const std::shared_ptr<Answer> answer = sent.front().answer;
    sent.pop_front();
    --answer->missing;
    answer_if_done(answer);
  }
}

void Replication::answer_server(int server, std::uint64_t id) {
  if (id != 0) state_.writer.tell_latest(server, Head::Kind::kForwarded, id);
}

std::shared_ptr<Replication::Answer> Replication::begin_answer(int client, std::uint64_t id) {
  ++unanswered_[static_cast<std::size_t>(client)];
  return std::make_shared<Answer>(Answer{client, id});
}

std::uint64_t Replication::await_forwarded(int by, const std::shared_ptr<Answer>& answer) {
  const std::uint64_t id = state_.writer.next_id();
  forwardings_[static_cast<std::size_t>(by)].push_back({id, answer});
  ++answer->missing;
  return id;
}

void Replication::answer_if_done(const std::shared_ptr<Answer>& done) {
  if (done->missing != 0) return;
  --unanswered_[static_cast<std::size_t>(done->client)];
  Head::Kind kind = done->failure.empty() ? Head::Kind::kAck : Head::Kind::kFailed;
  if (done->lost >= 0) kind = Head::Kind::kLost;
  state_.writer.answer(kind, done->client, done->id, done->lost, done->failure);
}

// ---- clocks ----

void Replication::apply_kept() {
  const std::uint64_t lowest = state_.clocks.lowest();
  std::set<int> told;
  for (std::size_t range = 0; range < held_.size(); ++range) {
    const Held& held = held_[range];
    if (!held.is_primary || held.range == nullptr) continue;
    held_.apply_kept(range, lowest, true);
    told.insert(held.copies.begin(), held.copies.end());
  }
  for (const int server : told) state_.writer.tell(server, Head::Kind::kApplied, 0, lowest);
}

void Replication::take_applied(int from, std::uint64_t clock) {
  for (std::size_t range = 0; range < held_.size(); ++range) {
    Held& held = held_[range];
    if (held.is_primary || state_.placement.place_of(range, from) != held.source) continue;
    held.applied = std::max(held.applied, clock);
    if (held.range != nullptr) held_.apply_kept(range, held.applied, false);
  }
}

// ---- deaths ----

Held* Replication::primary_of(std::size_t range) {
  Held& held = held_[range];
  if (held.range == nullptr) return nullptr;
  if (!held.is_primary) become_primary(range);  // the client knows of a death before this server
  return &held;
}

void Replication::settle() {
  for (std::size_t range = 0; range < held_.size(); ++range) settle(range);
}

void Replication::settle(std::size_t range) {
  const Held& held = held_[range];
  if (held.range == nullptr) return;
  const auto is_live = [this](int server) { return state_.members.is_live(server); };
  if (held.is_primary) {
    update_copies(range);
  } else if (state_.placement.primary(range, is_live) == state_.own) {
    become_primary(range);
  }
}

void Replication::become_primary(std::size_t range) {
  Held& held = held_[range];
  // Before this server shows the range: clients that read it find what its lowest clock lets
  // through (P9).
  held_.apply_kept(range, state_.clocks.lowest(), true);
  held.is_primary = true;
  held.source = state_.placement.place_of(range, state_.own);
  held.coming.reset();
  held.copies.clear();  // P4: all are made anew
  update_copies(range);
}

void Replication::drop_dead_forwards() {
  for (int server = 0; server < state_.clients; ++server) {
    if (!state_.members.is_live(server)) take_forwarded(server, kAllForwarded);
  }
}

// ---- copies ----

void Replication::copy_anew(std::size_t range, std::uint64_t id) {
  const auto made = begin_answer(state_.own, id);
  held_[range].copies.clear();
  update_copies(range, made);
  answer_if_done(made);
}

void Replication::update_copies(std::size_t range, const std::shared_ptr<Answer>& answer) {
  const Placement& placement = state_.placement;
  const Members& members = state_.members;
  Held& held = held_[range];
  std::erase_if(held.copies, [&](int server) { return !members.is_live(server); });
  const int place = placement.place_of(range, state_.own);
  // Servers before this one in the order are dead, whether this server knows it yet or not.
  const auto may_hold = [&](int server) {
    return state_.may_take_over(server) && placement.place_of(range, server) >= place;
  };
  const std::vector<int> holders = placement.holders(range, may_hold);
  if (holders.empty()) return;
  // Also servers that leave: until they have left, they come before the holders behind them (P11).
  const int last = placement.place_of(range, holders.back());
  for (int at = place + 1; at <= last; ++at) {
    const int server = placement.server(range, at);
    const bool has_it = std::ranges::find(held.copies, server) != held.copies.end();
    if (!members.is_live(server) || has_it) continue;
    held.copies.push_back(server);
    const std::uint64_t id = answer == nullptr ? 0 : await_forwarded(server, answer);
    send_copy(range, *held.range, server, id);
  }
}

void Replication::send_copy(std::size_t number, const Range& source, int to, std::uint64_t id) {
  Head head{};
  head.first = static_cast<std::int64_t>(number);
  const auto send = [&](Head::Kind kind, std::uint64_t offset, std::span<const std::byte> body) {
    head.kind = kind;
    head.clock = offset;
    state_.writer.send_to_server(to, head, body);
  };
  send(Head::Kind::kCopyBegin, 0, {});
  std::uint64_t offset = 0;
  for (const std::span<const std::byte> bytes : {source.values(), source.states()}) {
    for (std::size_t begin = 0; begin < bytes.size(); begin += kRoom) {
      const auto part = bytes.subspan(begin, std::min(kRoom, bytes.size() - begin));
      send(Head::Kind::kCopyPart, offset, part);
      offset += part.size();
    }
  }
  const std::size_t row_bytes = state_.options.row_bytes();
  const std::size_t most = kRoom / (sizeof(std::int64_t) + row_bytes);
  for (const Range::Kept& kept : source.kept()) {
    Head push{};
    push.kind = Head::Kind::kForward;
    push.client = static_cast<std::uint32_t>(kept.client);
    push.push = kept.push;
    push.clock = kept.clock;
    const Rows rows{kept.keys.data(), 0, kept.keys.size()};
    for (std::size_t begin = 0; begin < rows.count; begin += most) {
      state_.writer.send_rows(push, rows.part(begin, std::min(begin + most, rows.count)),
                              kept.gradients.data() + begin * row_bytes, to);
    }
  }
  head.id = id;
  send(Head::Kind::kCopyEnd, 0, std::as_bytes(source.pushes()));
}

void Replication::take_copy(int from, const Head& head, std::span<const std::byte> body) {
  if (head.first < 0 || static_cast<std::size_t>(head.first) >= held_.size()) {
    state_.reader.throw_damaged("a copy of an unknown range");
  }
  const auto range = static_cast<std::size_t>(head.first);
  Held& held = held_[range];
  const int place = state_.placement.place_of(range, from);
  const bool moves = held.mover == from;
  if (!moves && held.mover >= 0) return;                           // P10 (c)
  if (!moves && (held.is_primary || place < held.source)) return;  // P4
  if (head.kind == Head::Kind::kCopyBegin) {
    if (!moves) follow(held, place);
    held.coming = held_.make(range);
    return;
  }
  if (held.coming == nullptr || (!moves && place != held.source)) {
    state_.reader.throw_damaged("a part of a copy that was not begun");
  }
  const bool is_end = head.kind == Head::Kind::kCopyEnd;
  const std::span<std::byte> to =
      is_end ? std::as_writable_bytes(held.coming->pushes()) : held.coming->bytes_from(head.clock);
  if (body.size() > to.size()) state_.reader.throw_damaged("a copy that is too long");
  if (!body.empty()) std::memcpy(to.data(), body.data(), body.size());
  if (!is_end) return;
  held.range = std::move(held.coming);
  if (moves) {
    held_.apply_kept_at_start(range);
    arrivals_.note_come(held);
  }
  settle(range);  // its source may have died meanwhile
}

}  // namespace vol::ps
