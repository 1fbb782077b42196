#include "dstorm/segment/strays.hpp"

#include <algorithm>
#include <limits>

namespace dstorm {
namespace {

constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

}  // namespace

// Calls `free(rank)` for each sender, and tells those senders of which it has freed a slot.
template <class Free>
void Strays::for_each_peer(Free&& free) {
  freed_.clear();
  for (int r : state_.peers()) {
    if (free(r)) freed_.push_back(r);
  }
  if (!freed_.empty()) state_.channel().acknowledge(freed_, true);
}

void Strays::remove_unexpected() {
  const std::vector<int>& in = state_.rounds.current().in;
  const std::uint64_t iteration = state_.iteration;
  for_each_peer([&](int r) {
    const bool is_due = std::binary_search(in.begin(), in.end(), r);
    const std::uint64_t limit = iteration - (is_due && iteration > 0 ? 1 : 0);
    return state_.is_queue() ? stash(r, limit, kAll) : drop_oldest(r, is_due, limit);
  });
}

// LATEST, in a gather at staleness 0: rejects the oldest update of `rank` up to iteration `limit`.
bool Strays::drop_oldest(int rank, bool is_due, std::uint64_t limit) {
  SlotReader& reader = state_.reader(rank);
  if (reader.oldest(reader.consumed(), limit) < 0) return false;
  reader.hold_from(reader.consumed() + 1);
  SlotReader::fence();  // S3
  const int slot = reader.oldest(reader.consumed(), limit);
  if (slot >= 0) {
    const std::uint64_t iteration =
        state_.header_of(rank, slot, reader.consumed(), limit).iteration;
    reader.count(reader.ordinal(slot), false);
    reader.release(iteration);
  }
  if (is_due) {
    reader.hold_from(
        state_.iteration);  // as Gathering::collect_own_iteration has it, without a gap
  } else {
    reader.let_go();
  }
  return slot >= 0;
}

void Strays::relieve_senders() {
  const auto most = static_cast<std::size_t>(state_.options().depth);
  for_each_peer([&](int r) { return stash(r, std::numeric_limits<std::uint64_t>::max(), most); });
}

void Strays::help_up() {
  for_each_peer([&](int r) {
    return state_.reader(r).clock() < state_.iteration && stash(r, state_.iteration, kAll);
  });
}

bool Strays::stash(int rank, std::uint64_t limit, std::size_t most) {
  SlotReader& reader = state_.reader(rank);
  const std::uint64_t settled = std::min(limit, reader.clock());
  bool is_any = false;
  for (std::size_t count = state_.stash.count(rank); count < most; ++count) {
    const std::uint64_t consumed = reader.consumed();
    const int slot = reader.oldest(consumed, settled);
    if (slot < 0) break;
    const SlotHeader header = state_.header_of(rank, slot, consumed, settled);
    const std::span payload(reader.payload(slot), header.payload_bytes);
    const auto& copy_out = state_.options().copy_out;
    state_.stash.add({rank, header, reader.ordinal(slot),
                      copy_out ? copy_out(rank, payload)
                               : std::vector<std::byte>(payload.begin(), payload.end())});
    reader.release(header.iteration);
    is_any = true;
  }
  return is_any;
}

}  // namespace dstorm
