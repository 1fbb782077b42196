#include "dstorm/group/watcher.hpp"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <iterator>
#include <utility>

#include "dstorm/host/quiet_thread.hpp"
#include "dstorm/recorder/recorder.hpp"
#include "dstorm/remote/engine.hpp"

namespace dstorm {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// How many times in one silence the watcher looks at the others' records; and how long it sleeps
// between two looks while there is trouble.
constexpr int kLooksBeforeSuspicion = 32;
constexpr milliseconds kInTrouble{1};
// At most this many new records are taken in at one look, which bounds the work of a step. The next
// look continues with the rank after the last.
constexpr int kMostNews = 256;

MembershipOptions options_for(const host::Control& control, const WatcherOptions& options) {
  std::vector<int> hosts;
  for (int r = 0; r < control.size(); ++r) hosts.push_back(control.host_of(r));
  return {.rank = control.rank(),
          .first = {.members = control.members()},
          .hosts = std::move(hosts),
          .tie = options.tie,
          .timeout = options.suspect_after};
}

// The processor time of the calling thread.
nanoseconds processor_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + nanoseconds(time.tv_nsec);
}

nanoseconds since_boot(Clock::time_point time) { return time.time_since_epoch(); }

}  // namespace

Watcher::Watcher(host::Control& control, remote::Engine* engine, int alarm,
                 const WatcherOptions& options)
    : control_(control),
      engine_(engine),
      alarm_(alarm),
      options_(options),
      membership_(options_for(control, options), since_boot(Clock::now())),
      known_(static_cast<std::size_t>(control.size())),
      followed_(membership_.view()) {
  note_watched();
  thread_ = start_quiet_thread([this] { run(); });
}

Watcher::~Watcher() {
  stop_.store(true);
  eventfd_write(alarm_, 1);
  thread_.join();
}

View Watcher::view() const {
  const std::lock_guard lock(mutex_);
  return followed_;
}

void Watcher::run() {
  std::vector<pollfd> watched{{alarm_, POLLIN, 0}};
  std::vector<int> ranks{control_.rank()};
  for (int r : control_.neighbours()) {
    watched.push_back({control_.pidfd(r), POLLIN, 0});
    ranks.push_back(r);
  }
  const auto tick = std::max(
      std::chrono::duration_cast<milliseconds>(options_.suspect_after / kLooksBeforeSuspicion),
      kInTrouble);
  while (!stop_.load()) {
    const milliseconds limit = membership_.has_trouble() || is_behind_ ? kInTrouble : tick;
    const int count = poll(watched.data(), watched.size(), static_cast<int>(limit.count()));
    if (count < 0 && errno != EINTR) return;
    for (std::size_t i = 0; count > 0 && i < watched.size(); ++i) {
      if (watched[i].revents == 0) continue;
      if (i == 0) {
        eventfd_t value = 0;
        eventfd_read(alarm_, &value);
        continue;
      }
      watched[i].fd = -1;                           // poll ignores it from now on
      control_.mark(ranks[i], host::State::kDead);  // false if it had left, or another was first
    }
    step(Clock::now());
  }
}

void Watcher::step(Clock::time_point time) {
  const nanoseconds now = since_boot(time);
  // This list is made before the last records of these ranks are read, so that what is read after
  // it is final.
  std::vector<int> ended;
  for (int r = 0; r < control_.size(); ++r) {
    const host::State state = control_.state(r);
    if (state == host::State::kDead || state == host::State::kLeft) ended.push_back(r);
  }
  look(now);
  for (int r : ended) {
    look_at(r, now);
    membership_.bury(r, now);
  }
  // A rank of this host is skipped: the system reports its end to this rank as soon as to any
  // other.
  for (int r : membership_.ended_elsewhere()) {
    if (control_.is_live(r) && !control_.is_local(r)) engine_->note_end(r);
  }
  if (!control_.is_live(control_.rank())) return;
  // The engine has not listened: it was held up, for example by a traced thread that has the
  // engine's lock. Without a tick, Membership later takes this time for one in which this rank was
  // stopped.
  if (engine_ != nullptr && !engine_->has_listened_since(time - options_.suspect_after / 2)) return;
  const nanoseconds worked = processor_time();
  membership_.tick(now, worked - std::exchange(worked_, worked));
  tell();
  follow();
}

void Watcher::look(nanoseconds now) {
  int news = 0;
  is_behind_ = false;
  for (int left = control_.size(); left > 0 && !is_behind_; --left) {
    news += look_at(next_look_, now) ? 1 : 0;
    next_look_ = (next_look_ + 1) % control_.size();
    is_behind_ = news == kMostNews;
  }
}

// Returns whether the record was new.
bool Watcher::look_at(int rank, nanoseconds now) {
  if (rank == control_.rank()) return false;
  Known& known = known_[static_cast<std::size_t>(rank)];
  const RecordFormat::Cell cell = control_.record(rank);
  const bool is_watched = is_watched_[static_cast<std::size_t>(rank)];
  const std::uint64_t due = is_watched ? RecordFormat::beat(cell) : RecordFormat::news(cell);
  const bool is_news = due > known.beat && take_in(rank, now);
  // A long update may delay a record. Anything that arrives shows that its sender is well.
  const std::int64_t heard = control_.member(rank).heard.load(std::memory_order_relaxed);
  const bool is_heard = control_.is_local(rank) ? is_news : heard != known.heard;
  known.heard = heard;
  if (is_heard) membership_.hear(rank, now);
  if (engine_ != nullptr && !control_.is_local(rank)) {
    const auto since = engine_->unreached_since(rank);
    membership_.reach(rank, since ? std::optional(since_boot(*since)) : std::nullopt);
  }
  return is_news;
}

// Returns false if the record in memory is not whole, or is not new after all.
bool Watcher::take_in(int rank, nanoseconds now) {
  auto record = control_.record_format().unpack(RecordFormat::load(control_.record(rank)),
                                                membership_.view().epoch);
  Known& known = known_[static_cast<std::size_t>(rank)];
  if (!record || record->beat == known.beat) return false;
  known.beat = record->beat;
  membership_.observe(rank, std::move(*record), now);
  return true;
}

void Watcher::tell() {
  const MembershipRecord& record = membership_.record();
  if (record.beat == told_) return;
  told_ = record.beat;
  RecordFormat::store(control_.record(control_.rank()), control_.record_format().pack(record));
  if (engine_ != nullptr) engine_->flush_notices();
}

void Watcher::note_watched() {
  is_watched_.assign(static_cast<std::size_t>(control_.size()), false);
  std::vector<bool> hosts(control_.hosts().size());
  for (int r : membership_.watched()) {
    is_watched_[static_cast<std::size_t>(r)] = true;
    hosts[static_cast<std::size_t>(control_.host_of(r))] = true;
  }
  if (engine_ != nullptr && hosts != watched_hosts_) engine_->watch(hosts);
  watched_hosts_ = std::move(hosts);
}

void Watcher::record(const View& view) {
  std::vector<int> gone;
  std::ranges::set_difference(followed_.members, view.members, std::back_inserter(gone));
  options_.recorder->note_epoch(static_cast<std::uint32_t>(view.epoch), view.members.size(), gone);
}

void Watcher::follow() {
  const View& view = membership_.view();
  if (view.epoch > followed_.epoch) {
    for (int r = 0; r < control_.size(); ++r) {
      if (!view.has(r)) control_.mark(r, host::State::kEvicted);
    }
    // Before the view is published: a rank that sees the view also finds its epoch.
    control_.raise_epoch(view.epoch);
    if (options_.recorder != nullptr) record(view);
    note_watched();
    {
      const std::lock_guard lock(mutex_);
      followed_ = view;
    }
    if (options_.changed) options_.changed();
  } else if (membership_.standing() == Membership::Standing::kCutOff) {
    control_.mark(control_.rank(), host::State::kCutOff);
  } else {
    return;
  }
  for (int r : control_.locals()) rouse(control_.bell(r));
}

}  // namespace dstorm
