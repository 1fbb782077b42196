// How ranges go to the servers of the next edition (P10), and from a server that leaves (P11).
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "vol/ps/server.hpp"

namespace vol::ps {
namespace {

// The first 64-bit FNV hash of the numbers (Fowler, Noll, Vo).
std::uint64_t check_of(std::span<const std::uint64_t> numbers) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const std::byte each : std::as_bytes(numbers)) {
    hash = (hash ^ static_cast<std::uint64_t>(each)) * 0x100000001b3U;
  }
  return hash;
}

}  // namespace

Brought Server::brought() const {
  Brought made;
  made.pushes.resize(static_cast<std::size_t>(clients_));
  for (const int rank : ranks_) {
    made.ranks.push_back(static_cast<std::uint32_t>(rank));
    if (!mail_.is_live(clients_ + rank)) made.dead.push_back(static_cast<std::uint32_t>(rank));
  }
  for (std::size_t number = 0; number < held_.size(); ++number) {
    const Held& held = held_[number];
    if (held.range == nullptr) continue;
    const auto place = static_cast<std::uint16_t>(placement_.place_of(number, own()));
    const auto source = static_cast<std::uint16_t>(held.is_primary ? place : held.source);
    const std::span<const std::uint64_t> pushes = std::as_const(*held.range).pushes();
    // Rows of which a copy is still arriving are older than their primary's.
    const std::uint64_t check = check_of(pushes) ^ (held.coming != nullptr ? number + 1 : 0);
    made.ranges.push_back({static_cast<std::uint32_t>(number), place, source, check});
    for (std::size_t client = 0; client < pushes.size(); ++client) {
      made.pushes[client] = std::max(made.pushes[client], pushes[client]);
    }
  }
  return made;
}

void Server::move_from(const Edition& edition, const Server* before) {
  for (std::size_t client = 0; client < clocks_.size(); ++client) {
    note_clock(client, edition.clocks[client]);
  }
  lowest_ = std::numeric_limits<std::uint64_t>::max();
  for (const int rank : ranks_) {
    lowest_ = std::min(lowest_, clocks_[static_cast<std::size_t>(rank)]);
  }
  for (std::size_t number = 0; number < held_.size(); ++number) {
    const Edition::Range& range = edition.ranges[number];
    if (range.sender < 0) continue;  // its rows are lost
    const auto has_it = [&](int server) {
      return std::ranges::find(range.having, server) != range.having.end();
    };
    Held& held = held_[number];
    held.applied = lowest_;  // all servers begin with the same clocks
    if (held.is_primary || placement_.place_of(number, own()) <= placement_.replicas()) {
      if (has_it(own())) {
        held.range = before->held_[number].range;
      } else {
        held.mover = range.sender;
        ++moved_;
        due_[static_cast<std::size_t>(range.sender)].fetch_add(1, std::memory_order_release);
      }
    }
    if (range.sender != own()) continue;
    for (int place = 0; place <= placement_.replicas(); ++place) {
      const int to = placement_.server(number, place);
      if (!has_it(to)) moves_.push_back({number, before->held_[number].range, to});
    }
  }
}

// One at a time, as messages that wait for slots take memory (M2).
bool Server::send_next_move() {
  if (moves_.empty() || mail_.waiting() != 0) return false;
  const Move move = std::move(moves_.front());
  moves_.pop_front();
  send_copy(move.number, *move.range, move.to);
  return true;
}

void Server::note_moved(Held& held) {
  due_[static_cast<std::size_t>(std::exchange(held.mover, -1))].fetch_sub(
      1, std::memory_order_acq_rel);
}

std::vector<int> Server::movers() const {
  std::vector<int> movers;
  for (int server = 0; server < clients_; ++server) {
    if (due_[static_cast<std::size_t>(server)].load(std::memory_order_acquire) > 0) {
      movers.push_back(server);
    }
  }
  return movers;
}

// ---- leaving ----

// A server that hands over its ranges needs as many holders besides itself as a range has.
bool Server::may_take_over(int server) const {
  if (!is_live(server)) return false;
  return !is_handing_over_ || (server != own() && !leaving_[static_cast<std::size_t>(server)]);
}

void Server::send_to_server(Head::Kind kind, std::uint64_t id, int to, std::uint64_t clock) {
  Head head{};
  head.kind = kind;
  head.id = id;
  head.clock = clock;
  std::byte* const room = mail_.begin(clients_ + to, kHeadBytes);
  std::memcpy(room, &head, sizeof(head));
  mail_.end();
}

// Begins, also anew (P11).
void Server::hand_over() {
  if (has_handed_over_) return;
  is_handing_over_ = true;
  ++round_;
  untold_.clear();
  if (!has_said_all_bye_) {
    for (std::size_t range = 0; range < held_.size(); ++range) settle(range);
    for (int server = 0; server < clients_; ++server) {
      if (server == own() || !is_live(server)) continue;
      send_to_server(Head::Kind::kLeaving, round_, server);
      untold_.push_back(server);
    }
  }
  if (!untold_.empty()) return;
  has_handed_over_ = true;
  answer(Head::Kind::kHandedOver, own(), 0);
}

void Server::take_leaving(int from, const Head& head) {
  if (has_handed_over_) return;  // P11
  const auto index = static_cast<std::size_t>(from);
  const bool is_news = !leaving_[index];
  leaving_[index] = true;
  send_to_server(Head::Kind::kLeavingKnown, head.id, from);
  if (is_handing_over_ && is_news) hand_over();
}

void Server::take_leaving_known(int from, std::uint64_t round) {
  if (round != round_) return;
  std::erase(untold_, from);
  if (!untold_.empty() || has_handed_over_) return;
  has_handed_over_ = true;
  answer(Head::Kind::kHandedOver, own(), 0);
}

}  // namespace vol::ps
