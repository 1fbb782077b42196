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
      writer_(Mailbox(state_.memory().mailbox(group->rank()), state_.shape()), group->rank()) {
  for (int r = 0; r < group->size(); ++r) peers_.push_back({r, state_.channel().reader(r)});
  state_.is_used = true;  // no call of the segment's own tells so
}

std::byte* Mail::begin(std::size_t bytes) {
  if (bytes > slot_bytes()) {
    throw Error(name() + ": a message of " + std::to_string(bytes) + " bytes; a slot has " +
                std::to_string(slot_bytes()));
  }
  begun_bytes_ = bytes;
  slot_ = backlog_.empty() ? claim() : -1;
  if (slot_ >= 0) return writer_.payload(slot_);
  begun_.resize(bytes);
  return begun_.data();
}

void Mail::end(int to) {
  if (!is_live(to)) return;  // M3
  bytes_out_ += begun_bytes_;
  peers_[static_cast<std::size_t>(to)].bytes += begun_bytes_;
  if (slot_ >= 0) {
    publish(slot_, begun_bytes_, to);
  } else {
    backlog_.push_back({to, std::move(begun_)});
    ++peers_[static_cast<std::size_t>(to)].waiting;
    begun_ = {};
  }
}

bool Mail::pump() {
  bool has_sent = false;
  while (!backlog_.empty()) {
    const Waiting& next = backlog_.front();
    if (is_live(next.to)) {
      const int slot = claim();
      if (slot < 0) break;
      if (!next.bytes.empty()) {
        std::memcpy(writer_.payload(slot), next.bytes.data(), next.bytes.size());
      }
      publish(slot, next.bytes.size(), next.to);
    }
    --peers_[static_cast<std::size_t>(next.to)].waiting;
    backlog_.pop_front();
    has_sent = true;
  }
  return has_sent;
}

int Mail::claim() {
  return writer_.claim(Policy::kQueue, [this](int r) { return state_.is_live(r); });
}

void Mail::publish(int slot, std::size_t bytes, int to) {
  state_.group().check_standing();
  untaken(to);  // forgets those that have been taken, so no more are noted than there are slots
  Peer& peer = peers_[static_cast<std::size_t>(to)];
  SlotHeader header{};
  header.iteration = peer.sent = ++iteration_;
  peer.untaken.push_back(iteration_);
  header.payload_bytes = bytes;
  writer_.publish(slot, header, {&to, 1});
  state_.channel().deliver({&to, 1}, bytes);
}

bool Mail::has_taken_all(int to) const {
  return std::ranges::none_of(backlog_, [to](const Waiting& each) { return each.to == to; }) &&
         writer_.consumed(to, peers_[static_cast<std::size_t>(to)].sent);
}

std::size_t Mail::untaken(int to) {
  Peer& peer = peers_[static_cast<std::size_t>(to)];
  if (!is_live(to)) return 0;
  while (!peer.untaken.empty() && writer_.consumed(to, peer.untaken.front())) {
    peer.untaken.pop_front();
  }
  return peer.untaken.size() + peer.waiting;
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
  return !backlog_.empty() && writer_.has_free([this](int r) { return state_.is_live(r); });
}

}  // namespace dstorm
