// How the engine works. There is one Uplink for each other host, which sends, and one Downlink for
// each connection that another host's rank has made, which takes in.
//
// pump() sends: it hands the changed segments to the uplinks, and each uplink sends what is due. It
// runs under the lock: on the rank's thread in drive() after a scatter or in poll() while the rank
// waits, on the watcher's thread in flush_notices(), and on the engine's thread. take_in()
// receives, on the rank's thread and on the engine's.
//
// run() is the loop of the engine's thread: it sleeps in epoll, takes in, pumps, and in tend() and
// settle() does what time or a lost connection demands. While the rank polls, the thread stays away
// (handoff.hpp), since taking turns at the lock would slow both down.
//
// A rank that scatters in a burst may hold updates back (Pacing) to send several with one system
// call; the engine's thread sends them after Handoff::kHeldBack if the rank does not.
#include "dstorm/remote/engine.hpp"

#include <sched.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>

namespace dstorm::remote {
namespace {

using std::chrono::nanoseconds;

// A payload up to this long is sent by the thread that scatters it. With adapters alone the limit
// is higher: they copy nothing, and the thread that wrote the payload has it in its cache for the
// checksum.
constexpr std::size_t kLendAHand = 64 * 1024;
constexpr std::size_t kLendAHandByAdapter = 1024 * 1024;
// With more hosts than this, looking for arrivals takes longer than waking a thread.
constexpr std::size_t kMostPolled = 9;
// The longest time for which a rank waits until the engine's thread gives up the lock.
constexpr std::chrono::milliseconds kTurn{10};
// The longest time for which a rank that leaves reads the ends of connections to ranks that have
// left.
constexpr std::chrono::seconds kParting{1};

}  // namespace

std::shared_ptr<Attachment> Engine::attach(std::uint32_t id,
                                           std::shared_ptr<const host::SegmentMemory> memory) {
  auto attachment = std::make_shared<Attachment>(id, std::move(memory));
  if (adapter_) attachment->registration = adapter_->enlist(attachment->memory);
  const std::lock_guard lock(mutex_);
  last_attached_ = id;
  attachments_[id] = attachment;
  changed_segments_.add(*attachment);  // the state at its beginning has to be sent
  if (adapter_) handoff_.wake();       // to say where others may write
  return attachment;
}

void Engine::detach(std::uint32_t id) noexcept {
  const std::lock_guard lock(mutex_);
  erase(id);
}

void Engine::erase(std::uint32_t id) {
  detached_ += attachments_.erase(id);
  for (Uplink& one : uplinks_) one.forget(id);
}

void Engine::flush(Attachment& attachment, std::size_t bytes, bool may_lag) noexcept {
  number_change(attachment, !may_lag);
  if (may_lag) return drive(true);
  if (bytes > (has_streams_ ? kLendAHand : kLendAHandByAdapter)) return handoff_.wake();
  // Only while this rank takes care of the connections when it waits.
  const bool may_wait =
      bytes > 0 && has_streams_ &&
      pacing_.may_hold_back(attachment.id, attachment.memory->shape(), bytes, Clock::now()) &&
      control_.hosts().size() <= kMostPolled;
  if (may_wait) return handoff_.hold_back();  // E3
  drive();
  if (has_streams_) pacing_.note_sent(Clock::now());
}

void Engine::acknowledge(Attachment& attachment) noexcept {
  number_change(attachment, true);
  // This rank is about to scatter an answer, which also carries these cursors.
  if (pacing_.may_put_off_cursors() && handoff_.is_away()) return handoff_.note();
  drive();
}

// With adapters alone the rank waits for the engine's thread, whose turn is short. Otherwise that
// thread would post update after update, on the core of another rank, while this rank fills its
// slots and then has nothing to do.
bool Engine::take_turn(std::unique_lock<std::mutex>& lock) noexcept {
  for (std::optional<Clock::time_point> end;; sched_yield()) {
    // The engine's thread goes first: with a mutex alone it would starve.
    if (handoff_.state() != Handoff::State::kQueued && lock.try_lock()) return true;
    if (has_streams_) return false;
    const auto now = Clock::now();
    if (!end) end = now + kTurn;
    if (now >= *end) return false;
  }
}

// E2.
void Engine::drive(bool may_lag) noexcept {
  handoff_.want();
  while (handoff_.is_wanted()) {
    std::unique_lock lock(mutex_, std::defer_lock);
    if (!take_turn(lock)) return;  // the thread that has the lock looks again after it
    if (!handoff_.take_wanted()) continue;
    const auto now = Clock::now();
    if (handoff_.take_held_back()) take_in_polled(now);  // saves waking the thread
    pump(now, false, may_lag);
    handoff_.end_send(may_lag);
  }
}

std::size_t Engine::take_in(Downlink& downlink, bool to_the_end, Clock::time_point now) {
  const std::uint64_t before = downlink.updates();
  const std::size_t bytes = downlink.take_in(attachments_, last_attached_, to_the_end, now);
  if (downlink.updates() != before) pacing_.note_arrival();
  return bytes;
}

// Takes in on the rank's thread; the engine's thread then keeps away. Returns whether anything
// came.
bool Engine::take_in_polled(Clock::time_point now) {
  if (control_.hosts().size() > kMostPolled) return false;
  bool has_moved = false;
  bool is_polled = false;
  for (Downlink& one : downlinks_) {
    if (one.has_adapter()) continue;  // little comes over such a connection
    is_polled = true;
    has_moved = take_in(one, false, now) > 0 || has_moved;
  }
  if (is_polled) handoff_.note_poll();
  return has_moved;
}

bool Engine::poll() noexcept {
  if (!has_streams_ || control_.hosts().size() > kMostPolled) {
    if (handoff_.has_unsent()) drive();
    return false;
  }
  if (handoff_.state() == Handoff::State::kQueued) return false;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) {
    handoff_.note_poll();
    return false;
  }
  const auto now = Clock::now();
  const std::uint64_t before = sent_bytes();
  const bool has_come = take_in_polled(now);
  if (handoff_.take_unsent() || handoff_.is_blocked()) pump(now, false);
  handoff_.end_turn();
  pacing_.note_wait(now);
  return has_come || sent_bytes() != before;
}

std::uint64_t Engine::sent_bytes() const {
  std::uint64_t bytes = 0;
  for (const Uplink& one : uplinks_) bytes += one.sent_bytes();
  return bytes;
}

void Engine::rest() noexcept {
  if (handoff_.has_to_send()) drive();
  handoff_.rest();
}

bool Engine::make_room(Attachment& attachment) noexcept {
  const std::lock_guard lock(mutex_);
  bool found = false;
  for (Uplink& one : uplinks_) found = one.make_room(attachment.id) || found;
  return found;
}

void Engine::leave(nanoseconds limit) noexcept {
  if (!thread_.joinable()) return;
  bool all_know =
      limit == nanoseconds::zero();  // others learn from the bootstrap that nothing was made
  {
    std::unique_lock lock(mutex_);
    leaving_ = true;
    pump(Clock::now(), true);
    const auto has_heard = [](const Uplink& one) {
      return one.state() == Uplink::State::kDone || !one.is_needed();
    };
    changed_.wait_for(lock, limit, [&] {
      return is_out() || std::all_of(uplinks_.begin(), uplinks_.end(), [&](const Uplink& one) {
               return has_heard(one) || one.is_unwanted();
             });
    });
    // If the end of a connection is not read, closing it looks to the other rank like a cut. It
    // then calls again, and keeps its witness because this rank is gone. A rank that has not
    // answered within the limit is not waited for again.
    changed_.wait_for(lock, std::min<nanoseconds>(limit, kParting), [&] {
      return std::none_of(uplinks_.begin(), uplinks_.end(), [&](const Uplink& one) {
        return one.state() == Uplink::State::kUp && (has_heard(one) || one.is_unwanted());
      });
    });
    all_know = all_know || is_out() || std::all_of(uplinks_.begin(), uplinks_.end(), has_heard);
    stop_ = true;
  }
  handoff_.ring();
  eventfd_write(listener_stops_.get(), 1);
  thread_.join();
  if (listener_thread_.joinable()) listener_thread_.join();
  const std::lock_guard lock(mutex_);  // the watcher and waiting calls may still drive it
  for (Uplink& one : uplinks_) one.hang_up();
  downlinks_.clear();
  if (witness_) witness_->dismiss(all_know);
  witness_.reset();
  listener_.reset();
}

}  // namespace dstorm::remote
