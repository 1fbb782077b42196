#include "dstorm/group.hpp"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "dstorm/channel.hpp"
#include "dstorm/fork.hpp"
#include "dstorm/shm/control.hpp"
#include "dstorm/tcp/engine.hpp"
#include "dstorm/wait.hpp"
#include "dstorm/watcher.hpp"

namespace dstorm {
namespace {

using std::chrono::nanoseconds;

// What a job may ask for, and which ranks then share memory.
struct TransportRow {
  std::string_view name;
  shm::Sharing sharing;
  tcp::Rdma rdma;
};
constexpr TransportRow kTransports[] = {
    {"auto", shm::Sharing::kPossible, tcp::Rdma::kIfThere},
    {"shm", shm::Sharing::kAll, tcp::Rdma::kNever},
    {"verbs", shm::Sharing::kNone, tcp::Rdma::kRequired},
    {"tcp", shm::Sharing::kNone, tcp::Rdma::kNever},
};

const TransportRow& row_of(const std::string& transport) {
  std::string known;
  for (const TransportRow& row : kTransports) {
    if (transport == row.name) return row;
    known += (known.empty() ? "'" : ", '") + std::string(row.name) + "'";
  }
  throw ConfigError("there is no transport '" + transport + "' in this build; choose " + known);
}

// How long a wait may burn a core before it yields: longer than a round takes among ranks that each
// have a core, zero where they have to share.
nanoseconds spin_time(const shm::Control& control) {
  return control.cores() >= static_cast<int>(control.locals().size())
             ? std::chrono::microseconds(50)
             : nanoseconds::zero();
}

constexpr std::chrono::milliseconds kLeastSilence{100};

double seconds(nanoseconds time) { return std::chrono::duration<double>(time).count(); }

std::string format_seconds(nanoseconds time) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g s", seconds(time));
  return text;
}

}  // namespace

struct Group::Impl {
  Impl(Bootstrap& bootstrap, GroupOptions given)
      : options(std::move(given)),
        row(row_of(options.transport)),
        control(bootstrap, row.sharing, options.timeout),
        waiter(control.bell(control.rank()), spin_time(control), control.superseded(),
               [this] { interrupt_wait(); }),
        news(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!news) {
      throw ConfigError(std::string("cannot watch the other ranks: ") + std::strerror(errno) +
                        "; raise the limit on open files (ulimit -n)");
    }
    if (control.hosts().size() > 1) {
      engine = std::make_unique<tcp::Engine>(
          bootstrap, control,
          tcp::EngineOptions{options.timeout, missed_after(), options.interface, options.toward,
                             options.secret, row.rdma, news.get(), tcp::Witness::find_program()});
      waiter.lend_a_hand(*engine);
    }
    watcher.emplace(control, engine.get(), news.get(),
                    WatcherOptions{missed_after(), options.tie, [this] { note_epoch(); }});
  }

  // The rest of the silence is for agreeing on whom to leave out.
  nanoseconds missed_after() const { return options.silence * 3 / 4; }

  // In the watcher's thread. A wait that others ring again and again would not look for a new epoch.
  void note_epoch() {
    if (!options.changed) return;
    options.changed();
    waiter.call_soon();
  }

  void interrupt_wait() {
    check_standing();
    if (options.interrupt) options.interrupt();
    if (control.superseded().load() == 0) return;
    const bool is_new = std::exchange(last_wait, waiter.waits()) != waiter.waits();
    if (!options.superseded || !options.superseded(is_new)) throw_superseded();
  }

  [[noreturn]] static void throw_superseded() {
    throw Superseded("the ranks go over to another group; call again there");
  }

  void check_standing() const {
    if (!control.is_left_out(control.rank())) return;
    std::vector<int> others;
    for (int r = 0; r < control.size(); ++r) {
      if (r != control.rank()) others.push_back(r);
    }
    const std::string who = "rank " + std::to_string(control.rank());
    const std::string silence = format_seconds(options.silence);
    throw PeerError(
        control.state(control.rank()) == shm::State::kEvicted
            ? who + " has been left out: the others heard nothing of it for " + silence +
                  " (was it stopped, or its network cut?) and go on without it"
            : who + " is cut off: it has heard nothing of so many of the others for " + silence +
                  " that those it can reach are no majority; the others may go "
                  "on without it",
        others);
  }

  const std::uint32_t forks = dstorm::forks();
  GroupOptions options;
  const TransportRow& row;
  shm::Control control;
  Waiter waiter;
  Descriptor news;                      // an eventfd, by which the watcher is told to look
  std::unique_ptr<tcp::Engine> engine;  // in a job of several hosts
  std::optional<Watcher> watcher;
  std::uint64_t exchanges = 0;
  std::uint32_t segments = 0;
  std::vector<std::string> names;  // in the order in which they were added
  bool left = false;
  std::uint64_t last_wait = 0;  // that has found the group superseded
  int passed_by = 0;            // calls since then at which it could not go over
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
bool Group::is_one_host() const noexcept {
  // A rank that is left alone is no other host for that.
  return impl_->engine == nullptr && (impl_->row.sharing != shm::Sharing::kNone || size() == 1);
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
                                             const shm::SegmentShape& shape) {
  return std::make_unique<Channel>(*this, impl_->control, impl_->engine.get(), ++impl_->segments,
                                   what, shape);
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
  if (impl_->left || is_forked()) return;
  impl_->left = true;
  shm::Control& control = impl_->control;
  control.mark(control.rank(), shm::State::kLeft);
  control.ring(control.neighbours());
  if (impl_->engine) impl_->engine->leave(impl_->options.timeout);
}

void Group::check_open() const {
  check_standing();
  if (is_superseded()) Impl::throw_superseded();
}

void Group::supersede() noexcept {
  impl_->control.superseded().store(1);
  impl_->control.ring(impl_->control.locals());
}

void Group::restore() noexcept {
  impl_->control.superseded().store(0);
  impl_->passed_by = 0;
}

bool Group::is_superseded() const noexcept { return impl_->control.superseded().load() != 0; }

bool Group::may_go_over_at(const std::string& segment) noexcept {
  constexpr int kMostPassedBy = 100;
  return is_superseded() && (impl_->names.front() == segment || ++impl_->passed_by > kMostPassedBy);
}

std::uint64_t Group::posted() const noexcept {
  return impl_->control.member(rank()).posted.load(std::memory_order_relaxed);
}

bool Group::await(const std::function<bool()>& ready, nanoseconds timeout) const {
  constexpr std::chrono::microseconds kNap{200};
  for (const auto start = Clock::now(); !ready(); std::this_thread::sleep_for(kNap)) {
    if (Clock::now() - start > timeout) return false;
    if (impl_->options.interrupt) impl_->options.interrupt();
  }
  return true;
}

void Group::await_posts(std::span<const std::uint64_t> by_rank, nanoseconds timeout) const {
  std::vector<int> missing;
  const auto all_here = [&] {
    missing.clear();
    for (int r = 0; r < size(); ++r) {
      const std::uint64_t posted = impl_->control.member(r).posted.load(std::memory_order_acquire);
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
  if (impl_->left) {
    throw ConfigError(
        "this rank has left the job (finalize was called); nothing can be sent, folded or "
        "waited for any more");
  }
  impl_->check_standing();
}

void Group::add_name(const std::string& name) {
  if (std::find(impl_->names.begin(), impl_->names.end(), name) != impl_->names.end()) {
    throw ConfigError("this job already has a segment named '" + name +
                      "'; give each a name of its own, or let go of the first");
  }
  impl_->names.push_back(name);
}

void Group::remove_name(const std::string& name) noexcept { std::erase(impl_->names, name); }

void Group::barrier(std::optional<nanoseconds> timeout) { exchange("barrier", {}, timeout); }

std::vector<std::optional<Bytes>> Group::exchange(std::string_view what,
                                                  std::span<const std::byte> mine,
                                                  std::optional<nanoseconds> timeout) {
  check_standing();
  shm::Control& control = impl_->control;
  if (mine.size() > kMostExchanged) {
    throw ConfigError("cannot exchange " + std::to_string(mine.size()) + " bytes; at most " +
                      std::to_string(kMostExchanged));
  }
  // Two notices in turn suffice: who posts to exchange n + 2 has seen everyone at n + 1, and who is
  // at n + 1 has read all of n.
  const std::uint64_t number = impl_->exchanges + 1;
  shm::Member& own = control.member(rank());
  shm::Notice& notice = own.notices[number % 2];
  what = what.substr(0, sizeof(notice.what));
  if (own.posted.load(std::memory_order_relaxed) == number) {
    // It timed out before and is tried again; what is posted may be being read.
    if (std::string_view(notice.what, notice.what_bytes) != what) {
      throw ConfigError(
          std::string(what) + " cannot start: '" + std::string(notice.what, notice.what_bytes) +
          "' timed out on this rank and the others may still come to it; repeat that first");
    }
  } else {
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

  const auto is_missing = [&](int r) {
    return control.member(r).posted.load(std::memory_order_acquire) < number;
  };
  int next = 0;  // ranks before it have been seen
  const auto all_here = [&] {
    while (next < size() && (!is_missing(next) || !is_live(next))) ++next;
    return next == size();
  };
  const nanoseconds limit = timeout.value_or(impl_->options.timeout);
  if (!impl_->waiter.until(all_here, limit)) {
    std::vector<int> missing;
    for (int r = 0; r < size(); ++r) {
      if (is_live(r) && is_missing(r)) missing.push_back(r);
    }
    throw TimeoutError(std::string(what) + ": " + describe_ranks(missing) +
                           " did not come within " + format_seconds(limit) +
                           "; every rank must make the same collective calls in the same order",
                       missing);
  }

  impl_->exchanges = number;

  std::vector<std::optional<Bytes>> posts(static_cast<std::size_t>(size()));
  std::map<std::string, std::vector<int>> doing;
  for (int r = 0; r < size(); ++r) {
    if (is_missing(r)) continue;  // dead or gone before it posted
    const shm::Notice& post = control.member(r).notices[number % 2];
    // Copied, then checked: it is another process's memory.
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
                      "); every rank must make the same ones in the same order");
  }
  return posts;
}

}  // namespace dstorm
