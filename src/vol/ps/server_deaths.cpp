// When other servers die, a server becomes primary, and makes copies.
#include <algorithm>
#include <cstring>
#include <utility>

#include "vol/ps/server.hpp"

namespace vol::ps {

bool Server::follow_view() {
  bool has_changed = false;
  for (std::size_t member = 0; member < live_.size(); ++member) {
    if (!live_[member] || mail_.is_live(static_cast<int>(member))) continue;
    live_[member] = false;
    has_changed = true;
  }
  if (!has_changed) return false;
  advance();
  if (has_said_all_bye_) {  // nobody asks any more
    if (is_handing_over_) hand_over();
    return true;
  }
  for (std::size_t range = 0; range < held_.size(); ++range) settle(range);
  for (auto each = forwardings_.begin(); each != forwardings_.end();) {
    if (is_live(each->second.to)) {
      ++each;
      continue;
    }
    const std::shared_ptr<Answer> answer = each->second.answer;
    each = forwardings_.erase(each);
    --answer->missing;
    answer_if_done(answer);
  }
  hot_.forget([this](int server, std::uint64_t) { return !is_live(server); });  // P12 (d)
  serve_hot();
  if (is_handing_over_) hand_over();
  answer_await();
  return true;
}

// Does what the deaths that this server knows of ask for.
void Server::settle(std::size_t range) {
  Held& held = held_[range];
  if (held.range == nullptr) return;
  if (held.is_primary) {
    update_copies(range);
  } else if (placement_.primary(range, [this](int s) { return is_live(s); }) == own()) {
    become_primary(range);
  }
}

void Server::become_primary(std::size_t range) {
  Held& held = held_[range];
  // Before this server shows the range: clients that read it find what its lowest clock lets
  // through (P9).
  apply_kept(range, lowest_, true);
  held.is_primary = true;
  held.source = placement_.place_of(range, own());
  held.coming.reset();
  held.copies.clear();  // P4: all are made anew
  update_copies(range);
}

void Server::update_copies(std::size_t range, const std::shared_ptr<Answer>& answer) {
  Held& held = held_[range];
  std::erase_if(held.copies, [this](int server) { return !is_live(server); });
  const int place = placement_.place_of(range, own());
  // Servers before this one in the order are dead, whether this server knows it yet or not.
  const auto may_hold = [&](int server) {
    return may_take_over(server) && placement_.place_of(range, server) >= place;
  };
  const std::vector<int> holders = placement_.holders(range, may_hold);
  if (holders.empty()) return;
  // Also servers that leave: until they have left, they come before the holders behind them (P11).
  const int last = placement_.place_of(range, holders.back());
  for (int at = place + 1; at <= last; ++at) {
    const int server = placement_.server(range, at);
    if (!is_live(server) || std::ranges::find(held.copies, server) != held.copies.end()) continue;
    held.copies.push_back(server);
    if (answer == nullptr) {
      send_copy(range, *held.range, server);
      continue;
    }
    forwardings_.emplace(++last_id_, Forwarding{server, answer});
    ++answer->missing;
    send_copy(range, *held.range, server, last_id_);
  }
}

void Server::send_copy(std::size_t number, const Range& source, int to, std::uint64_t id) {
  Head head{};
  head.first = static_cast<std::int64_t>(number);
  const auto send = [&](Head::Kind kind, std::uint64_t offset, std::span<const std::byte> body) {
    head.kind = kind;
    head.clock = offset;
    std::byte* const room = mail_.begin(clients_ + to, kHeadBytes + body.size());
    std::memcpy(room, &head, sizeof(head));
    if (!body.empty()) std::memcpy(room + kHeadBytes, body.data(), body.size());
    mail_.end();
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
  const std::size_t most = kRoom / (sizeof(std::int64_t) + options_.row_bytes());
  for (const Range::Kept& kept : source.kept()) {
    Head push{};
    push.kind = Head::Kind::kForward;
    push.client = static_cast<std::uint32_t>(kept.client);
    push.push = kept.push;
    push.clock = kept.clock;
    const Rows rows{kept.keys.data(), 0, kept.keys.size()};
    for (std::size_t begin = 0; begin < rows.count; begin += most) {
      send_rows(push, rows.part(begin, std::min(begin + most, rows.count)),
                kept.gradients.data() + begin * options_.row_bytes(), to);
    }
  }
  head.id = id;
  send(Head::Kind::kCopyEnd, 0, std::as_bytes(source.pushes()));
}

void Server::take_copy(int from, const Head& head, std::span<const std::byte> body) {
  if (head.first < 0 || static_cast<std::size_t>(head.first) >= held_.size()) {
    throw_damaged(reading_, "a copy of an unknown range");
  }
  const auto range = static_cast<std::size_t>(head.first);
  Held& held = held_[range];
  const int place = placement_.place_of(range, from);
  const bool moves = held.mover == from;
  if (!moves && held.mover >= 0) return;                           // P10 (c)
  if (!moves && (held.is_primary || place < held.source)) return;  // P4
  if (head.kind == Head::Kind::kCopyBegin) {
    if (!moves) follow(held, place);
    held.coming = make_range(range);
    return;
  }
  if (held.coming == nullptr || (!moves && place != held.source)) {
    throw_damaged(reading_, "a part of a copy that was not begun");
  }
  const bool is_end = head.kind == Head::Kind::kCopyEnd;
  const std::span<std::byte> to =
      is_end ? std::as_writable_bytes(held.coming->pushes()) : held.coming->bytes_from(head.clock);
  if (body.size() > to.size()) throw_damaged(reading_, "a copy that is too long");
  if (!body.empty()) std::memcpy(to.data(), body.data(), body.size());
  if (!is_end) return;
  held.range = std::move(held.coming);
  if (moves) {
    apply_kept_at_start(range);
    note_moved(held);
  }
  settle(range);  // its source may have died meanwhile
}

// A new source makes the copy anew, and keeps what it has not applied.
void Server::follow(Held& held, int place) {
  if (held.source == place) return;
  held.source = place;
  held.applied = 0;
}

}  // namespace vol::ps
