// The parts of a group. `Group` is what a user calls; this is what it calls.
#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "dstorm/group.hpp"
#include "dstorm/group/transports.hpp"
#include "dstorm/group/watcher.hpp"
#include "dstorm/host/control.hpp"
#include "dstorm/host/fork.hpp"
#include "dstorm/host/wait.hpp"
#include "dstorm/remote/engine.hpp"

namespace dstorm {

struct Group::Impl {
  // Collective, blocking: see Group::join.
  Impl(Bootstrap& bootstrap, GroupOptions given, const TransportRow& transport,
       const Deadline& deadline);

  // The last quarter of the silence is for agreeing on which ranks to evict.
  std::chrono::nanoseconds missed_after() const { return options.silence * 3 / 4; }
  // Connects the hosts of a job of several.
  void connect(Bootstrap& bootstrap, const Deadline& deadline);
  // Runs in the watcher's thread. A wait that other ranks ring again and again would not look for a
  // new epoch by itself, so call_soon() makes it look.
  void note_epoch();
  // A wait calls this now and then.
  void interrupt_wait();
  [[noreturn]] static void throw_superseded();
  // Throws ConfigError if this rank has left, and PeerError if it was evicted or is cut off.
  void check_standing() const;

  const std::uint32_t forks = dstorm::forks();
  GroupOptions options;
  const TransportRow row;
  const std::shared_ptr<Turns> turns;
  host::Control control;
  Waiter waiter;
  Descriptor news;                         // an eventfd; a write to it makes the watcher look
  std::unique_ptr<remote::Engine> engine;  // only in a job of several hosts
  std::optional<Watcher> watcher;
  std::uint64_t exchanges = 0;
  std::string abandoned_call;    // in which the others may still be: see abandon()
  std::list<std::string> names;  // in the order in which they were added
  std::unordered_map<std::string_view, std::list<std::string>::iterator> by_name;
  std::atomic<bool> left{false};
  // When the innermost Within ends, in nanoseconds of the clock's; kNever: there is none.
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  std::atomic<std::int64_t> ends_at{kNever};
  std::atomic<std::int64_t> limit{0};  // the whole limit of that Within, in nanoseconds
  std::atomic<pthread_t> within{};     // the thread whose it is
  // Whether it is the calling thread's.
  bool is_within() const noexcept { return ends_at != kNever && within == pthread_self(); }
  std::uint64_t last_wait = 0;     // the last wait that found the group superseded
  std::uint32_t passed_since = 0;  // superseded_by() to which passed_by belongs
  int passed_by = 0;               // weighted number of calls at which this rank could not move
  std::uint32_t kept_since = 0;    // superseded_by() when a round of the first segment was kept
};

}  // namespace dstorm
