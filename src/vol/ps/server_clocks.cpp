// What a server does when the clients' clocks go on: it applies pushes that it has kept (P6), and
// answers pulls that wait (P5).
#include <algorithm>
#include <limits>
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

// Applies the pushes of a range that all clients have passed (P6).
void Server::apply_kept(std::size_t range) {
  for (const Range::Kept& kept : held_[range].range->take_kept(lowest_)) {
    try {
      apply(range, {kept.keys.data(), 0, kept.keys.size()}, kept.gradients.data());
    } catch (const std::exception& error) {  // of the user's function
      if (held_[range].is_primary) answer(Head::Kind::kFailed, kept.client, 0, 0, error.what());
    }
  }
}

// Does what the clients' clocks now allow.
void Server::advance() {
  const std::uint64_t lowest = lowest_clock();
  if (lowest <= lowest_) return;
  lowest_ = lowest;
  for (std::size_t range = 0; range < held_.size(); ++range) {
    if (held_[range].range != nullptr) apply_kept(range);
  }
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
