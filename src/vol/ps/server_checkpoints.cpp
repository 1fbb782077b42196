#include "vol/ps/server_checkpoints.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

namespace vol::ps {

void ServerCheckpoints::take(const Head& head, std::span<const std::byte> body) {
  if (head.kind == Head::Kind::kAwait) {
    await_ = Await{head.id, read_clocks(body)};
    return answer_await();
  }
  if (head.kind == Head::Kind::kContinue) {
    continue_from(read_clocks(body));
    return acknowledge(head.id);
  }
  if (head.first < 0 || static_cast<std::size_t>(head.first) >= held_.size()) {
    state_.reader.throw_damaged("an unknown range");
  }
  if (head.kind == Head::Kind::kRead) return answer_read(head);
  if (head.kind == Head::Kind::kWritten) return end_writing(head);
  write(head, body);
}

std::vector<std::uint64_t> ServerCheckpoints::read_clocks(std::span<const std::byte> body) const {
  std::vector<std::uint64_t> clocks(state_.clocks.size());
  if (body.size() != clocks.size() * sizeof(std::uint64_t)) {
    state_.reader.throw_damaged("other clocks");
  }
  std::memcpy(clocks.data(), body.data(), body.size());
  return clocks;
}

void ServerCheckpoints::answer_await() {
  if (!await_) return;
  const Members& members = state_.members;
  for (std::size_t client = 0; client < state_.clocks.size(); ++client) {
    const bool is_live =
        members.is_client_live(client) || members.is_live(static_cast<int>(client));
    if (is_live && state_.clocks.of(client) < await_->clocks[client]) return;  // P13 (a)
  }
  acknowledge(await_->id);
  await_.reset();
}

void ServerCheckpoints::answer_read(const Head& head) {
  const auto number = static_cast<std::size_t>(head.first);
  const Held* const held = replication_.primary_of(number);
  if (held == nullptr) {
    return state_.writer.answer(Head::Kind::kLost, state_.own, head.id,
                                state_.placement.first_row(number));
  }
  const std::span<const std::byte> bytes = std::as_const(*held->range).bytes_from(head.clock);
  if (head.count > std::min(bytes.size(), kRoom)) {
    state_.reader.throw_damaged("too long a question");
  }
  Head reply = head;
  reply.kind = Head::Kind::kBytes;
  state_.writer.send_to_client(state_.own, reply, bytes.first(head.count));
}

void ServerCheckpoints::write(const Head& head, std::span<const std::byte> body) {
  const auto range = static_cast<std::size_t>(head.first);
  Held& held = held_[range];
  if (held.range == nullptr) held.range = held_.make(range);  // it was lost
  if (!held.is_primary) replication_.become_primary(range);
  held_.show(range);
  if (!held.range->restore(head.clock, body)) {
    state_.reader.throw_damaged("too long a part of a range");
  }
  acknowledge(head.id);
}

void ServerCheckpoints::end_writing(const Head& head) {
  const auto range = static_cast<std::size_t>(head.first);
  Held* const held = replication_.primary_of(range);
  if (held == nullptr) state_.reader.throw_damaged("an end without a beginning");
  held_.take_kept(range, std::numeric_limits<std::uint64_t>::max());  // P13 (c)
  replication_.copy_anew(range, head.id);
}

void ServerCheckpoints::continue_from(std::span<const std::uint64_t> clocks) {
  for (std::size_t client = 0; client < clocks.size(); ++client) {
    state_.clocks.note(client, clocks[client]);
  }
  state_.clocks.note_restore();
  state_.clocks.set_lowest(state_.clocks.lowest_of_live(state_.members));
  held_.show_clock();
  for (std::size_t range = 0; range < held_.size(); ++range) {
    held_[range].applied = 0;  // the clocks may be lower ones
  }
  hot_.forget_rows();  // P13 (c)
}

}  // namespace vol::ps
