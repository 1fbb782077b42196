// When the clients' clocks go on, a server applies pushes that it has kept (P6), and answers pulls
// that wait (P5).
#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "vol/ps/server.hpp"

namespace vol::ps {
namespace {

constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

}  // namespace

void Server::take_clock(const Head& head) {
  const std::uint64_t clock = clocks_[head.client];
  note_clock(head.client, head.kind == Head::Kind::kBye ? kNever : std::max(clock, head.clock));
  advance();
  answer_await();
}

void Server::note_clock(std::size_t client, std::uint64_t clock) {
  clocks_[client] = clock;
  told_clocks_[client].store(clock, std::memory_order_relaxed);
}

std::vector<int> Server::behind(std::uint64_t clock) const {
  std::vector<int> clients;
  for (const int rank : ranks_) {
    const auto& reached = told_clocks_[static_cast<std::size_t>(rank)];
    if (reached.load(std::memory_order_relaxed) < clock) clients.push_back(rank);
  }
  return clients;
}

std::uint64_t Server::lowest_clock() const {
  std::uint64_t lowest = kNever;
  for (int client = 0; client < clients_; ++client) {
    const auto index = static_cast<std::size_t>(client);
    if (live_[index]) lowest = std::min(lowest, clocks_[index]);
  }
  return lowest;
}

// Applies the kept pushes of a range of clocks below `clock` (P6), and tells clients what of theirs
// has failed.
void Server::apply_kept(std::size_t range, std::uint64_t clock, bool tells) {
  for (const Range::Kept& kept : held_[range].range->take_kept(clock)) {
    try {
      apply(range, {kept.keys.data(), 0, kept.keys.size()}, kept.gradients.data());
    } catch (const std::exception& error) {  // of the user's function
      if (tells) answer(Head::Kind::kFailed, kept.client, 0, 0, error.what());
    }
  }
}

// Of an edition, whose lowest clock may be higher than that of the last one.
void Server::apply_kept_at_start(std::size_t range) {
  const Held& held = held_[range];
  apply_kept(range, held.is_primary ? lowest_ : held.applied, held.is_primary);
}

void Server::take_applied(int from, std::uint64_t clock) {
  for (std::size_t range = 0; range < held_.size(); ++range) {
    Held& held = held_[range];
    if (held.is_primary || placement_.place_of(range, from) != held.source) continue;
    held.applied = std::max(held.applied, clock);
    if (held.range != nullptr) apply_kept(range, held.applied, false);
  }
}

// Does what the clients' clocks now allow.
void Server::advance() {
  const std::uint64_t lowest = lowest_clock();
  if (lowest <= lowest_) return;
  lowest_ = lowest;
  std::set<int> told;
  for (std::size_t range = 0; range < held_.size() && options_.is_bsp(); ++range) {
    const Held& held = held_[range];
    if (!held.is_primary || held.range == nullptr) continue;
    apply_kept(range, lowest_, true);
    told.insert(held.copies.begin(), held.copies.end());
  }
  for (const int server : told) send_to_server(Head::Kind::kApplied, 0, server, lowest_);
  if (shown_) shown_->set_clock(lowest_);  // P9 (b)
  std::vector<Waiting> asked = std::exchange(waiting_, {});
  for (Waiting& pull : asked) {
    if (pull.head.clock > lowest_) {
      waiting_.push_back(std::move(pull));
      continue;
    }
    const auto count = static_cast<std::size_t>(pull.head.count);
    const std::int64_t* const keys = pull.keys.empty() ? nullptr : pull.keys.data();
    answer_pull(pull.head, {keys, pull.head.first, count});
  }
  serve_hot();
  if (lowest_ == kNever && !has_said_all_bye_) {
    has_said_all_bye_ = true;
    answer(Head::Kind::kAllBye, own(), 0);
  }
}

}  // namespace vol::ps
