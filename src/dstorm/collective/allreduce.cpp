// How an allreduce runs. run() loops until commit() succeeds: look() reads the other ranks'
// messages, advance() sends what this rank can send now, and a wait follows if neither made
// progress. If a member has been lost (A2), begin_attempt() starts again among the rest.
//
// The messages lie in the mailboxes of a QUEUE segment that only this class uses. Parts are folded
// and copied straight from the slots, so inputs_ and results_ hold addresses in slots, which stay
// valid until this rank releases the slot. allreduce_message.cpp reads and writes the messages;
// this file has rounds, attempts, commitment and failure.
#include "dstorm/collective/allreduce.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "dstorm/segment/agreement.hpp"
#include "dstorm/segment/parts.hpp"

namespace dstorm {
namespace {

using std::chrono::nanoseconds;

// Whole vectors go to all ranks up to this length (docs/performance.md).
constexpr std::size_t kShortBytes = 32 * 1024;
// From this length on the vectors of a host are added up there (docs/performance.md).
constexpr std::size_t kLeastByHost = 128 * 1024;
constexpr std::size_t kPartBytes = 1 << 20;
constexpr std::size_t kMostParts = 1000;  // limited by the number of slots

// Whether each rank folds a part of its own. The tickets, one for each part and rank, must not take
// more memory than the vector.
bool is_shared_out(std::size_t bytes, std::size_t ranks) {
  return ranks > 2 && bytes > kShortBytes && bytes >= ranks * ranks * sizeof(Ticket) &&
         ranks <= kMostParts;
}

// Between two ranks parts of a mebibyte: while one is on its way, the next is copied into its slot.
// For few bytes one part; otherwise at least two. Then the slots, which are two more, hold two
// vectors.
std::size_t parts_of(std::size_t bytes, std::size_t ranks) {
  if (is_shared_out(bytes, ranks)) return ranks;
  if (ranks == 2) return std::clamp<std::size_t>(bytes / kPartBytes, 1, kMostParts);
  return bytes <= kPage ? 1 : 2;
}

// A6. Each of two ranks sends its vector and nothing else, unless it gives up. For whole vectors
// the slots hold those of two attempts, in case the first one has been committed after all. The
// last slot is for word of a call that fails while others still hold all messages of the call
// before.
std::size_t slots_for(std::size_t bytes, std::size_t ranks) {
  const std::size_t parts = parts_of(bytes, ranks);
  if (ranks == 2) return parts + 1;
  return (is_shared_out(bytes, ranks) ? parts : 2 * parts) + 3;
}

SegmentOptions segment_options(const std::string& name, std::string kind, std::size_t slot_bytes,
                               std::size_t depth) {
  SegmentOptions options;
  options.name = options.call = name;
  options.kind = std::move(kind);
  options.slot_bytes = slot_bytes;
  options.depth = static_cast<int>(depth);
  options.policy = Policy::kQueue;
  return options;
}

}  // namespace

ByteRange part_range(std::size_t bytes, std::size_t part, std::size_t parts) {
  const std::size_t lines = (bytes + kLine - 1) / kLine;
  return {std::min(lines * part / parts * kLine, bytes),
          std::min(lines * (part + 1) / parts * kLine, bytes)};
}

Allreduce::Allreduce(std::shared_ptr<Group> group, std::string name, std::string kind,
                     std::size_t bytes)
    : name_(std::move(name)),
      bytes_(bytes),
      is_shared_out_(is_shared_out(bytes, static_cast<std::size_t>(group->size()))),
      parts_(parts_of(bytes, static_cast<std::size_t>(group->size()))),
      head_bytes_(AllreduceMessage::head_bytes(group->size())),
      segment_(group, segment_options(name_, std::move(kind),
                                      head_bytes_ + round_up((bytes + parts_ - 1) / parts_, kLine),
                                      slots_for(bytes, static_cast<std::size_t>(group->size())))),
      making_(describe(segment_.options())),
      state_(segment_.parts().state),
      mailbox_(state_.mailbox(group->rank())),
      writer_(mailbox_, group->rank()),
      members_(group->size()),
      rest_(group->size()) {
  for (int r = 0; r < group->size(); ++r) peers_.push_back({state_.channel().reader(r)});
}

const std::vector<int>& Allreduce::run(Operand& operand, const Operation& operation,
                                       const Deadline& deadline) {
  const Turn turn(state_.turns(), "allreduce", name_);
  state_.begin_call(false);
  catch_up(deadline);
  number_ = std::max(number_, last_before()) + 1;  // A9
  if (is_open_ && round_ <= last_before()) {
    is_open_ = false;
    finish_round(Kind::kGaveUp);
  }
  if (is_open_ && end_open_round(operand, operation, deadline)) {
    number_ = round_;
    return order_;
  }
  begin_round(operand, operation.code);
  end_round(operand, operation, deadline);
  return order_;
}

void Allreduce::end_round(Operand& operand, const Operation& operation, const Deadline& deadline) {
  const auto is_made_anew = [this] { return state_.group().is_begun_anew(making_); };
  const auto may_go_on = [&] {
    return look() || (has_given_up_ && has_agreed()) ||
           (needs_slot_ && writer_.has_free([this](int r) { return state_.is_live(r); })) ||
           is_made_anew();
  };
  const auto missing = [this] {
    const std::vector<int> ranks = late();
    return ranks.empty() ? -1 : ranks.front();
  };
  is_open_ = true;
  bool is_late = false;
  try {
    look();
    while (!commit(operand)) {
      if (disagreed_) throw ConfigError(disagreement(name_, operation));
      if (has_failed()) {
        is_open_ = false;
        state_.group().check_open();  // it may have moved to another group
        is_late = true;
        throw_timeout(deadline.limit());
      }
      if (rest_ != members_) {
        if (has_all_) keep_result(operand);
        begin_attempt(rest_);
        look();
      } else if (!advance(operand)) {
        const auto lack = [this] { return lacks(late()); };
        if (!state_.wait(may_go_on, deadline.left(), lack, missing)) {
          is_late = true;
          throw_timeout(deadline.limit());
        }
        if (is_made_anew()) throw BegunAnew(name_ + ": a rank makes its memory anew");
      }
    }
  } catch (const BegunAnew&) {  // the others leave the segment too, and need no word
    is_open_ = false;
    throw;
  } catch (...) {
    if (!is_late && interrupted_ < 0) interrupted_ = state_.group().rank();
    is_open_ = is_open_ && !disagreed_ && may_be_committed();
    if (is_open_ && has_all_) keep_result(operand);
    if (is_open_) {
      given_.resize(bytes_);
      operand.copy_out(given_.data(), {0, bytes_});
    }
    finish_round(disagreed_ ? Kind::kDisagreed : Kind::kGaveUp);
    throw;
  }
  is_open_ = false;
  finish_round(Kind::kCommitted);
}

// A8. Returns whether the others have committed the round, which is then the result of this call.
// Values that the caller has written into its vector since then are put back if they have not.
bool Allreduce::end_open_round(Operand& operand, const Operation& operation,
                               const Deadline& deadline) {
  if (operation.code != operation_) {
    throw ConfigError(name_ +
                      " cannot start: the last one, with another fold, did not end on this rank "
                      "and may have ended on others; repeat that first");
  }
  has_given_up_ = true;
  std::vector<std::byte> now(bytes_);
  operand.copy_out(now.data(), {0, bytes_});
  operand.copy_in(given_.data(), {0, bytes_});
  try {
    end_round(operand, operation, deadline);
    return true;
  } catch (const TimeoutError&) {
    operand.copy_in(now.data(), {0, bytes_});
    if (is_open_) throw;
    return false;
  } catch (...) {
    operand.copy_in(now.data(), {0, bytes_});
    throw;
  }
}

// The members may have heard from this rank all that they need to commit.
bool Allreduce::may_be_committed() const {
  return !kept_order_.empty() || (needs_agreement() ? has_all_ : next_input_ == parts_);
}

// ---- beginning and end ----

// A9. Waits for the word of an exchange in which the others are known to have met.
void Allreduce::catch_up(const Deadline& deadline) {
  std::uint64_t beyond = 0;
  each_other([&](int r, const Peer& one) {
    if (state_.is_live(r)) beyond = std::max(beyond, one.beyond >> 32 << 32);
  });
  if (beyond <= last_before()) return;
  const auto has_word = [&] { return last_before() >= beyond; };
  const auto lacks = [this] { return name_ + ": the word of an exchange did not come"; };
  state_.wait(has_word, deadline.left(), lacks, [] { return -1; });
}

void Allreduce::begin_round(const Operand& operand, std::uint32_t operation) {
  round_ = number_;
  operation_ = operation;
  may_add_ = operand.is_made_of_sums();
  disagreed_ = has_given_up_ = false;
  interrupted_ = -1;
  kept_order_.clear();
  RankSet live(state_.group().size());
  for (int r = 0; r < state_.group().size(); ++r) {
    Peer& one = peer(r);
    one.gave_up = false;
    if (state_.is_live(r)) live.add(r);
  }
  live.add(state_.group().rank());
  others_.clear();
  begin_attempt(live);
}

void Allreduce::begin_attempt(const RankSet& members) {
  each_other([this](int r, const Peer& one) { release(r, one.read); });
  rest_ = members;
  members_ = members;
  order_ = members_.ranks();
  others_ = order_;
  const int rank = state_.group().rank();
  std::erase(others_, rank);
  own_ = static_cast<std::size_t>(std::ranges::lower_bound(order_, rank) - order_.begin());
  each_other([](int, Peer& one) {
    one.inputs_end = 0;
    one.has_parts = false;
    one.has_all = false;
  });
  share_out();
  has_all_ = false;
}

// Works out which parts this rank sends, and which ones it folds.
void Allreduce::share_out() {
  std::vector<int> hosts;  // empty: the vectors of a host are not added up there
  if (!is_whole() && may_add_ && bytes_ >= kLeastByHost) {
    for (int r : order_) hosts.push_back(state_.channel().host_of(r));
  }
  collectors_ = Collectors(order_.size(), parts_, hosts);
  inputs_.assign(parts_ * order_.size(), nullptr);
  results_.assign(parts_, nullptr);
  next_input_ = others_.empty() ? parts_ : 0;
  next_fold_ = 0;
  to_fold_.clear();
  missing_.assign(parts_, is_whole() ? others_.size() : 0);
  for (std::size_t part = 0; part < parts_ && !is_whole(); ++part) {
    if (!is_collected_here(part)) continue;
    missing_[part] = collectors_.senders(part, own_);
    to_fold_.push_back(part);
  }
  std::stable_partition(to_fold_.begin(), to_fold_.end(),
                        [this](std::size_t part) { return owner(part) != own_; });
  missing_inputs_ = std::accumulate(missing_.begin(), missing_.end(), std::size_t{0});
  missing_results_ = is_whole() ? 0 : parts_;
}

// The last word is for ranks that cannot know the outcome by themselves (A4, A7). It is not urgent,
// because other live ranks see the outcome themselves. By A6 there is a slot for "committed". A
// call that fails may find no slot, and that may be the reason why it fails; then its next call
// says it, or shows that this rank has gone on.
void Allreduce::finish_round(Kind last_word) {
  if (!is_open_) each_other([this](int r, const Peer& one) { release(r, one.read); });
  if (last_word == Kind::kCommitted && !needs_agreement()) {
    each_other([this](int, Peer& one) { one.reader.mark(round_); });
    state_.channel().wake(others_);
    state_.channel().acknowledge(others_, false);
    return;
  }
  if (last_word == Kind::kGaveUp) {
    say_gave_up();
  } else if (const int slot = others_.empty() ? -1 : claim(); slot >= 0) {
    publish(slot, last_word, 0, 0, others_);
  }
  if (last_word == Kind::kCommitted) {
    state_.channel().wake(others_);
    state_.channel().acknowledge(others_, false);
  } else {
    deliver();
  }
}

void Allreduce::release(int rank, std::uint64_t iteration) {
  SlotReader& reader = peer(rank).reader;
  if (iteration > reader.consumed()) reader.release(iteration);
}

// ---- the result ----

bool Allreduce::is_complete() const {
  return next_input_ == parts_ && missing_inputs_ == 0 && missing_results_ == 0;
}

bool Allreduce::has_agreed() const {
  if (!is_complete() || disagreed_) return false;
  return std::ranges::all_of(others_, [this](int r) {
    if (needs_agreement()) return has_all_ && peer(r).has_all;
    if (has_given_up_ && has_marked(r)) return true;
    return !gave_up(r) && (!has_given_up_ || !rest_.has(r));  // A8
  });
}

// A4.
bool Allreduce::commit(Operand& operand) {
  const bool is_heard =
      std::ranges::any_of(others_, [this](int r) { return peer(r).committed >= round_; });
  if (!has_agreed() && !is_heard) return false;
  state_.group().check_standing();
  if (kept_order_ == order_) {
    operand.copy_in(kept_.data(), {0, bytes_});
  } else if (needs_agreement() ? has_all_ : is_complete()) {
    write_result(operand);
  } else if (!kept_order_.empty()) {
    operand.copy_in(kept_.data(), {0, bytes_});
    order_ = kept_order_;
  } else {
    throw Error("a rank reports that " + name_ +
                " is done, but this rank has not sent its part; the memory of that rank is "
                "damaged");
  }
  committed_ = round_;
  return true;
}

void Allreduce::write_result(Operand& operand) {
  for (std::size_t part = 0; part < parts_ && !others_.empty(); ++part) {
    if (is_whole()) {
      operand.fold(nullptr, inputs_of(part), range_of(part));
    } else {
      operand.copy_in(results_[part], range_of(part));
    }
  }
}

void Allreduce::keep_result(Operand& operand) {
  if (kept_order_ == order_) return;
  kept_.resize(bytes_);
  for (std::size_t part = 0; part < parts_; ++part) {
    const ByteRange range = range_of(part);
    if (is_whole()) {
      operand.fold(kept_.data() + range.begin, inputs_of(part), range);
    } else {
      std::memcpy(kept_.data() + range.begin, results_[part], range.end - range.begin);
    }
  }
  kept_order_ = order_;
}

// ---- failure ----

std::string disagreement(const std::string& call, const Operation& own) {
  return call + ": the ranks ask for different folds (this one for " + own.name +
         "); if one rank makes its last call and another is still in its loop, they have had "
         "unequal numbers of batches: give each rank equally many (malt.shard(data, even=True)), "
         "or put the loop into the wrapper's join()";
}

TimeoutError lateness(const std::string& call, std::vector<int> late,
                      const std::vector<int>& gave_up, const std::vector<int>& interrupted,
                      nanoseconds limit) {
  std::erase_if(late, [&](int r) { return std::ranges::binary_search(gave_up, r); });
  std::string text = call + ": ";
  if (!late.empty()) text += describe_ranks(late) + " did not come ";
  if (gave_up.empty()) {
    text += "within " + format_seconds(limit);
  } else {
    text += (late.empty() ? "" : "before ") + describe_ranks(gave_up) +
            " gave up waiting (at the time limit, or interrupted)";
  }
  text += "; the vector is unchanged";
  if (!interrupted.empty()) return {text, interrupted};
  return {text, late.empty() ? gave_up : late};
}

// Whether no member has committed the round, nor can. If both have said "have all", others may
// have committed by that. If this rank has said so for more members, then any member that has not
// given up may have.
bool Allreduce::has_failed() const {
  const auto is_left = [this](int r) { return rest_.has(r); };
  const bool is_certain = std::ranges::any_of(
      others_, [&](int r) { return is_left(r) && gave_up(r) && !(has_all_ && peer(r).has_all); });
  return is_certain && (kept_order_.empty() || std::ranges::all_of(others_, [&](int r) {
                          return !is_left(r) || gave_up(r);
                        }));
}

std::vector<int> Allreduce::late() const {
  std::vector<int> ranks;
  for (int r : others_) {
    if (!has_come(r)) ranks.push_back(r);
  }
  // Of ranks that have come, those that owe this one the earliest step: the others may be late only
  // because they wait for these.
  const auto pick = [&](const auto& owes) {
    if (!ranks.empty()) return;
    for (std::size_t place = 0; place < order_.size(); ++place) {
      const int r = order_[place];
      const bool is_waiting = place != own_ && !gave_up(r);
      if (is_waiting && owes(place)) ranks.push_back(r);
    }
  };
  pick([this](std::size_t place) {
    for (std::size_t part = 0; part < parts_; ++part) {
      const bool is_due = is_whole() || collectors_.sends(place, part, own_);
      if (is_due && inputs_[part * order_.size() + place] == nullptr) return true;
    }
    return false;
  });
  pick([this](std::size_t place) {
    for (std::size_t part = 0; part < parts_ && !is_whole(); ++part) {
      if (owner(part) == place && results_[part] == nullptr) return true;
    }
    return false;
  });
  pick([this](std::size_t place) { return !peer(order_[place]).has_all; });
  return ranks;
}

std::string Allreduce::lacks(const std::vector<int>& ranks) const {
  return name_ + ": " +
         (ranks.empty() ? "another rank gave up waiting" : describe_ranks(ranks) + " did not come");
}

void Allreduce::throw_timeout(nanoseconds limit) const {
  std::vector<int> givers, interrupted;
  for (int r : others_) {
    if (gave_up(r) || r == interrupted_) givers.push_back(r);
    if (r == interrupted_) interrupted.push_back(r);
  }
  throw lateness(name_, late(), givers, interrupted, limit);
}

}  // namespace dstorm
