// A client's calls for checkpoints (P13 in server.hpp).
#include <algorithm>
#include <cstring>

#include "dstorm/errors.hpp"
#include "dstorm/host/turn.hpp"
#include "vol/ps/client.hpp"

namespace vol::ps {

void Client::drop_pushes(Limit limit) {
  const dstorm::Turn turn(mail_.turns(), "restore", options_.name);
  const dstorm::Deadline deadline = deadline_of(limit);
  check({});
  is_settling_ = true;
  try {
    wait_until([this] { return sent_.empty(); }, deadline, "restore");
  } catch (...) {
    is_settling_ = false;
    throw;
  }
  is_settling_ = false;
  failure_.clear();
  failed_ranks_.clear();
  more_failures_ = 0;
  held_back_.clear();
}

void Client::ask_own(Head head, std::span<const std::byte> body, std::span<std::byte> to,
                     const dstorm::Deadline& deadline, const char* what,
                     std::optional<std::uint64_t> clock) {
  check({});
  head.client = static_cast<std::uint32_t>(mail_.rank());
  head.id = ++last_id_;
  std::byte* const room = mail_.begin(servers_ + mail_.rank(), kHeadBytes + body.size());
  std::memcpy(room, &head, sizeof(head));
  if (!body.empty()) std::memcpy(room + kHeadBytes, body.data(), body.size());
  mail_.end();
  asked_own_ = head.id;
  own_to_ = to;
  const auto is_dead = [this] { return !mail_.is_live(servers_ + mail_.rank()); };
  try {
    wait_until([&] { return asked_own_ == 0 || is_dead(); }, deadline, what, clock);
  } catch (...) {
    asked_own_ = 0;
    throw;
  }
  if (asked_own_ == 0) return;
  asked_own_ = 0;
  throw dstorm::PeerError("table '" + options_.name + "': the server of this rank has ended",
                          {mail_.rank()});
}

void Client::await_clocks(std::span<const std::uint64_t> clocks, Limit limit) {
  const dstorm::Turn turn(mail_.turns(), "checkpoint", options_.name);
  const dstorm::Deadline deadline = deadline_of(limit);
  Head head{};
  head.kind = Head::Kind::kAwait;
  ask_own(head, std::as_bytes(clocks), {}, deadline);
  const auto knows_deaths = [&] {
    for (std::size_t rank = 0; rank < live_.size(); ++rank) {
      if (live_[rank] && clocks[rank] == kIsDead) return false;
    }
    return true;
  };
  wait_until(knows_deaths, deadline, "checkpoint");  // an error of lost rows names the dead
}

// In pieces of one message: more of them at a time would only wait for the server's thread.
void Client::read(std::size_t range, std::uint64_t offset, std::span<std::byte> to, Limit limit) {
  const dstorm::Turn turn(mail_.turns(), "checkpoint", options_.name);
  const dstorm::Deadline deadline = deadline_of(limit);
  Head head{};
  head.kind = Head::Kind::kRead;
  head.first = static_cast<std::int64_t>(range);
  for (std::size_t begin = 0; begin < to.size(); begin += kRoom) {
    const std::span<std::byte> part = to.subspan(begin, std::min(kRoom, to.size() - begin));
    head.clock = offset + begin;
    head.count = part.size();
    ask_own(head, {}, part, deadline);
  }
}

void Client::write(std::size_t range, std::uint64_t offset, std::span<const std::byte> from,
                   Limit limit) {
  const dstorm::Turn turn(mail_.turns(), "checkpoint", options_.name);
  const dstorm::Deadline deadline = deadline_of(limit);
  Head head{};
  head.kind = Head::Kind::kWrite;
  head.first = static_cast<std::int64_t>(range);
  for (std::size_t begin = 0; begin < from.size(); begin += kRoom) {
    head.clock = offset + begin;
    ask_own(head, from.subspan(begin, std::min(kRoom, from.size() - begin)), {}, deadline);
  }
}

void Client::end_write(std::size_t range, Limit limit) {
  const dstorm::Turn turn(mail_.turns(), "checkpoint", options_.name);
  const dstorm::Deadline deadline = deadline_of(limit);
  Head head{};
  head.kind = Head::Kind::kWritten;
  head.first = static_cast<std::int64_t>(range);
  ask_own(head, {}, {}, deadline);
}

void Client::continue_from(std::span<const std::uint64_t> clocks, Limit limit) {
  const dstorm::Turn turn(mail_.turns(), "checkpoint", options_.name);
  const dstorm::Deadline deadline = deadline_of(limit);
  Head head{};
  head.kind = Head::Kind::kContinue;
  ask_own(head, std::as_bytes(clocks), {}, deadline);
  clock_ = clocks[static_cast<std::size_t>(mail_.rank())];
  ++restores_;
}

std::vector<std::size_t> Client::ranges(std::span<const int> live) const {
  const auto is_live = [live](int server) { return std::ranges::find(live, server) != live.end(); };
  std::vector<std::size_t> own;
  for (std::size_t range = 0; range < placement_.ranges(); ++range) {
    if (placement_.primary(range, is_live) == mail_.rank()) own.push_back(range);
  }
  return own;
}

}  // namespace vol::ps
