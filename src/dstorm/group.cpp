// How a group works. Group::Impl owns four parts. host::Control is the memory that the ranks of one
// host share: a doorbell, a state and a notice board for each rank of the job. remote::Engine
// exists only in a job of several hosts, and copies boards, states and membership records to the
// other hosts. Watcher is a thread that notices deaths and agrees on epochs. Waiter blocks a call
// until a condition holds.
//
// exchange() is the only collective step. Each rank posts a numbered notice on its own board, and
// waits until every live rank has posted the same number. barrier() is an exchange without bytes,
// and segments are made by several exchanges in turn.
//
// A rank that wants the others to move to another group sets the `superseded` word in the memory of
// its host. Every wait of that host then calls interrupt_wait(), which asks the owner of the groups
// whether to go on waiting.
#include "dstorm/group.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include "dstorm/group/impl.hpp"
#include "dstorm/segment/channel.hpp"

namespace dstorm {
namespace {

using std::chrono::nanoseconds;

constexpr std::chrono::milliseconds kLeastSilence{100};

}  // namespace

Group::Group() = default;

std::shared_ptr<Group> Group::join(Bootstrap& bootstrap, GroupOptions options) {
  if (options.timeout <= nanoseconds::zero()) {
    throw ConfigError("timeout is " + format_seconds(options.timeout) + "; it must be above 0");
  }
  if (options.silence < kLeastSilence) {
    throw ConfigError("silence is " + format_seconds(options.silence) + "; it must be at least " +
                      format_seconds(kLeastSilence));
  }
  const TransportRow row = row_of(options.transport);
  const Deadline deadline = options.deadline ? *options.deadline : options.timeout;
  std::shared_ptr<Group> group(new Group);
  group->impl_ = std::make_unique<Impl>(bootstrap, std::move(options), row, deadline);
  return group;
}

Group::~Group() {
  if (!impl_) return;
  if (is_forked()) {
    [[maybe_unused]] const Impl* const kept = impl_.release();  // its threads cannot be joined
  } else {
    leave();
  }
}

int Group::rank() const noexcept { return impl_->control.rank(); }
int Group::size() const noexcept { return impl_->control.size(); }
std::uint32_t Group::epoch() const noexcept { return impl_->control.epoch(); }
View Group::view() const { return impl_->watcher->view(); }
nanoseconds Group::timeout() const noexcept {
  return impl_->is_within() ? deadline().left() : impl_->options.timeout;
}
Deadline Group::deadline() const noexcept {
  if (!impl_->is_within()) return impl_->options.timeout;
  const nanoseconds end(impl_->ends_at.load(std::memory_order_relaxed));
  return {nanoseconds(impl_->limit.load(std::memory_order_relaxed)),
          end - Clock::now().time_since_epoch()};
}

struct Group::Within::Call {
  std::shared_ptr<Group> group;
  Turns::Turn turn;
  std::int64_t ended_at;  // Impl's, before
  std::int64_t limit;
};

Group::Within::Within(Group& group, const Deadline& deadline)
    : call_(new Call{group.shared_from_this(), {*group.turns(), "a call of several steps"}, 0, 0}) {
  const std::int64_t now = nanoseconds(Clock::now().time_since_epoch()).count();
  const std::int64_t left = std::min<std::int64_t>(deadline.left().count(), Impl::kNever - 1 - now);
  Impl& impl = *group.impl_;
  impl.within = pthread_self();
  call_->limit = impl.limit.exchange(deadline.limit().count(), std::memory_order_relaxed);
  call_->ended_at = impl.ends_at.exchange(now + left, std::memory_order_relaxed);
}

Group::Within::~Within() {
  Impl& impl = *call_->group->impl_;
  impl.ends_at.store(call_->ended_at, std::memory_order_relaxed);
  impl.limit.store(call_->limit, std::memory_order_relaxed);
}

Waiter& Group::waiter() noexcept { return impl_->waiter; }
const std::shared_ptr<Turns>& Group::turns() const noexcept { return impl_->turns; }
Recorder* Group::recorder() const noexcept { return impl_->options.recorder.get(); }
bool Group::is_one_host() const noexcept {
  // A job of a single rank counts as one host under every transport.
  return impl_->engine == nullptr && (impl_->row.sharing != host::Sharing::kNone || size() == 1);
}
bool Group::has_left() const noexcept { return impl_->left; }
bool Group::is_forked() const noexcept { return impl_->forks != forks(); }

bool Group::is_live(int rank) const noexcept { return impl_->control.is_live(rank); }

Group::Route Group::route(int rank) const {
  if (rank == this->rank()) return {"self", "it is this rank"};
  if (!impl_->control.is_member(rank)) return {"none", "it was dead when the ranks met"};
  if (impl_->control.is_local(rank))
    return {"shm", "this rank and it can map one another's memory"};
  return {impl_->engine->transport_to(rank), impl_->engine->why(rank)};
}

std::unique_ptr<Channel> Group::open_channel(std::string_view what, const host::SegmentShape& shape,
                                             const Graph& graph) {
  // The number of exchanges is the same on every rank. A counter of channels would differ after a
  // call that failed on some ranks only.
  const auto id = static_cast<std::uint32_t>(impl_->exchanges + 1);
  return std::make_unique<Channel>(*this, impl_->control, impl_->engine.get(), id, what, shape,
                                   graph);
}

bool Group::has_left(int rank) const noexcept {
  return impl_->control.state(rank) == host::State::kLeft;
}

bool Group::is_left_out(int rank) const noexcept { return impl_->control.is_left_out(rank); }

bool Group::has_left_out() const noexcept {
  if (epoch() == 0) return false;
  int rank = 0;
  while (rank < size() && !is_left_out(rank)) ++rank;
  return rank < size();
}

std::vector<int> Group::alive() const {
  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r) {
    if (is_live(r)) ranks.push_back(r);
  }
  return ranks;
}

void Group::leave(std::optional<nanoseconds> limit) noexcept {
  if (is_forked() || impl_->left.exchange(true)) return;
  host::Control& control = impl_->control;
  impl_->waiter.call_soon();  // ends the wait of another thread
  rouse(control.bell(control.rank()));
  control.mark(control.rank(), host::State::kLeft);
  control.ring(control.neighbours());
  // Zero would mean to the engine that nothing was made.
  if (impl_->engine) impl_->engine->leave(std::max(limit.value_or(timeout()), nanoseconds(1)));
}

void Group::check_open() const {
  check_standing();
  if (is_superseded()) Impl::throw_superseded();
}

void Group::supersede(std::uint32_t call) noexcept {
  std::uint32_t not_yet = 0;
  impl_->control.superseded().compare_exchange_strong(not_yet, call);
  impl_->control.ring(impl_->control.locals());
}

void Group::restore() noexcept { impl_->control.superseded().store(0); }

std::uint32_t Group::superseded_by() const noexcept { return impl_->control.superseded().load(); }

bool Group::may_go_over_at(const std::string& segment) noexcept {
  constexpr int kMostPassedBy = 100, kOfFirst = 25;
  const std::uint32_t call = superseded_by();
  if (call == 0) return false;
  const bool is_first = impl_->names.front() == segment;
  if (is_first && impl_->kept_since == call) return true;
  if (std::exchange(impl_->passed_since, call) != call) impl_->passed_by = 0;
  impl_->passed_by += is_first ? kOfFirst : 1;
  return impl_->passed_by > kMostPassedBy;
}

void Group::keep_round(const std::string& segment) noexcept {
  if (impl_->names.front() == segment) impl_->kept_since = superseded_by();
}

std::uint64_t Group::posted() const noexcept {
  return impl_->control.member(rank()).posted.load(std::memory_order_relaxed);
}

void Group::interrupt() const {
  const Turns::Pause pause(*impl_->turns, Turns::Code::kInterrupt);
  if (impl_->options.interrupt) impl_->options.interrupt();
}

bool Group::await(const std::function<bool()>& ready, nanoseconds timeout) const {
  constexpr std::chrono::microseconds kNap{200};
  for (const auto start = Clock::now(); !ready();) {
    if (Clock::now() - start > timeout) return false;
    interrupt();
    std::this_thread::sleep_for(kNap);
  }
  return true;
}

void Group::await_posts(std::span<const std::uint64_t> by_rank, nanoseconds timeout) const {
  std::vector<int> missing;
  const auto all_here = [&] {
    missing.clear();
    for (int r = 0; r < size(); ++r) {
      const std::uint64_t posted = impl_->control.board(r).posted.load(std::memory_order_acquire);
      if (is_live(r) && posted < by_rank[static_cast<std::size_t>(r)]) missing.push_back(r);
    }
    return missing.empty();
  };
  if (await(all_here, timeout)) return;
  throw TimeoutError("what " + describe_ranks(missing) + " posted last did not come within " +
                         format_seconds(timeout),
                     missing);
}

void Group::check_standing() const {
  if (is_forked()) {
    const int parent = rank();
    throw ConfigError("this process was forked from rank " + std::to_string(parent) + " (process " +
                      std::to_string(impl_->control.pid(parent)) +
                      ") and takes no part in the job; send, fold and wait in the rank itself");
  }
  impl_->check_standing();
}

void Group::add_name(const std::string& name) {
  if (impl_->by_name.contains(name)) {
    throw ConfigError("this job already has a segment or vector named '" + name +
                      "'; give each a name of its own, or let go of the first");
  }
  const auto added = impl_->names.insert(impl_->names.end(), name);
  impl_->by_name.emplace(*added, added);
}

void Group::remove_name(const std::string& name) noexcept {
  const auto found = impl_->by_name.find(name);
  if (found == impl_->by_name.end()) return;
  const auto removed = found->second;
  impl_->by_name.erase(found);  // its key points into the list's string
  impl_->names.erase(removed);
}

void Group::barrier(std::optional<nanoseconds> timeout) {
  const Turn turn(*impl_->turns, "barrier");
  exchange("barrier", {}, timeout);
}

}  // namespace dstorm
