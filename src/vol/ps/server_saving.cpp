// The server's side of checkpoints (P13).
#include <algorithm>
#include <cstring>
#include <limits>

#include "vol/ps/server.hpp"

namespace vol::ps {

void Server::take_of_checkpoint(const Head& head, std::span<const std::byte> body) {
  const auto done = [&] { answer(Head::Kind::kAck, own(), head.id); };
  if (head.kind == Head::Kind::kAwait) {
    await_ = Await{head.id, read_clocks(body)};
    return answer_await();
  }
  if (head.kind == Head::Kind::kContinue) {
    continue_from(read_clocks(body));
    return done();
  }
  if (head.first < 0 || static_cast<std::size_t>(head.first) >= held_.size()) {
    throw_damaged(reading_, "an unknown range");
  }
  const auto range = static_cast<std::size_t>(head.first);
  if (head.kind == Head::Kind::kRead) return answer_read(head);
  if (head.kind == Head::Kind::kWritten) return take_written(head);
  Held& held = held_[range];
  if (held.range == nullptr) held.range = make_range(range);  // it was lost
  if (!held.is_primary) become_primary(range);
  show(range);
  if (!held.range->restore(head.clock, body)) throw_damaged(reading_, "too long a part of a range");
  done();
}

std::vector<std::uint64_t> Server::read_clocks(std::span<const std::byte> body) const {
  std::vector<std::uint64_t> clocks(clocks_.size());
  if (body.size() != clocks.size() * sizeof(std::uint64_t)) throw_damaged(reading_, "other clocks");
  std::memcpy(clocks.data(), body.data(), body.size());
  return clocks;
}

void Server::answer_await() {
  if (!await_) return;
  for (std::size_t client = 0; client < clocks_.size(); ++client) {
    const bool is_live = live_[client] || live_[client + clocks_.size()];
    if (is_live && clocks_[client] < await_->clocks[client]) return;  // P13 (a)
  }
  answer(Head::Kind::kAck, own(), await_->id);
  await_.reset();
}

void Server::answer_read(const Head& head) {
  const auto number = static_cast<std::size_t>(head.first);
  const Held* const held = primary_of(number);
  if (held == nullptr) {
    return answer(Head::Kind::kLost, own(), head.id, placement_.first_row(number));
  }
  const std::span<const std::byte> bytes = std::as_const(*held->range).bytes_from(head.clock);
  if (head.count > std::min(bytes.size(), kRoom)) throw_damaged(reading_, "too long a question");
  Head reply = head;
  reply.kind = Head::Kind::kBytes;
  std::byte* const room = mail_.begin(own(), kHeadBytes + head.count);
  std::memcpy(room, &reply, sizeof(reply));
  std::memcpy(room + kHeadBytes, bytes.data(), head.count);
  mail_.end();
}

void Server::take_written(const Head& head) {
  const auto range = static_cast<std::size_t>(head.first);
  Held* const held = primary_of(range);
  if (held == nullptr) throw_damaged(reading_, "an end without a beginning");
  const auto made = std::make_shared<Answer>(Answer{own(), head.id});
  held->range->take_kept(std::numeric_limits<std::uint64_t>::max());  // P13 (c)
  held->copies.clear();
  update_copies(range, made);
  answer_if_done(made);
}

void Server::continue_from(std::span<const std::uint64_t> clocks) {
  std::ranges::copy(clocks, clocks_.begin());
  lowest_ = lowest_clock();
  if (shown_) shown_->set_clock(lowest_);
  for (Held& held : held_) held.applied = 0;  // the clocks may be lower ones
  hot_ = HotRows(options_.row_bytes());       // P13 (c)
}

}  // namespace vol::ps
