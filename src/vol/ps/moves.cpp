#include "vol/ps/moves.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "vol/ps/replication.hpp"

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

Brought brought_by(const ServerState& state, const HeldRanges& held_ranges) {
  Brought made;
  made.pushes.resize(static_cast<std::size_t>(state.clients));
  for (const int rank : state.ranks) {
    made.ranks.push_back(static_cast<std::uint32_t>(rank));
    if (!state.mail.is_live(state.clients + rank)) {
      made.dead.push_back(static_cast<std::uint32_t>(rank));
    }
  }
  for (std::size_t number = 0; number < held_ranges.size(); ++number) {
    const Held& held = held_ranges[number];
    if (held.range == nullptr) continue;
    const auto place = static_cast<std::uint16_t>(state.placement.place_of(number, state.own));
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

// ---- arrivals ----

void Arrivals::await(Held& held, int mover) {
  held.mover = mover;
  ++count_;
  due_[static_cast<std::size_t>(mover)].fetch_add(1, std::memory_order_release);
}

void Arrivals::note_come(Held& held) {
  due_[static_cast<std::size_t>(std::exchange(held.mover, -1))].fetch_sub(
      1, std::memory_order_acq_rel);
}

std::vector<int> Arrivals::movers() const {
  std::vector<int> movers;
  for (std::size_t server = 0; server < due_.size(); ++server) {
    if (due_[server].load(std::memory_order_acquire) > 0)
      movers.push_back(static_cast<int>(server));
  }
  return movers;
}

// ---- departures ----

void Departures::begin(const Edition& edition, const HeldRanges* before) {
  const Placement& placement = state_.placement;
  for (std::size_t number = 0; number < held_.size(); ++number) {
    const Edition::Range& range = edition.ranges[number];
    if (range.sender < 0) continue;  // its rows are lost
    const auto has_it = [&](int server) {
      return std::ranges::find(range.having, server) != range.having.end();
    };
    Held& held = held_[number];
    held.applied = state_.clocks.lowest();  // all servers begin with the same clocks
    if (held.is_primary || placement.place_of(number, state_.own) <= placement.replicas()) {
      if (has_it(state_.own)) {
        held.range = (*before)[number].range;
      } else {
        arrivals_.await(held, range.sender);
      }
    }
    if (range.sender != state_.own) continue;
    for (int place = 0; place <= placement.replicas(); ++place) {
      const int to = placement.server(number, place);
      if (!has_it(to)) left_.push_back({number, (*before)[number].range, to});
    }
  }
}

bool Departures::send_next() {
  if (left_.empty() || state_.mail.waiting() != 0) return false;
  const Departure next = std::move(left_.front());
  left_.pop_front();
  replication_.send_copy(next.number, *next.range, next.to);
  return true;
}

}  // namespace vol::ps
