#include "dstorm/collective/mail.hpp"

#include <algorithm>
#include <utility>

#include "dstorm/errors.hpp"

namespace dstorm {

Mail::Mail(std::shared_ptr<Group> group, std::string name, std::size_t slot_bytes, int depth)
    : segment_(group, SegmentOptions{.name = std::move(name),
                                     .slot_bytes = slot_bytes,
                                     .depth = depth,
                                     .policy = Policy::kQueue,
                                     .kind = "mail"}),
      state_(segment_.parts().state),
      writer_(state_.mailbox(group->rank()), group->rank()) {
  for (int r = 0; r < group->size(); ++r) peers_.push_back({r, state_.channel().reader(r)});
  state_.is_used = true;  // no call of the segment's own tells so
}

std::byte* Mail::begin(int to, std::size_t bytes) {
  if (bytes > slot_bytes()) {
    throw Error(name() + ": a message of " + std::to_string(bytes) + " bytes; a slot has " +
                std::to_string(slot_bytes()));
  }
  to_ = to;
  begun_bytes_ = bytes;
  slot_ = peer(to).backlog.empty() ? claim(peer(to)) : -1;
  if (slot_ >= 0) return writer_.payload(slot_);
  begun_.resize(bytes);
  return begun_.data();
}

void Mail::end() {
  Peer& to = peer(to_);
  to.is_left = false;
  if (!is_live(to_)) return;  // M3
  bytes_out_ += begun_bytes_;
  to.bytes += begun_bytes_;
  if (slot_ >= 0) {
    publish(slot_, begun_bytes_, to);
  } else {
    to.backlog.push_back(std::move(begun_));
    ++waiting_;
    begun_ = {};
  }
}

bool Mail::pump() {
  bool has_sent = false;
  for (Peer& to : peers_) {
    while (!to.backlog.empty()) {
      const std::vector<std::byte>& next = to.backlog.front();
      if (is_live(to.rank)) {
        const int slot = claim(to);
        if (slot < 0) break;
        if (!next.empty()) std::memcpy(writer_.payload(slot), next.data(), next.size());
        publish(slot, next.size(), to);
      }
      to.backlog.pop_front();
      --waiting_;
      has_sent = true;
    }
  }
  return has_sent;
}

int Mail::claim(Peer& to) {
  if (!may_claim(to)) return -1;
  return writer_.claim(Policy::kQueue, [this](int r) { return state_.is_live(r); });
}

// M2.
bool Mail::may_claim(Peer& to) {
  untaken(to.rank);  // forgets those that have been taken
  if (to.untaken.empty()) return true;
  const auto depth = static_cast<std::size_t>(segment_.options().depth);
  return writer_.has_free([this](int r) { return state_.is_live(r); }, depth / 2 + 1);
}

void Mail::publish(int slot, std::size_t bytes, Peer& to) {
  state_.group().check_standing();
  SlotHeader header{};
  header.iteration = to.sent = ++iteration_;
  to.untaken.push_back(iteration_);
  header.payload_bytes = bytes;
  writer_.publish(slot, header, {&to.rank, 1});
  state_.channel().deliver({&to.rank, 1}, bytes);
}

bool Mail::has_taken_all(int to) const {
  const Peer& peer = peers_[static_cast<std::size_t>(to)];
  return peer.backlog.empty() && writer_.consumed(to, peer.sent);
}

std::size_t Mail::untaken(int to) {
  std::deque<std::uint64_t>& untaken = peer(to).untaken;
  if (!is_live(to)) return 0;
  while (!untaken.empty() && writer_.consumed(to, untaken.front())) untaken.pop_front();
  return untaken.size() + peer(to).backlog.size();
}

SlotHeader Mail::header_of(const Peer& peer, int slot, std::uint64_t clock) const {
  const SlotHeader header = peer.reader.header(slot);  // copied, then checked
  if (header.payload_bytes > slot_bytes() || header.iteration <= peer.read ||
      header.iteration > clock) {
    state_.group().check_standing();  // an evicted rank's slots are written by others
    throw Error("rank " + std::to_string(peer.rank) + " wrote an invalid message of " +
                std::to_string(header.payload_bytes) + " bytes for " + name() +
                "; its memory is damaged");
  }
  return header;
}

bool Mail::has_news() {
  for (Peer& peer : peers_) {
    if (peer.rank != rank() && !state_.group().is_left_out(peer.rank) &&
        peer.reader.clock() > peer.read && !is_left(peer)) {
      return true;
    }
  }
  const auto live = [this](int r) { return state_.is_live(r); };
  return waiting_ > 0 && writer_.has_free(live) && std::ranges::any_of(peers_, [&](Peer& to) {
           return !to.backlog.empty() && may_claim(to);
         });
}

}  // namespace dstorm
