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

#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <list>
#include <map>
#include <thread>
#include <unordered_map>
#include <utility>

#include "dstorm/group/watcher.hpp"
#include "dstorm/host/control.hpp"
#include "dstorm/host/fork.hpp"
#include "dstorm/host/wait.hpp"
#include "dstorm/remote/engine.hpp"
#include "dstorm/segment/channel.hpp"

namespace dstorm {
namespace {

using std::chrono::nanoseconds;

// The transports that a job may ask for, and which ranks then share memory.
struct TransportRow {
  std::string_view name;
  host::Sharing sharing;
  remote::Rdma rdma;
};
constexpr TransportRow kTransports[] = {
    {"auto", host::Sharing::kPossible, remote::Rdma::kIfThere},
    {"shm", host::Sharing::kAll, remote::Rdma::kNever},
    {"verbs", host::Sharing::kNone, remote::Rdma::kRequired},
    {"tcp", host::Sharing::kNone, remote::Rdma::kNever},
};

const TransportRow& row_of(const std::string& transport) {
  std::string known;
  for (const TransportRow& row : kTransports) {
    if (transport == row.name) return row;
    known += (known.empty() ? "'" : ", '") + std::string(row.name) + "'";
  }
  throw ConfigError("there is no transport '" + transport + "' in this build; choose " + known);
}

// How long a wait may spin on a core before it yields. It is longer than a round takes among ranks
// that each have a core, and zero where ranks share cores.
nanoseconds spin_time(const host::Control& control) {
  return control.cores() >= static_cast<int>(control.locals().size())
             ? std::chrono::microseconds(50)
             : nanoseconds::zero();
}

constexpr std::chrono::milliseconds kLeastSilence{100};

// The name of the call that "segment 'w', step 2" is a step of.
std::string_view call_of(std::string_view what) { return what.substr(0, what.rfind(", step ")); }

// Shortens the name of the call if need be; the name of the step stays whole.
std::string fit(std::string_view what, std::size_t most) {
  const std::string_view call = call_of(what);
  const std::string_view step = what.substr(call.size());
  const std::size_t room = most - std::min(step.size(), most);
  return std::string(call.substr(0, room)) + std::string(step.substr(0, most));
}

// Time limit for connecting the hosts, which reach one another at once or not at all.
constexpr std::chrono::seconds kConnect{30};
// The length in bytes at which an error message ends its list of calls.
constexpr std::size_t kLongText = 300;

}  // namespace

struct Group::Impl {
  Impl(Bootstrap& bootstrap, GroupOptions given)
      : options(std::move(given)),
        row(row_of(options.transport)),
        turns(options.turns ? options.turns : std::make_shared<Turns>()),
        control(bootstrap, row.sharing, options.timeout),
        waiter(control.bell(control.rank()), spin_time(control), control.superseded(),
               [this] { interrupt_wait(); }),
        news(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!news) {
      throw ConfigError(std::string("cannot watch the other ranks: ") + std::strerror(errno) +
                        "; raise the limit on open files (ulimit -n)");
    }
    waiter.give_way(*turns);
    waiter.tell_when_slow(options.slow_after, options.slow);
    if (control.hosts().size() > 1) {
      engine = std::make_unique<remote::Engine>(
          bootstrap, control,
          remote::EngineOptions{std::min<nanoseconds>(options.timeout, kConnect), missed_after(),
                                options.interface, options.toward, options.secret, row.rdma,
                                news.get(), remote::Witness::find_program()});
      waiter.lend_a_hand(*engine);
    }
    watcher.emplace(control, engine.get(), news.get(),
                    WatcherOptions{missed_after(), options.tie, [this] { note_epoch(); }});
  }

  // The last quarter of the silence is for agreeing on which ranks to evict.
  nanoseconds missed_after() const { return options.silence * 3 / 4; }

  // Runs in the watcher's thread. A wait that other ranks ring again and again would not look for a
  // new epoch by itself, so call_soon() makes it look.
  void note_epoch() {
    if (!options.changed) return;
    options.changed();
    waiter.call_soon();
  }

  void interrupt_wait() {
    check_standing();
    if (options.interrupt) {
      const Turns::Pause pause(*turns, Turns::Code::kInterrupt);
      options.interrupt();
    }
    check_standing();  // the interrupt may have left the job
    if (control.superseded().load() == 0) return;
    const bool is_new = std::exchange(last_wait, waiter.waits()) != waiter.waits();
    const Turns::Pause pause(*turns, Turns::Code::kOwn);  // its `superseded` works for this call
    if (!options.superseded || !options.superseded(is_new)) throw_superseded();
  }

  [[noreturn]] static void throw_superseded() {
    throw Superseded("the ranks move to another group; repeat the call there");
  }

  void check_standing() const {
    if (left.load(std::memory_order_relaxed)) {
      throw ConfigError(
          "this rank has left the job (leave or finalize was called); nothing can be sent, folded "
          "or waited for any more");
    }
    if (!control.is_left_out(control.rank())) return;
    std::vector<int> others;
    for (int r = 0; r < control.size(); ++r) {
      if (r != control.rank()) others.push_back(r);
    }
    const std::string who = "rank " + std::to_string(control.rank());
    const std::string silence = format_seconds(options.silence);
    const std::string trouble = engine ? engine->adapter_trouble() : "";
    const std::string adapter = trouble.empty() ? "" : "; RDMA does not get through " + trouble;
    throw PeerError(
        control.state(control.rank()) == host::State::kEvicted
            ? who + " was evicted from the job: the others received no heartbeat from it for " +
                  silence + " (was it stopped, or its network cut?), and go on without it" + adapter
            : who + " is cut off: for " + silence +
                  " it has received no heartbeat from so many ranks that those it can reach are no "
                  "majority; the others may go on without it" +
                  adapter,
        others);
  }

  const std::uint32_t forks = dstorm::forks();
  GroupOptions options;
  const TransportRow& row;
  const std::shared_ptr<Turns> turns;
  host::Control control;
  Waiter waiter;
  Descriptor news;                         // an eventfd; a write to it makes the watcher look
  std::unique_ptr<remote::Engine> engine;  // only in a job of several hosts
  std::optional<Watcher> watcher;
  std::uint64_t exchanges = 0;
  std::list<std::string> names;  // in the order in which they were added
  std::unordered_map<std::string_view, std::list<std::string>::iterator> by_name;
  std::atomic<bool> left{false};
  std::uint64_t last_wait = 0;     // the last wait that found the group superseded
  std::uint32_t passed_since = 0;  // superseded_by() to which passed_by belongs
  int passed_by = 0;               // weighted number of calls at which this rank could not move
  std::uint32_t kept_since = 0;    // superseded_by() when a round of the first segment was kept
};

Group::Group() = default;

std::shared_ptr<Group> Group::join(Bootstrap& bootstrap, GroupOptions options) {
  if (options.timeout <= nanoseconds::zero()) {
    throw ConfigError("timeout is " + format_seconds(options.timeout) + "; it must be above 0");
  }
  if (options.silence < kLeastSilence) {
    throw ConfigError("silence is " + format_seconds(options.silence) + "; it must be at least " +
                      format_seconds(kLeastSilence));
  }
  std::shared_ptr<Group> group(new Group);
  group->impl_ = std::make_unique<Impl>(bootstrap, std::move(options));
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
std::chrono::nanoseconds Group::timeout() const noexcept { return impl_->options.timeout; }
Waiter& Group::waiter() noexcept { return impl_->waiter; }
const std::shared_ptr<Turns>& Group::turns() const noexcept { return impl_->turns; }
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
  return {impl_->engine->has_rdma_with(rank) ? "verbs" : "tcp", impl_->engine->why(rank)};
}

std::unique_ptr<Channel> Group::open_channel(std::string_view what,
                                             const host::SegmentShape& shape) {
  // The number of exchanges is the same on every rank. A counter of channels would differ after a
  // call that failed on some ranks only.
  const auto id = static_cast<std::uint32_t>(impl_->exchanges + 1);
  return std::make_unique<Channel>(*this, impl_->control, impl_->engine.get(), id, what, shape);
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

void Group::leave() noexcept {
  if (is_forked() || impl_->left.exchange(true)) return;
  host::Control& control = impl_->control;
  impl_->waiter.call_soon();  // ends the wait of another thread
  rouse(control.bell(control.rank()));
  control.mark(control.rank(), host::State::kLeft);
  control.ring(control.neighbours());
  if (impl_->engine) impl_->engine->leave(impl_->options.timeout);
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

bool Group::await(const std::function<bool()>& ready, nanoseconds timeout) const {
  constexpr std::chrono::microseconds kNap{200};
  for (const auto start = Clock::now(); !ready();) {
    if (Clock::now() - start > timeout) return false;
    const Turns::Pause pause(*impl_->turns, Turns::Code::kInterrupt);
    if (impl_->options.interrupt) impl_->options.interrupt();
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

std::vector<std::optional<Bytes>> Group::exchange(std::string_view given,
                                                  std::span<const std::byte> mine,
                                                  std::optional<nanoseconds> timeout) {
  const Turn turn(*impl_->turns, "exchange");
  check_standing();
  host::Control& control = impl_->control;
  if (mine.size() > kMostExchanged) {
    throw ConfigError("cannot exchange " + std::to_string(mine.size()) + " bytes; at most " +
                      std::to_string(kMostExchanged));
  }
  // Two notices, used in turn, suffice: a rank that posts to exchange n + 2 has seen every rank at
  // n + 1, and a rank at n + 1 has read all of n.
  const nanoseconds limit = timeout.value_or(impl_->options.timeout);
  const auto start = Clock::now();
  std::uint64_t number = impl_->exchanges + 1;
  host::Member& own = control.member(rank());
  const std::string fitting = fit(given, sizeof(host::Notice::what));
  const std::string_view what = fitting;
  bool is_posted = own.posted.load(std::memory_order_relaxed) == number;
  if (is_posted) {
    // The last call timed out. Other ranks may be reading its notice now, so that notice stays and
    // counts for this call.
    const host::Notice& before = own.notices[number % 2];
    const std::string_view posted(before.what, before.what_bytes);
    if (call_of(posted) != call_of(what)) {
      throw ConfigError(std::string(what) + " cannot start: '" + std::string(call_of(posted)) +
                        "' timed out on this rank and the others may still come to it; repeat "
                        "that first");
    }
    // This is another step of the same call. The others finish the posted exchange, and learn there
    // that this rank has begun anew.
    if (posted != what) {
      await_posts_of(number, what, limit);
      impl_->exchanges = number++;
      is_posted = false;
    }
  }
  host::Notice& notice = own.notices[number % 2];
  if (!is_posted) {
    std::unique_lock<std::mutex> held;
    if (impl_->engine) held = impl_->engine->hold_notices();
    notice.what_bytes = static_cast<std::uint32_t>(what.size());
    std::memcpy(notice.what, what.data(), what.size());
    notice.bytes = static_cast<std::uint32_t>(mine.size());
    if (!mine.empty()) std::memcpy(notice.data, mine.data(), mine.size());
    own.posted.store(number, std::memory_order_release);
    if (held) held.unlock();
    control.ring(control.neighbours());
    if (impl_->engine) impl_->engine->flush_notices();
  }

  await_posts_of(number, what, limit - (Clock::now() - start));
  impl_->exchanges = number;
  return posts_of(number);
}

bool Group::has_posted(int rank, std::uint64_t number) const noexcept {
  return impl_->control.board(rank).posted.load(std::memory_order_acquire) >= number;
}

void Group::await_posts_of(std::uint64_t number, std::string_view what, nanoseconds limit) {
  int next = 0;  // all ranks below it have posted or are not live
  const auto all_here = [&] {
    while (next < size() && (has_posted(next, number) || !is_live(next))) ++next;
    return next == size();
  };
  const auto missing = [&] {
    std::vector<int> ranks;
    for (int r = 0; r < size(); ++r) {
      if (is_live(r) && !has_posted(r, number)) ranks.push_back(r);
    }
    return ranks;
  };
  const auto lacks = [&](const std::vector<int>& ranks) {
    return std::string(call_of(what)) + ": " + describe_ranks(ranks) + " did not come";
  };
  if (impl_->waiter.until(all_here, limit, false, [&] { return lacks(missing()); })) return;
  const std::vector<int> late = missing();
  if (late.empty()) return;  // the last rank posted just now
  throw TimeoutError(lacks(late) + " within " + format_seconds(limit) + last_calls(late) +
                         "; every rank must make the same collective calls in the same order",
                     late);
}

// The collective call that each of these ranks made last, for an error message.
std::string Group::last_calls(const std::vector<int>& ranks) const {
  std::string text;
  for (const int r : ranks) {
    const host::Board& board = impl_->control.board(r);
    const std::uint64_t posted = board.posted.load(std::memory_order_acquire);
    const host::Notice& last = board.notices[posted % 2];
    const std::string_view what(last.what,
                                std::min<std::size_t>(last.what_bytes, sizeof(last.what)));
    text += (text.empty() ? " (" : "; ") + describe_ranks({r}) +
            (posted == 0 ? " has made no such call" : " was last in " + std::string(call_of(what)));
    if (text.size() > kLongText) break;
  }
  return text.empty() ? "" : text + ")";
}

std::vector<std::optional<Bytes>> Group::posts_of(std::uint64_t number) const {
  std::vector<std::optional<Bytes>> posts(static_cast<std::size_t>(size()));
  std::map<std::string, std::vector<int>> doing;
  for (int r = 0; r < size(); ++r) {
    if (!has_posted(r, number)) continue;  // it died or left before it posted
    const host::Notice& post = impl_->control.board(r).notices[number % 2];
    // The board is another process's memory: lengths are copied, then checked.
    const std::size_t what_bytes = std::min<std::size_t>(post.what_bytes, sizeof(post.what));
    const std::size_t bytes = std::min<std::size_t>(post.bytes, kMostExchanged);
    doing[std::string(post.what, what_bytes)].push_back(r);
    posts[static_cast<std::size_t>(r)].emplace(post.data, post.data + bytes);
  }
  if (doing.size() > 1) {
    std::string who;
    for (const auto& [call, ranks] : doing) {
      who += (who.empty() ? "" : "; ") + describe_ranks(ranks) + ": " + call;
    }
    throw ConfigError("the ranks make different collective calls at once (" + who +
                      "); every rank must make the same ones in the same order, and all repeat one "
                      "that timed out on any");
  }
  return posts;
}

}  // namespace dstorm
