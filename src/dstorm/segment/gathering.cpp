// How a gather works. collect() waits as the options say, first for the staleness and then for
// the quorum. It then finds the updates to fold and lists them in updates_. There are three ways
// to find them: collect_own_iteration() at staleness 0, collect_newest() under LATEST, and
// collect_queued() under QUEUE. The fold reads the updates in their slots, or in the stash.
// Under LATEST this rank's cursors hold the slots meanwhile, so that no sender overwrites one.
// release() marks the updates as consumed, which frees their slots. Then the senders are told. If a
// wait or the fold throws, let_go() drops the holds, and all updates stay pending.
#include "dstorm/segment/gathering.hpp"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace dstorm {

using std::chrono::nanoseconds;

namespace {

constexpr int kLooksForMissing = 64;
// The longest time after which this rank learns of an epoch whose graph another rank uses already.
constexpr std::chrono::seconds kNews{1};
// An automatic deadline: so many times the usual wait, and no less than that.
constexpr int kAutomatic = 3;
constexpr int kMostLonger = 4;  // times as long after gathers that were cut short
constexpr std::chrono::milliseconds kLeastAutomatic{1};
constexpr int kLately = 8;          // gathers over which the wait for a quorum is averaged
constexpr double kRounding = 1e-9;  // of a share

}  // namespace

std::size_t Gathering::gather(const GatherOptions& options, const Segment::Fold& fold) {
  const Turn turn(state_.turns(), "gather", state_.options().name);
  Recorder* const recorder = state_.recorder();
  const Recorder::Time began = recorder != nullptr ? Recorder::now() : 0;
  find(options, fold);
  if (!state_.group().is_forked()) {  // by the fold: only the rank itself has gathered
    settle();
    release();
    // A QUEUE sender may be waiting for a slot, a BSP sender for its receivers' folds.
    if (!updates_.empty()) {
      state_.channel().acknowledge(senders_, state_.is_queue() || !state_.rounds.is_in_step());
    }
    for (const Update& update : updates_) state_.stash.erase(update.rank, update.iteration);
  }
  if (recorder != nullptr) record(*recorder, began);
  return updates_.size();
}

std::size_t Gathering::begin_later(const GatherOptions& options, const Segment::Fold& fold) {
  const Turn turn(state_.turns(), "gather", state_.options().name);
  Recorder* const recorder = state_.recorder();
  const Recorder::Time began = recorder != nullptr ? Recorder::now() : 0;
  find(options, fold);
  settle();
  for (const Update& update : updates_) state_.stash.erase(update.rank, update.iteration);
  if (recorder != nullptr) record(*recorder, began);
  if (updates_.empty()) {
    release();
  } else {
    is_begun_.store(true, std::memory_order_release);
  }
  return updates_.size();
}

void Gathering::finish() noexcept {
  release();
  state_.channel().tell(senders_);
  is_begun_.store(false, std::memory_order_release);
  state_.channel().wake_self();
}

// Finds the updates and calls the fold.
void Gathering::find(const GatherOptions& options, const Segment::Fold& fold) {
  state_.begin_call(!options.staleness);
  updates_.clear();
  found_.clear();
  held_.clear();
  try {
    collect(options);
    state_.check_room();  // after the clocks have been read
    if (!updates_.empty()) {
      const Turns::Inside inside(state_.turns(), Turns::Code::kFold);
      fold(updates_);
    }
  } catch (...) {
    let_go();
    throw;
  }
}

void Gathering::record(Recorder& recorder, Recorder::Time began) const noexcept {
  if (state_.group().is_forked()) return;  // by the fold
  for (std::size_t i = 0; i < updates_.size(); ++i) {
    const Update& update = updates_[i];
    if (found_[i].is_folded) {
      recorder.folds(update.rank, update.iteration, update.payload.size());
    }
  }
  recorder.gathered(began);
}

void Gathering::collect(const GatherOptions& options) {
  const nanoseconds timeout = options.timeout.value_or(state_.group().timeout());
  if (options.quorum && !(options.quorum->share > 0 && options.quorum->share <= 1)) {
    throw ConfigError("gather of " + state_.name() + ": the quorum is " +
                      std::to_string(options.quorum->share) +
                      " of the in-neighbours; it must be above 0 and at most 1");
  }
  if (options.quorum && options.staleness == 0) {
    throw ConfigError("gather of " + state_.name() +
                      " at staleness 0 waits for all in-neighbours; a quorum or a deadline needs "
                      "staleness=None or at least 1");
  }
  const auto began = options.quorum ? Clock::now() : Clock::time_point{};
  state_.take_in();
  if (options.staleness == 0) return collect_own_iteration(timeout);
  if (options.staleness && *options.staleness < state_.iteration) {
    wait_for_clocks(state_.iteration - *options.staleness, timeout);
  }
  if (options.quorum) wait_for_quorum(*options.quorum, timeout, began);
  if (state_.is_queue()) {
    collect_queued(kMostIteration);
  } else {
    collect_newest();
  }
}

bool Gathering::has_update(int rank) {
  SlotReader& reader = state_.reader(rank);
  return reader.newest(reader.consumed()) >= 0 && !state_.group().is_left_out(rank);
}

const Stash::Stashed* Gathering::stashed(int rank, std::uint64_t limit) const {
  return state_.group().is_left_out(rank) ? nullptr : state_.stash.newest(rank, limit);
}

bool Gathering::await_update(std::size_t live, nanoseconds timeout) {
  const Turn turn(state_.turns(), "a wait for updates", state_.options().name);
  state_.begin_call(false);
  const auto is_news = [&] {
    if (state_.group().is_superseded()) return true;
    std::size_t alive = 1;
    for (int r : state_.peers()) {
      if (has_update(r) || stashed(r, kMostIteration) != nullptr) return true;
      alive += state_.group().is_live(r) ? 1 : 0;
    }
    return alive != live;
  };
  try {
    return state_.wait(is_news, timeout);
  } catch (const Superseded&) {
    return true;
  }
}

void Gathering::wait_for_clocks(std::uint64_t target, nanoseconds timeout) {
  const std::vector<int>& senders = state_.rounds.current().in;
  const auto is_behind = [&](int r) {
    return state_.reader(r).clock() < target && state_.is_live(r);
  };
  std::size_t next = 0;  // senders before it have been seen
  const auto all_there = [&] {
    strays_.take_in(target == state_.iteration);
    while (next < senders.size() && !is_behind(senders[next])) ++next;
    return next == senders.size();
  };
  const auto behind = [&] {
    std::vector<int> ranks;
    std::ranges::copy_if(senders, std::back_inserter(ranks), is_behind);
    return ranks;
  };
  const auto lacks = [&](const std::vector<int>& ranks) {
    return "gather of " + state_.name() + ": " + describe_ranks(ranks) +
           " did not scatter iteration " + std::to_string(target);
  };
  const auto missing = [&] { return next < senders.size() ? senders[next] : -1; };
  if (state_.wait(all_there, timeout, [&] { return lacks(behind()); }, missing)) return;
  const std::vector<int> ranks = behind();
  if (ranks.empty()) return;  // the last of them has scattered just now
  std::string at = " (this rank is at iteration " + std::to_string(state_.iteration);
  at +=
      ", " + describe_ranks({ranks[0]}) + " at " + std::to_string(state_.reader(ranks[0]).clock());
  throw TimeoutError(lacks(ranks) + " within " + format_seconds(timeout) + at + ")", ranks);
}

// `timeout` is that of the whole gather, which has waited since `began`.
void Gathering::wait_for_quorum(const Quorum& quorum, nanoseconds timeout,
                                Clock::time_point began) {
  const std::vector<int>& senders = state_.rounds.current().in;
  const auto is_behind = [&](int r) {
    return state_.reader(r).clock() < state_.iteration && state_.is_live(r);
  };
  std::size_t live = 0;
  std::size_t needed = 0;
  std::size_t there = 0;
  const auto is_there = [&] {
    strays_.take_in(false);
    if (state_.is_queue()) strays_.help_up();
    live = there = 0;
    for (int r : senders) {
      if (!state_.is_live(r)) continue;
      ++live;
      there += is_behind(r) ? 0 : 1;
    }
    const double share = quorum.share * static_cast<double>(live);
    needed = std::max<std::size_t>(static_cast<std::size_t>(std::ceil(share - kRounding)), 1);
    return there >= std::min(needed, live);
  };
  const auto lacks = [&] {
    std::vector<int> ranks;
    std::ranges::copy_if(senders, std::back_inserter(ranks), is_behind);
    return std::pair("gather of " + state_.name() + ": " + describe_ranks(ranks) +
                         " did not scatter iteration " + std::to_string(state_.iteration) + "; " +
                         std::to_string(needed) + " of " + std::to_string(live) +
                         " in-neighbours are needed, and " + std::to_string(there) + " have",
                     ranks);
  };
  const auto missing = [&] {
    const auto one = std::ranges::find_if(senders, is_behind);
    return one == senders.end() ? -1 : *one;
  };
  const auto begins = Clock::now();
  const nanoseconds left = std::max(timeout - nanoseconds(begins - began), nanoseconds(0));
  const std::optional<nanoseconds> deadline =
      quorum.is_automatic ? automatic_deadline() : quorum.deadline;
  const nanoseconds limit = std::min(deadline.value_or(left), left);
  if (state_.wait(is_there, limit, [&] { return lacks().first; }, missing) || is_there()) {
    const nanoseconds waited = Clock::now() - begins;
    usual_wait_ = usual_wait_ ? *usual_wait_ + (waited - *usual_wait_) / kLately : waited;
    cut_short_ = 0;
    return;
  }
  if (!deadline) {
    const auto [text, ranks] = lacks();
    throw TimeoutError(text + " within " + format_seconds(timeout), ranks);
  }
  ++cut_short_;
}

// Longer after gathers that it has cut short, as ranks may have become slower; but not without end,
// as one of them may have stopped.
std::optional<nanoseconds> Gathering::automatic_deadline() const {
  if (!usual_wait_) return std::nullopt;
  return std::max(kAutomatic * std::min(1 + cut_short_, kMostLonger) * *usual_wait_,
                  nanoseconds(kLeastAutomatic));
}

// A part of BSP: the next scatter must find a slot without replacing an update that some rank has
// yet to fold. If the in- and out-neighbours are always the same ranks, that follows from the
// clocks, because a rank that has reached this iteration has folded the one before. On any other
// graph a sender could run ahead of its receivers by the length of the path back from them to it,
// so it waits here. Ranks never wait for one another in a cycle: the rank that is furthest behind
// does not wait, because its receivers have folded everything that it sent in earlier iterations.
void Gathering::wait_for_folds(nanoseconds timeout) {
  const SlotWriter& writer = state_.writer();
  const auto live = [this](int r) { return state_.is_live(r); };
  const auto has_free = [&] {
    strays_.take_in(true);
    return writer.has_free(live);
  };
  const auto lacks = [&](const std::vector<int>& ranks) {
    return "gather of " + state_.name() + " at staleness 0: " + describe_ranks(ranks) +
           " did not gather what this rank sent before iteration " +
           std::to_string(state_.iteration);
  };
  const auto missing = [&] { return writer.blocker(live); };
  if (state_.wait(has_free, timeout, [&] { return lacks(writer.blockers(live)); }, missing)) return;
  const std::vector<int> ranks = writer.blockers(live);
  if (ranks.empty()) return;
  throw TimeoutError(lacks(ranks) + " within " + format_seconds(timeout), ranks);
}

void Gathering::collect_own_iteration(nanoseconds timeout) {
  const bool is_queue = state_.is_queue();
  if (!is_queue && state_.options().depth < 2) {
    throw ConfigError(state_.name() +
                      ": a gather at staleness 0 needs depth >= 2 under policy 'latest' (it is 1), "
                      "because a neighbour may be one iteration ahead; raise depth or use 'queue'");
  }
  const std::uint64_t own = state_.iteration;
  if (own == 0) return;  // nothing has been sent, so nothing is due
  const std::vector<int>& in = state_.rounds.current().in;
  if (!is_queue) {
    for (int r : in) {
      SlotReader& reader = state_.reader(r);
      if (reader.consumed() >= own) continue;
      reader.hold_from(own);
      held_.push_back(r);
    }
    SlotReader::fence();  // S3
  }
  wait_for_clocks(own, timeout);
  // A rank that has left since the last look had sent everything before it said so.
  state_.take_in();
  if (is_queue) return collect_queued(own);
  if (!state_.rounds.is_in_step()) wait_for_folds(timeout);
  for (int r : in) collect_own_iteration_of(r, own);
}

// LATEST: takes the update of iteration `own` that `rank` has sent.
void Gathering::collect_own_iteration_of(int rank, std::uint64_t own) {
  SlotReader& reader = state_.reader(rank);
  // The update of a rank that has died or left counts if the rank got as far as this iteration.
  // That is settled for good, and looks the same to all ranks of the host (S6).
  if (reader.consumed() >= own || reader.clock() < own || state_.group().is_left_out(rank)) return;
  // The sender scattered this iteration in an earlier group. If the update was pending when this
  // rank left that group, it is in the stash.
  if (own <= state_.resumed[static_cast<std::size_t>(rank)]) {
    const Stash::Stashed* update = stashed(rank, own);
    if (update != nullptr && update->header.iteration == own) take(*update);
    return;
  }
  int slot = reader.find(own);
  // Its sender may have taken the ticket back and, seeing the hold, be about to restore it.
  for (int look = 0; slot < 0 && look < kLooksForMissing; ++look) {
    sched_yield();
    slot = reader.find(own);
  }
  if (slot >= 0) return take(rank, slot, own - 1, own);
  // The sender may already use the graph of a newer epoch, or still that of an older one.
  if (state_.rounds.is_repaired() || hears_of_epoch()) return;
  throw ConfigError(
      "gather of " + state_.name() + " at staleness 0: rank " + std::to_string(rank) +
      " did not send iteration " + std::to_string(own) +
      " to this rank, or has replaced it since; every rank must scatter over the same "
      "graph in each round and gather once a scatter, or use policy 'queue'");
}

bool Gathering::hears_of_epoch() {
  return state_.wait([this] { return state_.rounds.is_of_old_epoch(); }, kNews);
}

void Gathering::collect_newest() {
  for (int r : state_.peers()) {
    if (held_.size() >= state_.options().most_updates) break;
    if (!has_update(r)) continue;
    state_.reader(r).hold_from(state_.reader(r).consumed() + 1);
    held_.push_back(r);
  }
  if (held_.empty() && state_.stash.is_empty()) return;
  SlotReader::fence();  // S3
  const auto take_newest = [this](int r) {
    SlotReader& reader = state_.reader(r);
    const std::uint64_t consumed = reader.consumed();
    const int slot = reader.newest(consumed);
    if (slot < 0) return;  // being replaced at this moment; the next gather finds the new one
    take(r, slot, consumed, kMostIteration);
    reader.hold_only(updates_.back().iteration);
  };
  if (state_.stash.is_empty()) {
    for (int r : held_) take_newest(r);
    return;
  }
  for (int r : state_.peers()) {
    if (std::binary_search(held_.begin(), held_.end(), r)) {
      take_newest(r);
    } else if (const Stash::Stashed* update = stashed(r, kMostIteration)) {
      take(*update);
    }
  }
}

void Gathering::collect_queued(std::uint64_t limit) {
  for (int r : state_.peers()) {
    if (state_.group().is_left_out(r)) continue;
    for (const Stash::Stashed& update : state_.stash.updates()) {
      if (update.rank == r && update.header.iteration <= limit && !is_full()) take(update);
    }
    // Only up to the clock: a rank that died while it published an update may have stored only some
    // of the update's tickets (S6).
    SlotReader& reader = state_.reader(r);
    const std::uint64_t settled = std::min(limit, reader.clock());
    std::uint64_t after = reader.consumed();
    for (int slot; !is_full() && (slot = reader.oldest(after, settled)) >= 0;) {
      take(r, slot, after, settled);
      after = updates_.back().iteration;
    }
  }
}

void Gathering::take(int rank, int slot, std::uint64_t after, std::uint64_t limit) {
  const SlotHeader header = state_.header_of(rank, slot, after, limit);
  const SlotReader& reader = state_.reader(rank);
  updates_.push_back({rank,
                      header.iteration,
                      {reader.payload(slot), header.payload_bytes},
                      header.count,
                      header.format,
                      false});
  found_.push_back({reader.ordinal(slot), false, true});
}

void Gathering::take(const Stash::Stashed& update) {
  updates_.push_back({update.rank, update.header.iteration, update.payload, update.header.count,
                      update.header.format, true});
  found_.push_back({update.ordinal, true, true});
}

// If it throws, nothing counts as folded.
void Gathering::settle() {
  state_.is_in_round = false;
  state_.group().check_standing();  // the slots of an evicted rank may have been written meanwhile
  senders_.clear();
  for (std::size_t i = 0; i < updates_.size(); ++i) {
    senders_.push_back(updates_[i].rank);
    if (!found_[i].is_folded) continue;
    // A payload that was copied out may be longer than the one that said where it lay.
    state_.bytes_in += std::min(updates_[i].payload.size(), state_.options().slot_bytes);
  }
}

void Gathering::release() noexcept {
  for (std::size_t i = 0; i < updates_.size(); ++i) {
    SlotReader& reader = state_.reader(updates_[i].rank);
    reader.count(found_[i].ordinal, found_[i].is_folded);
    if (!found_[i].is_stashed) reader.release(updates_[i].iteration);
  }
  let_go();
}

void Gathering::let_go() noexcept {
  if (state_.group().is_forked()) return;  // the rank itself still reads
  for (int r : held_) state_.reader(r).let_go();
  held_.clear();
}

}  // namespace dstorm
