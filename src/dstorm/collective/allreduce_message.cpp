// The messages of an Allreduce: reads those of the other ranks, writes this rank's, counts both.
#include <algorithm>

#include "dstorm/collective/allreduce.hpp"

namespace dstorm {

// ---- messages of the others ----

// Returns whether there is news.
bool Allreduce::look() {
  ended_.clear();
  each_other([this](int r, const Peer&) {
    if (!state_.is_live(r)) ended_.push_back(r);
  });
  // A2: this rank noted that they have ended before it takes in here, so everything that they had
  // written is here.
  if (!ended_.empty() && state_.channel().is_polled()) state_.channel().take_in();
  bool is_news = false;
  for (int r : others_) {
    if (!state_.group().is_left_out(r) && read(r)) is_news = true;
  }
  for (int r : ended_) {
    is_news = is_news || rest_.has(r);
    rest_.remove(r);
  }
  return is_news;
}

// Reads up to the sender's clock: a rank that died while it wrote a message may have stored only
// some of its tickets (S6).
bool Allreduce::read(int rank) {
  Peer& one = peer(rank);
  bool is_news = false;
  bool has_released = false;
  const std::uint64_t clock = one.reader.clock();
  while (one.read < clock) {
    const int slot = one.reader.oldest(one.read, clock);
    if (slot < 0) {
      // Its clock has moved, so it has written to other ranks alone. These are parts, of this
      // round, or of a later one if it has committed this one.
      one.came = std::max({one.came, round_, one.committed + 1});
      one.read = clock;
      break;
    }
    const Received received = receive(rank, slot, clock);
    const bool was_beyond = is_beyond(one);
    const bool was_whole = rest_ == members_;
    const bool is_taken = take(received);
    is_news =
        is_news || is_taken || is_beyond(one) != was_beyond || (rest_ == members_) != was_whole;
    if (!is_taken) break;
    one.read = received.iteration;
    if (one.has_parts) continue;
    // A rank that comes late may need the slots of messages it wrote for rounds that are over.
    release(rank, one.read);
    has_released = true;
  }
  if (has_released) {
    state_.channel().wake({&rank, 1});
    state_.channel().acknowledge({&rank, 1}, false);
  }
  return is_news;
}

Allreduce::Received Allreduce::receive(int rank, int slot, std::uint64_t clock) const {
  const Group& group = state_.group();
  const SlotReader& reader = peer(rank).reader;
  const SlotHeader header = reader.header(slot);  // copied, then checked
  const std::byte* const payload = reader.payload(slot);
  const AllreduceMessage message = AllreduceMessage::read(payload, group.size());
  if (header.payload_bytes < head_bytes_ || header.payload_bytes > state_.options().slot_bytes ||
      header.iteration <= peer(rank).read || header.iteration > clock ||
      !message.members.has(rank) || !message.members.has(group.rank())) {
    group.check_standing();  // an evicted rank's held slots are written by others
    throw Error("rank " + std::to_string(rank) + " wrote an invalid message of " +
                std::to_string(header.payload_bytes) + " bytes for " + name_ +
                "; its memory is damaged");
  }
  return {rank, header.iteration, message, payload + head_bytes_,
          header.payload_bytes - head_bytes_};
}

// Returns false if the message is for later (A6).
bool Allreduce::take(const Received& received) {
  Peer& one = peer(received.rank);
  const AllreduceHead& head = received.message.head;
  one.committed = std::max(one.committed, head.committed);
  one.came = head.round;
  if (head.round > round_) {
    one.beyond = head.round;
    return false;
  }
  if (head.round < round_) return true;
  if (head.kind == Kind::kGaveUp || head.kind == Kind::kDisagreed) {
    one.gave_up = true;
    if (head.part > 0 && static_cast<int>(head.part) <= state_.group().size()) {
      interrupted_ = static_cast<int>(head.part) - 1;
    }
    disagreed_ = disagreed_ || head.kind == Kind::kDisagreed;
    return true;
  }
  // Its sender may also share out the folding in another way.
  disagreed_ = disagreed_ || head.operation != operation_;
  if (disagreed_ || head.kind == Kind::kCommitted) return true;
  if (!received.message.members.includes(members_)) {
    rest_.keep_only(received.message.members);  // A2
    return false;
  }
  if (received.message.members != members_) return true;  // its sender will go on to fewer, too
  if (head.kind == Kind::kHaveAll) {
    one.has_all = true;
  } else {
    take_part(received);
  }
  return true;
}

void Allreduce::take_part(const Received& received) {
  const std::size_t part = received.message.head.part;
  const auto place =
      static_cast<std::size_t>(std::ranges::lower_bound(order_, received.rank) - order_.begin());
  const bool is_known = part < parts_ && received.message.head.kind == Kind::kPart &&
                        received.part_bytes == range_of(part).end - range_of(part).begin;
  const bool is_input = is_known && (is_whole() || collectors_.sends(place, part, own_));
  const std::byte** to = nullptr;
  if (is_input) {
    to = &inputs_of(part)[place];
  } else if (is_known && owner(part) == place) {
    to = &results_[part];
  }
  if (to == nullptr || *to != nullptr) {
    state_.group().check_standing();
    throw Error("rank " + std::to_string(received.rank) + " wrote part " + std::to_string(part) +
                " for " + name_ + " where none is due; its memory is damaged");
  }
  *to = received.part;
  --(is_input ? missing_inputs_ : missing_results_);
  peer(received.rank).has_parts = true;
  if (is_input) {
    --missing_[part];
    peer(received.rank).inputs_end = received.iteration;
  }
  stats_.bytes_in += received.part_bytes;
}

// ---- messages of this rank ----

// Returns whether it made progress; if not, there is something to wait for.
bool Allreduce::advance(Operand& operand) {
  needs_slot_ = false;
  const bool has_moved = send_inputs(operand) || fold_parts(operand) || say_have_all() ||
                         (has_given_up_ && say_gave_up());
  if (is_undelivered_) deliver();
  return has_moved;
}

bool Allreduce::send_inputs(Operand& operand) {
  bool has_sent = false;
  for (; next_input_ < parts_; ++next_input_) {
    if (!is_whole() && is_collected_here(next_input_)) continue;
    const int slot = claim();
    if (slot < 0) break;
    const ByteRange range = range_of(next_input_);
    operand.copy_out(writer_.payload(slot) + head_bytes_, range);
    const std::span<const int> to(
        is_whole() ? others_.data() : &order_[collectors_.of(next_input_, own_)],
        is_whole() ? others_.size() : 1);
    publish(slot, Kind::kPart, next_input_, range.end - range.begin, to);
    has_sent = true;
  }
  return has_sent;
}

bool Allreduce::fold_parts(Operand& operand) {
  bool has_folded = false;
  for (; next_input_ == parts_ && next_fold_ < to_fold_.size(); has_folded = true) {
    const std::size_t part = to_fold_[next_fold_];
    const int slot = missing_[part] == 0 ? claim() : -1;
    if (slot < 0) break;
    std::byte* const to = writer_.payload(slot) + head_bytes_;
    fold_part(operand, part, to);
    state_.group().check_standing();  // else the folded bytes may have changed meanwhile
    // Released before the message is published, so that the message carries word of it.
    if (++next_fold_ == to_fold_.size()) {
      each_other([this](int r, const Peer& one) { release(r, one.inputs_end); });
    }
    const bool is_result = owner(part) == own_;
    if (is_result) {
      results_[part] = to;
      --missing_results_;
    }
    publish(slot, Kind::kPart, part, range_of(part).size(),
            is_result ? std::span<const int>(others_) : std::span(&order_[owner(part)], 1));
  }
  return has_folded;
}

void Allreduce::fold_part(Operand& operand, std::size_t part, std::byte* to) {
  const std::span<const std::byte* const> inputs = inputs_of(part);
  if (!collectors_.are_by_host()) return operand.fold(to, inputs, range_of(part));
  summands_.clear();
  for (std::size_t place = 0; place < inputs.size(); ++place) {
    if (place == own_ || inputs[place] != nullptr) summands_.push_back(inputs[place]);
  }
  operand.add_up(to, summands_, range_of(part), owner(part) == own_ ? order_.size() : 0);
}

bool Allreduce::say_have_all() {
  if (has_all_ || !needs_agreement() || !is_complete()) return false;
  const int slot = claim();
  if (slot < 0) return false;
  state_.group().check_standing();
  publish(slot, Kind::kHaveAll, 0, 0, others_);
  has_all_ = true;
  return true;
}

// Once, as its slot is wanted for the next round.
bool Allreduce::say_gave_up() {
  if (said_gave_up_ == round_ || others_.empty()) return false;
  const int slot = claim();
  if (slot < 0) return false;
  publish(slot, Kind::kGaveUp, static_cast<std::size_t>(interrupted_) + 1, 0, others_);
  said_gave_up_ = round_;
  return true;
}

int Allreduce::claim() {
  const int slot = writer_.claim(Policy::kQueue, [this](int r) { return state_.is_live(r); });
  needs_slot_ = slot < 0;
  return slot;
}

void Allreduce::publish(int slot, Kind kind, std::size_t part, std::size_t part_bytes,
                        std::span<const int> to) {
  AllreduceMessage{{round_, committed_, operation_, kind, static_cast<std::uint32_t>(part), 0},
                   members_}
      .write(writer_.payload(slot));
  SlotHeader header{};
  header.iteration = ++iteration_;
  header.payload_bytes = head_bytes_ + part_bytes;
  header.count = part_bytes;
  writer_.publish(slot, header, to);
  is_undelivered_ = true;
  undelivered_bytes_ += part_bytes;
  stats_.bytes_out += header.payload_bytes * to.size();
}

void Allreduce::deliver() {
  state_.channel().deliver(others_, undelivered_bytes_);
  is_undelivered_ = false;
  undelivered_bytes_ = 0;
}

Stats Allreduce::stats() const {
  Stats stats = stats_;
  const Stats whole = segment_.stats();
  stats.wait_seconds = whole.wait_seconds;
  stats.memory_bytes = whole.memory_bytes;
  return stats;
}

}  // namespace dstorm
