#include "dstorm/segment.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <map>

namespace dstorm {
namespace {

using std::chrono::nanoseconds;

constexpr int kMostDepth = 1024;
constexpr std::uint64_t kLongestTable = 64;  // rounds of a varying graph that are worth keeping
constexpr int kLooksForMissing = 64;
// Until this rank hears, at the latest, of an epoch that another has gone over to.
constexpr std::chrono::seconds kNews{1};

// The options as every rank must have them, as text: what differs can be shown.
std::vector<std::pair<std::string, std::string>> agreed_options(const SegmentOptions& options) {
  return {{"contents", options.kind},
          {"slot_bytes", std::to_string(options.slot_bytes)},
          {"depth", std::to_string(options.depth)},
          {"policy", options.policy == Policy::kLatest ? "latest" : "queue"},
          {"graph", options.graph.name()},
          {"graph_fingerprint", std::to_string(options.graph.fingerprint())},
          {"home_bytes", std::to_string(options.home_bytes)},
          {"result_bytes", std::to_string(options.result_bytes)}};
}

std::string what_of(const SegmentOptions& options) { return "segment '" + options.name + "'"; }

}  // namespace

Segment::Segment(std::shared_ptr<Group> group, SegmentOptions options)
    : group_(std::move(group)),
      turns_(group_->turns()),
      options_(std::move(options)),
      mailbox_shape_(group_->size(), options_.depth, options_.slot_bytes) {
  const Turn turn(*turns_, "making", options_.name);
  group_->check_standing();
  check_options();
  if (options_.rejoins) agree_on_iterations(*group_);
  open(group_);
  for (int r = 0; r < group_->size(); ++r) {
    if (r != group_->rank()) peers_.push_back(r);
  }
  in_step_ = options_.graph.is_static() && round_->out == round_->in && !is_repaired();
}

// The mailboxes in a group; everything is as before if it throws.
void Segment::open(const std::shared_ptr<Group>& group) {
  check_agreement(*group);
  group->add_name(options_.name);
  std::unique_ptr<Channel> channel;
  try {
    channel = group->open_channel(what_of(options_), {mailbox_shape_, options_.policy,
                                                      options_.home_bytes, options_.result_bytes});
  } catch (...) {
    group->remove_name(options_.name);
    throw;
  }
  // Who counts go on with. (What was sent to the others will never be folded.)
  const int rank = group->rank();
  std::vector<SlotReader> readers;
  for (int r = 0; r < group->size(); ++r) {
    readers.push_back(channel->reader(r));
  }
  SlotWriter writer(Mailbox(channel->memory().mailbox(rank), mailbox_shape_), rank);
  resumed_.resize(readers.size());
  for (int r : peers_) {
    if (comes_along(r)) {
      writer.go_on_from(r, writer_->addressed(r));
      readers[static_cast<std::size_t>(r)].go_on_from(reader(r), last_ordinal(r));
    } else if (channel_ != nullptr) {
      add_stats(r, false, gone_);
    }
  }
  writer.advance(iteration_);
  readers_ = std::move(readers);
  writer_ = std::move(writer);
  channel_ = std::move(channel);
  group_ = group;
  view_ = group_->view();
  draw_graph();
  channel_->deliver({}, 0);
}

// ---- going over to another group ----

// Everybody is here, so nobody does anything in the old group any more.
void Segment::agree_on_iterations(Group& group) {
  std::vector<std::byte> mine;
  if (channel_ != nullptr) {
    const std::uint64_t state[] = {iteration_, iteration_ - (is_in_round_ ? 1 : 0)};
    const auto bytes = std::as_bytes(std::span(state));
    mine.assign(bytes.begin(), bytes.end());
  }
  const auto posts = group.exchange(what_of(options_) + ", step 0", mine);
  std::uint64_t least = kMostIteration;
  along_.clear();
  resumed_.assign(posts.size(), 0);
  for (std::size_t r = 0; r < posts.size(); ++r) {
    std::uint64_t state[2];
    if (!posts[r] || posts[r]->size() != sizeof(state)) continue;
    std::memcpy(state, posts[r]->data(), sizeof(state));
    resumed_[r] = state[0];
    along_.push_back(static_cast<int>(r));
    least = std::min(least, state[1]);
  }
  if (along_.empty()) return;
  for (std::size_t r = 0; r < posts.size(); ++r) {
    if (!comes_along(static_cast<int>(r))) resumed_[r] = least;
  }
  iteration_ = resumed_[static_cast<std::size_t>(group.rank())];
}

// Of the updates of `rank` that this one has folded, rejected or put by.
std::uint64_t Segment::last_ordinal(int rank) const {
  const Mailbox box(channel_->memory().mailbox(rank), mailbox_shape_);
  std::uint64_t last = box.cursor(group_->rank()).ordinal.load(std::memory_order_relaxed);
  for (const PutBy& kept : put_by_) {
    if (kept.rank == rank) last = std::max(last, kept.ordinal);
  }
  return last;
}

bool Segment::comes_along(int rank) const {
  return std::binary_search(along_.begin(), along_.end(), rank);
}

// What is pending, out of the old mailboxes.
void Segment::take_along(const Group& next) {
  std::erase_if(along_, [this](int r) { return r != group_->rank() && !is_live(r); });
  std::erase_if(put_by_, [this](const PutBy& kept) { return !comes_along(kept.rank); });
  for (int r : along_) {
    if (r == group_->rank()) continue;
    // Another host's updates may still be on their way (S6: the clock comes last).
    const auto all_here = [&] {
      if (channel_->is_silent()) channel_->take_in();
      return reader(r).clock() >= resumed_[static_cast<std::size_t>(r)] || !next.is_live(r);
    };
    if (!group_->await(all_here, next.timeout())) {
      throw TimeoutError(what_of(options_) + ": what " + describe_ranks({r}) +
                             " sent last did not come within the time limit",
                         {r});
    }
    put_by(r, kMostIteration, std::numeric_limits<int>::max());
  }
}

void Segment::regroup(std::shared_ptr<Group> group) {
  const Turn turn(*turns_, "regroup", options_.name);
  const Round last = *round_;
  agree_on_iterations(*group);
  take_along(*group);
  open(group);
  other_round_ = last;
  round_ = &other_round_;
  last_sent_ = nullptr;
}

Segment::~Segment() {
  shut();
  if (!group_->is_forked()) return;
  [[maybe_unused]] const Channel* const kept = channel_.release();  // its adapter is the rank's
}

void Segment::close() {
  const Turn turn(*turns_, "close", options_.name);
  shut();
}

void Segment::shut() noexcept {
  const Turns::Look look(*turns_);
  if (channel_ == nullptr || group_->is_forked() || channel_->is_closed(group_->rank())) return;
  channel_->close();
  group_->remove_name(options_.name);
}

void Segment::check_options() const {
  const std::string what = what_of(options_);
  if (options_.depth < 1 || options_.depth > kMostDepth) {
    throw ConfigError(what + ": depth is " + std::to_string(options_.depth) +
                      "; it must be from 1 to " + std::to_string(kMostDepth));
  }
  if (options_.slot_bytes == 0) throw ConfigError(what + " has 0 bytes; a vector needs an element");
  const double total = static_cast<double>(options_.slot_bytes) * options_.depth * group_->size();
  if (total > 1e15) {
    throw ConfigError(what + " needs ranks x depth x bytes = " + std::to_string(group_->size()) +
                      " x " + std::to_string(options_.depth) + " x " +
                      std::to_string(options_.slot_bytes) + " bytes, which no machine has");
  }
  options_.graph.check(group_->size());
}

void Segment::check_agreement(Group& group) const {
  std::string mine;
  for (const auto& [key, value] : agreed_options(options_)) mine += key + "\t" + value + "\n";
  mine.resize(std::min(mine.size(), Group::kMostExchanged));
  const auto posts = group.exchange(what_of(options_) + ", step 1",
                                    std::as_bytes(std::span(mine.data(), mine.size())));
  std::map<std::string, std::map<std::string, std::vector<int>>> seen;  // key -> value -> ranks
  for (std::size_t r = 0; r < posts.size(); ++r) {
    if (!posts[r]) continue;
    std::string text(reinterpret_cast<const char*>(posts[r]->data()), posts[r]->size());
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      const std::size_t tab = std::min(text.find('\t', at), end);
      seen[text.substr(at, tab - at)]
          [text.substr(std::min(tab + 1, end), end - std::min(tab + 1, end))]
              .push_back(static_cast<int>(r));
      at = end + 1;
    }
  }
  std::string differences;
  for (const auto& [key, values] : seen) {
    if (values.size() < 2) continue;
    differences += (differences.empty() ? "" : "; ") + key + " is";
    std::string separator = " ";
    for (const auto& [value, ranks] : values) {
      differences += separator + value + " on " + describe_ranks(ranks);
      separator = ", ";
    }
  }
  if (!differences.empty()) {
    throw ConfigError(what_of(options_) + " is not the same on all ranks: " + differences +
                      "; every rank must make its vectors in the same order with the same options");
  }
}

void Segment::begin_call(bool begins_round) {
  group_->check_standing();
  is_used_ = true;
  if (is_closed()) {
    throw ConfigError(what_of(options_) + " has been closed");
  }
  if (begins_round && group_->may_go_over_at(options_.name)) group_->check_open();
}

// ---- graph ----

bool Segment::is_repaired() const noexcept {
  return view_.members.size() < static_cast<std::size_t>(group_->size());
}

Graph Segment::among_members(const Graph& graph) const {
  return is_repaired() ? graph.repaired(view_.members, group_->size()) : graph;
}

Segment::Round Segment::make_round(const Graph& graph, std::uint64_t round) const {
  const std::vector<int>& members = view_.members;
  const auto size = static_cast<int>(members.size());
  const auto rank = static_cast<int>(
      std::lower_bound(members.begin(), members.end(), group_->rank()) - members.begin());
  const Graph drawn = among_members(graph);
  Round made{drawn.out(rank, size, round), drawn.in(rank, size, round),
             drawn.weights(rank, size, round)};
  for (std::vector<int>* side : {&made.out, &made.in}) {
    for (int& r : *side) r = members[static_cast<std::size_t>(r)];
  }
  return made;
}

void Segment::draw_graph() {
  repeating_.clear();
  const std::uint64_t period =
      among_members(options_.graph).period(static_cast<int>(view_.members.size()));
  if (options_.graph.repeats() && period <= kLongestTable) {
    for (std::uint64_t round = 0; round < period; ++round) {
      repeating_.push_back(make_round(options_.graph, round));
    }
  }
  round_ = &round_of(options_.graph, std::max<std::uint64_t>(iteration_, 1) - 1);
}

// The ranks go over to the graph of a new epoch each by itself, at a scatter. Meanwhile one may
// send where it is not expected, or be expected where it does not send: see take_in_strays() and
// collect_own_iteration().
void Segment::follow_view() {
  View view = group_->view();
  if (view.epoch == view_.epoch || !view.has(group_->rank())) return;
  Round before = in_step_ ? *round_ : Round{};
  view_ = std::move(view);
  draw_graph();
  for (std::vector<int>* side : {&before.out, &before.in}) {
    std::erase_if(*side, [this](int r) { return !view_.has(r); });
  }
  in_step_ = in_step_ && before.out == round_->out && before.in == round_->in;
}

bool Segment::hears_of_epoch() {
  return wait([this] { return group_->epoch() != view_.epoch; }, kNews);
}

// While this rank waits for others: what came by the graph of another epoch, or from a neighbour
// that ran behind in a part of the graph that had come apart. Its sender may be waiting for just
// that. A QUEUE keeps it for the next gather; under LATEST a gather at staleness 0 (`exact`) will
// never fold it.
void Segment::take_in_strays(bool exact) {
  if (!is_repaired() && group_->epoch() == view_.epoch) return;
  if (!exact && options_.policy == Policy::kLatest) return;
  freed_.clear();
  for (int r : peers_) {
    const bool is_due = std::binary_search(round_->in.begin(), round_->in.end(), r);
    const std::uint64_t limit = iteration_ - (is_due && iteration_ > 0 ? 1 : 0);
    if (options_.policy == Policy::kQueue) {
      put_by(r, limit, std::numeric_limits<int>::max());
      continue;
    }
    if (reader(r).oldest(reader(r).consumed(), limit) < 0) continue;
    reader(r).hold_from(reader(r).consumed() + 1);
    SlotReader::fence();  // S3
    const int slot = reader(r).oldest(reader(r).consumed(), limit);
    if (slot >= 0) {
      const std::uint64_t iteration = header_of(r, slot, reader(r).consumed(), limit).iteration;
      reader(r).count(reader(r).ordinal(slot), false);
      reader(r).release(iteration);
      freed_.push_back(r);
    }
    if (is_due) {
      reader(r).hold_from(iteration_);  // as collect_own_iteration() has it, without a gap
    } else {
      reader(r).let_go();
    }
  }
  if (!freed_.empty()) channel_->acknowledge(freed_, true);
}

const Segment::Round& Segment::round_of(const Graph& graph, std::uint64_t round) {
  const bool own = &graph == &options_.graph || graph == options_.graph;
  if (own && !repeating_.empty()) return repeating_[round % repeating_.size()];
  if (!own) {
    graph.check(group_->size());
    in_step_ = false;
  }
  other_round_ = make_round(graph, round);
  return other_round_;
}

// ---- scatter ----

std::byte* Segment::begin_scatter(const Graph* graph) {
  begin_call(true);
  if (group_->epoch() != view_.epoch) follow_view();
  const Round& round = round_of(graph == nullptr ? options_.graph : *graph, iteration_);
  to_.clear();
  for (int r : round.out) {
    if (is_live(r)) to_.push_back(r);
  }
  const auto live = [this](int r) { return is_live(r); };
  slot_ = writer_->claim(options_.policy, live);
  if (slot_ < 0 && options_.policy == Policy::kQueue) slot_ = wait_for_slot(group_->timeout());
  if (slot_ < 0 && channel_->make_room()) slot_ = writer_->claim(options_.policy, live);
  round_ = &round;
  return slot_ < 0 ? nullptr : writer_->payload(slot_);
}

int Segment::wait_for_slot(nanoseconds timeout) {
  const auto live = [this](int r) { return is_live(r); };
  const bool crosses_hosts = !group_->is_one_host();
  int slot = -1;
  const auto has_slot = [&] {
    take_in_strays(false);
    if (crosses_hosts) {
      freed_.clear();
      for (int r : peers_) put_by(r, std::numeric_limits<std::uint64_t>::max(), options_.depth);
      if (!freed_.empty()) channel_->acknowledge(freed_, true);
    }
    return (slot = writer_->claim(options_.policy, live)) >= 0;
  };
  const auto lacks = [&](const std::vector<int>& ranks) {
    return "scatter of " + what_of(options_) + ": all " + std::to_string(options_.depth) +
           " slots hold updates that " + describe_ranks(ranks) + " did not gather";
  };
  if (!wait(has_slot, timeout, [&] { return lacks(writer_->blockers(live)); })) {
    const std::vector<int> ranks = writer_->blockers(live);
    if (ranks.empty() && has_slot()) return slot;
    throw TimeoutError(lacks(ranks) + " within " + format_seconds(timeout) +
                           "; gather as often as you scatter, or raise depth",
                       ranks);
  }
  return slot;
}

// QUEUE, between hosts. Ranks that fold what has come before each scatter never block one another
// for good where updates are seen at once. Over a network each could see nothing of the others' yet,
// run on until its slots are full, and then all would wait in scatter, with nobody to fold. So who
// waits for a slot takes what arrives out of its slot, up to `depth` updates a sender, and the next
// gather folds it: a rank that waits always gives the others as much room as they have slots.
void Segment::put_by(int rank, std::uint64_t limit, int most) {
  const auto kept =
      std::count_if(put_by_.begin(), put_by_.end(), [&](const PutBy& p) { return p.rank == rank; });
  const std::uint64_t settled = std::min(limit, reader(rank).clock());
  bool is_any = false;
  for (std::ptrdiff_t room = most - kept; room > 0; --room) {
    const std::uint64_t consumed = reader(rank).consumed();
    const int slot = reader(rank).oldest(consumed, settled);
    if (slot < 0) break;
    const SlotHeader header = header_of(rank, slot, consumed, settled);
    const std::byte* payload = reader(rank).payload(slot);
    put_by_.push_back(
        {rank, header, reader(rank).ordinal(slot), {payload, payload + header.payload_bytes}});
    reader(rank).release(header.iteration);
    is_any = true;
  }
  if (is_any) freed_.push_back(rank);
}

std::span<const int> Segment::end_scatter(std::size_t bytes, Tag tag, bool may_lag) {
  if (bytes > options_.slot_bytes) {
    cancel_scatter();
    throw ConfigError(what_of(options_) + ": an update of " + std::to_string(bytes) +
                      " bytes does not fit a slot of " + std::to_string(options_.slot_bytes));
  }
  try {
    group_->check_standing();  // this rank may have been stopped, and left out meanwhile
  } catch (...) {
    cancel_scatter();
    throw;
  }
  SlotHeader header{};
  header.iteration = ++iteration_;
  is_in_round_ = true;
  header.payload_bytes = bytes;
  header.count = tag.count;
  header.format = tag.format;
  writer_->publish(slot_, header, to_);
  last_sent_ = writer_->payload(slot_);
  channel_->deliver(to_, bytes, may_lag);
  slot_ = -1;
  bytes_out_ += bytes * to_.size();
  return to_;
}

std::span<const int> Segment::skip_scatter() {
  last_sent_ = nullptr;
  is_in_round_ = true;
  writer_->skip(++iteration_, to_);
  channel_->deliver(to_, 0);  // they may wait for the clock
  return {};
}

void Segment::cancel_scatter() noexcept {
  if (group_->is_forked()) return;  // the rank still writes
  writer_->abandon(slot_);
  slot_ = -1;
}

std::span<const int> Segment::scatter(std::span<const std::byte> payload, const Graph* graph) {
  if (payload.size() > options_.slot_bytes) {
    throw ConfigError(what_of(options_) + ": an update of " + std::to_string(payload.size()) +
                      " bytes does not fit a slot of " + std::to_string(options_.slot_bytes));
  }
  return scatter(
      [&](std::span<std::byte> room) {
        if (!payload.empty()) std::memcpy(room.data(), payload.data(), payload.size());
        return std::pair(payload.size(), Tag{payload.size(), 0});
      },
      graph);
}

std::byte* Segment::claim_room(nanoseconds timeout) {
  begin_call(false);
  last_sent_ = nullptr;
  slot_ = wait_for_slot(timeout);
  return writer_->payload(slot_);
}

void Segment::release_room() { cancel_scatter(); }

// ---- gather ----

std::span<const Update> Segment::begin_gather(const GatherOptions& options) {
  begin_call(!options.staleness);
  updates_.clear();
  found_.clear();
  held_.clear();
  const nanoseconds timeout = options.timeout.value_or(group_->timeout());
  if (channel_->is_silent()) channel_->take_in();
  try {
    if (options.staleness == 0) {
      collect_own_iteration(timeout);
      return updates_;
    }
    if (options.staleness && *options.staleness < iteration_) {
      wait_for_clocks(iteration_ - *options.staleness, timeout);
    }
    if (options_.policy == Policy::kQueue) {
      collect_queued(kMostIteration);
    } else {
      collect_newest();
    }
  } catch (...) {
    let_go();
    throw;
  }
  return updates_;
}

std::uint64_t Segment::clock_of(int rank) {
  if (channel_->is_silent()) channel_->take_in();
  return reader(rank).clock();
}

std::vector<int> Segment::left_behind() {
  std::vector<int> ranks;
  for (int r : peers_) {
    if (group_->has_left(r) && clock_of(r) < iteration_) ranks.push_back(r);
  }
  return ranks;
}

bool Segment::has_update(int rank) {
  return reader(rank).newest(reader(rank).consumed()) >= 0 && !group_->is_left_out(rank);
}

bool Segment::await_update(std::size_t live, nanoseconds timeout) {
  const Turn turn(*turns_, "a wait for updates", options_.name);
  begin_call(false);
  const auto is_news = [&] {
    if (group_->is_superseded()) return true;
    std::size_t alive = 1;
    for (int r : peers_) {
      if (has_update(r) || newest_put_by(r, kMostIteration) != nullptr) return true;
      alive += group_->is_live(r) ? 1 : 0;
    }
    return alive != live;
  };
  try {
    return wait(is_news, timeout);
  } catch (const Superseded&) {
    return true;
  }
}

void Segment::wait_for_clocks(std::uint64_t target, nanoseconds timeout) {
  const std::vector<int>& senders = round_->in;
  const auto is_behind = [&](int r) { return reader(r).clock() < target && is_live(r); };
  std::size_t next = 0;  // senders before it have been seen
  const auto all_there = [&] {
    take_in_strays(target == iteration_);
    while (next < senders.size() && !is_behind(senders[next])) ++next;
    return next == senders.size();
  };
  const auto behind = [&] {
    std::vector<int> ranks;
    std::ranges::copy_if(senders, std::back_inserter(ranks), is_behind);
    return ranks;
  };
  const auto lacks = [&](const std::vector<int>& ranks) {
    return "gather of " + what_of(options_) + ": " + describe_ranks(ranks) +
           " did not scatter iteration " + std::to_string(target);
  };
  if (wait(all_there, timeout, [&] { return lacks(behind()); })) return;
  const std::vector<int> ranks = behind();
  if (ranks.empty()) return;  // the last has come just now
  std::string at = " (this rank is at iteration " + std::to_string(iteration_);
  at += ", " + describe_ranks({ranks[0]}) + " at " + std::to_string(reader(ranks[0]).clock());
  throw TimeoutError(lacks(ranks) + " within " + format_seconds(timeout) + at + ")", ranks);
}

// Part of BSP: the next scatter shall find a slot without replacing an update that somebody has yet
// to fold. Where in- and out-neighbours are always the same this follows from the clocks, since who
// has reached this iteration has folded the one before. Otherwise a sender could run ahead of its
// receivers by as much as the way back from them to it is long. The rank that is furthest behind
// never waits here (its receivers have folded more than it has sent), so there is no circle of
// ranks that wait.
void Segment::wait_for_folds(nanoseconds timeout) {
  const auto live = [this](int r) { return is_live(r); };
  const auto has_free = [&] {
    take_in_strays(true);
    return writer_->has_free(live);
  };
  const auto lacks = [&](const std::vector<int>& ranks) {
    return "gather of " + what_of(options_) + " at staleness 0: " + describe_ranks(ranks) +
           " did not gather what this rank sent before iteration " + std::to_string(iteration_);
  };
  if (wait(has_free, timeout, [&] { return lacks(writer_->blockers(live)); })) return;
  const std::vector<int> ranks = writer_->blockers(live);
  if (ranks.empty()) return;
  throw TimeoutError(lacks(ranks) + " within " + format_seconds(timeout), ranks);
}

void Segment::collect_own_iteration(nanoseconds timeout) {
  const bool queue = options_.policy == Policy::kQueue;
  if (!queue && options_.depth < 2) {
    throw ConfigError(what_of(options_) +
                      ": a gather at staleness 0 needs depth >= 2 under policy 'latest' (it is 1), "
                      "because a neighbour may be one iteration ahead; raise depth or use 'queue'");
  }
  const std::uint64_t own = iteration_;
  if (own == 0) return;  // nothing has been sent, so nothing is due
  if (!queue) {
    for (int r : round_->in) {
      if (reader(r).consumed() >= own) continue;
      reader(r).hold_from(own);
      held_.push_back(r);
    }
    SlotReader::fence();  // S3
  }
  wait_for_clocks(own, timeout);
  // Who has left since the last look had everything here before it said so.
  if (channel_->is_silent()) channel_->take_in();
  if (queue) {
    collect_queued(own);
    return;
  }
  if (!in_step_) wait_for_folds(timeout);
  for (int r : round_->in) {
    // A rank that died or left counts if it got as far as this iteration, which is settled for good
    // and looks the same to everyone (S6).
    if (reader(r).consumed() >= own || reader(r).clock() < own || group_->is_left_out(r)) continue;
    // Of an iteration before it came into this group, there is what came along.
    if (own <= resumed_[static_cast<std::size_t>(r)]) {
      const PutBy* kept = newest_put_by(r, own);
      if (kept != nullptr && kept->header.iteration == own) take(*kept);
      continue;
    }
    int slot = reader(r).find(own);
    // Its sender may have taken the ticket back and, seeing the hold, be about to restore it.
    for (int look = 0; slot < 0 && look < kLooksForMissing; ++look) {
      sched_yield();
      slot = reader(r).find(own);
    }
    // It may send by the graph of another epoch already, or still.
    if (slot < 0 && (is_repaired() || hears_of_epoch())) continue;
    if (slot < 0) {
      throw ConfigError(
          "gather of " + what_of(options_) + " at staleness 0: rank " + std::to_string(r) +
          " did not send iteration " + std::to_string(own) +
          " to this rank, or has replaced it since; every rank must scatter over the same "
          "graph in each round and gather once a scatter, or use policy 'queue'");
    }
    take(r, slot, own - 1, own);
  }
}

void Segment::collect_newest() {
  for (int r : peers_) {
    if (!has_update(r)) continue;
    reader(r).hold_from(reader(r).consumed() + 1);
    held_.push_back(r);
  }
  if (held_.empty() && put_by_.empty()) return;
  SlotReader::fence();  // S3
  const auto take_newest = [this](int r) {
    const std::uint64_t consumed = reader(r).consumed();
    const int slot = reader(r).newest(consumed);
    if (slot < 0) return;  // being replaced at this moment; the next gather finds the new one
    take(r, slot, consumed, kMostIteration);
    reader(r).hold_only(updates_.back().iteration);
  };
  if (put_by_.empty()) {
    for (int r : held_) take_newest(r);
    return;
  }
  for (int r : peers_) {
    if (std::binary_search(held_.begin(), held_.end(), r)) {
      take_newest(r);
    } else if (const PutBy* kept = newest_put_by(r, kMostIteration)) {
      take(*kept);
    }
  }
}

void Segment::collect_queued(std::uint64_t limit) {
  for (int r : peers_) {
    if (group_->is_left_out(r)) continue;
    for (const PutBy& kept : put_by_) {
      if (kept.rank != r || kept.header.iteration > limit) continue;
      take(kept);
    }
    // Not beyond the clock: a rank that died over an update may have told some of it only (S6).
    const std::uint64_t settled = std::min(limit, reader(r).clock());
    std::uint64_t after = reader(r).consumed();
    for (int slot; (slot = reader(r).oldest(after, settled)) >= 0;) {
      take(r, slot, after, settled);
      after = updates_.back().iteration;
    }
  }
}

// Of an update that was looked for beyond iteration `after` and not beyond `limit`.
SlotHeader Segment::header_of(int rank, int slot, std::uint64_t after, std::uint64_t limit) {
  const SlotHeader header = reader(rank).header(slot);  // copied, then checked
  if (header.payload_bytes > options_.slot_bytes ||
      header.sender != static_cast<std::uint32_t>(rank) || header.iteration <= after ||
      header.iteration > limit) {
    group_->check_standing();  // once it has been left out, others write what this rank holds
    throw Error(
        "rank " + std::to_string(rank) + " wrote a slot header that cannot be (payload of " +
        std::to_string(header.payload_bytes) + " bytes in a slot of " +
        std::to_string(options_.slot_bytes) + ", sender " + std::to_string(header.sender) +
        ", iteration " + std::to_string(header.iteration) + " where " + std::to_string(after + 1) +
        " to " + std::to_string(limit) + " can be); its memory is damaged");
  }
  return header;
}

void Segment::take(int rank, int slot, std::uint64_t after, std::uint64_t limit) {
  const SlotHeader header = header_of(rank, slot, after, limit);
  updates_.push_back({rank,
                      header.iteration,
                      {reader(rank).payload(slot), header.payload_bytes},
                      header.count,
                      header.format});
  found_.push_back({reader(rank).ordinal(slot), false, true});
}

void Segment::take(const PutBy& kept) {
  updates_.push_back(
      {kept.rank, kept.header.iteration, kept.payload, kept.header.count, kept.header.format});
  found_.push_back({kept.ordinal, true, true});
}

const Segment::PutBy* Segment::newest_put_by(int rank, std::uint64_t limit) const {
  const PutBy* newest = nullptr;
  for (const PutBy& kept : put_by_) {
    if (kept.rank == rank && kept.header.iteration <= limit) newest = &kept;
  }
  return group_->is_left_out(rank) ? nullptr : newest;
}

void Segment::end_gather() {
  if (group_->is_forked()) return;  // during the fold: what was gathered is the rank's
  is_in_round_ = false;
  group_->check_standing();  // the slots of who has been left out may have been written meanwhile
  for (std::size_t i = 0; i < updates_.size(); ++i) {
    const Update& update = updates_[i];
    reader(update.rank).count(found_[i].ordinal, found_[i].folded);
    if (!found_[i].is_put_by) reader(update.rank).release(update.iteration);
    if (found_[i].folded) bytes_in_ += update.payload.size();
  }
  let_go();
  // Who may be waiting for this: a QUEUE sender for a slot, a BSP sender for its receivers' folds.
  if (!updates_.empty()) {
    to_.clear();
    for (const Update& update : updates_) to_.push_back(update.rank);
    channel_->acknowledge(to_, options_.policy == Policy::kQueue || !in_step_);
    std::erase_if(put_by_, [this](const PutBy& kept) {
      return std::any_of(updates_.begin(), updates_.end(), [&](const Update& update) {
        return update.rank == kept.rank && update.iteration >= kept.header.iteration;
      });
    });
  }
}

void Segment::let_go() noexcept {
  if (group_->is_forked()) return;  // the rank still reads
  for (int r : held_) reader(r).let_go();
  held_.clear();
}

Stats Segment::stats() const {
  const Turns::Look look(*turns_);
  Stats stats = gone_;
  for (int r : peers_) add_stats(r, is_live(r), stats);
  stats.bytes_out = bytes_out_;
  stats.bytes_in = bytes_in_;
  stats.wait_seconds = std::chrono::duration<double>(waited_).count();
  return stats;
}

// Of the updates sent to `rank`.
void Segment::add_stats(int rank, bool is_live, Stats& stats) const {
  const Mailbox own(channel_->memory().mailbox(group_->rank()), mailbox_shape_);
  const Cursor& cursor = own.cursor(rank);
  const std::uint64_t sent = writer_->addressed(rank);
  const std::uint64_t folded = cursor.folded.load(std::memory_order_acquire);
  const std::uint64_t rejected = cursor.rejected.load(std::memory_order_acquire);
  std::uint64_t overwritten = cursor.overwritten.load(std::memory_order_acquire);
  stats.sent += sent;
  stats.folded += folded;
  stats.rejected += rejected;
  if (is_live && options_.policy == Policy::kQueue) {
    stats.pending += sent - folded - rejected;
  } else if (is_live) {
    // Beyond the receiver's last gather, what is not in a slot has been replaced. In this order,
    // a gather in between cannot make the difference negative.
    const std::uint64_t last = cursor.ordinal.load(std::memory_order_acquire);
    const std::uint64_t pending = writer_->pending(rank);
    overwritten += sent - last - pending;
    stats.pending += pending;
  } else {
    stats.to_dead += sent - folded - rejected - overwritten;
  }
  stats.overwritten += overwritten;
}

}  // namespace dstorm
