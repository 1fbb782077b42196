// The engine copies the words that this rank writes in its host's memory to the other hosts, and
// the words that ranks of other hosts write into the memory of this host.
//
// Only one process writes a given word (slot/layout.hpp, S1). So the memory of every host can hold
// a copy of the words of all ranks, which its ranks use in place by the same protocol. For each
// sending rank and each other host, one live rank of that host, the proxy, takes the bytes in: they
// cross the network once, however many receivers there are. If the proxy dies, the next rank takes
// its place, and the sender sends it everything again.
//
// A thread of the engine does the work, so the program need not call in. A scatter sends by itself
// where that is quicker than waking the thread. A second thread runs the listener
// (net/listener.hpp).
//
// Invariants:
//  E1 One lock: everything is touched under it, except the listener, the counters of Attachment,
//     the hand-off and the atomics.
//  E2, E3 No work is forgotten, whichever of the two threads is to do it (handoff.hpp).
//  E4 No segment is forgotten. A change is numbered, then its segment is listed (change_list.hpp),
//     then the change is wanted, noted or held back (handoff.hpp). Every pump first takes the list
//     and tells each uplink, which keeps the segment among those due until all of it has been sent.
//     A new connection looks at all segments once.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "dstorm/bootstrap.hpp"
#include "dstorm/host/control.hpp"
#include "dstorm/remote/downlink.hpp"
#include "dstorm/remote/handoff.hpp"
#include "dstorm/remote/net/listener.hpp"
#include "dstorm/remote/net/tls.hpp"
#include "dstorm/remote/pacing.hpp"
#include "dstorm/remote/probes.hpp"
#include "dstorm/remote/transport/adapter.hpp"
#include "dstorm/remote/transport/attachment.hpp"
#include "dstorm/remote/transport/change_list.hpp"
#include "dstorm/remote/transport_choice.hpp"
#include "dstorm/remote/uplink.hpp"
#include "dstorm/remote/witness.hpp"

namespace dstorm::remote {

struct EngineOptions {
  Deadline deadline;                       // of the set-up
  std::chrono::nanoseconds suspect_after;  // a rank not heard from for this long is suspected
  // a name, an address or a CIDR; empty: by the route to `toward`, else to the others
  std::string interface;
  std::string toward;    // a host that all ranks can reach, or empty
  std::string secret;    // known to the ranks of the job alone, or empty
  std::string tls = {};  // as GroupOptions::tls
  AdapterWish adapter = {};
  int news;                  // an eventfd, written when a rank has ended or a record has come
  std::string witness = {};  // the program (witness.hpp); without one, ends are found by silence
  Recorder* recorder = nullptr;  // told of calls that fail; may be null
};

struct Networks;

class Engine final : public Work {
 public:
  // Collective, in a job of several hosts, blocking: returns when every rank is connected to every
  // other host. Throws the same ConfigError on all ranks; it says which rank cannot reach which
  // host, and why.
  Engine(Bootstrap& bootstrap, host::Control& control, const EngineOptions& options);
  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // This rank's adapter; null if updates to and from all other hosts go over TCP.
  const Adapter* adapter() const noexcept { return settings_.adapter; }
  bool goes_by_adapter(int rank) const {
    return settings_.by_adapter[static_cast<std::size_t>(rank)];
  }
  // The transport to `rank`, of another host, and the reason for it.
  std::string_view transport_to(int rank) const {
    return goes_by_adapter(rank) ? settings_.adapter->transport() : "tcp";
  }
  std::string why(int rank) const;
  // Says that nothing gets through to some host by this rank's adapter, with the reason; empty if
  // all is well. Any thread.
  std::string adapter_trouble();

  // attach() adds a segment of this job, before any rank may send in it; it throws ConfigError if
  // the segment's memory cannot be registered. detach() removes a segment that was not made after
  // all.
  std::shared_ptr<Attachment> attach(std::uint32_t id,
                                     std::shared_ptr<const host::SegmentMemory> memory);
  void detach(std::uint32_t id) noexcept;

  // This rank has changed something in the segment, or posted a notice. flush() sends it at once,
  // note() when there is time. `bytes` is the length of the payload to send, or 0. A change that
  // `may_lag` leaves this process at once, but the system may keep it until more is sent, this rank
  // waits, or 0.1 s have passed.
  void flush(Attachment& attachment, std::size_t bytes, bool may_lag = false) noexcept;
  void note(Attachment& attachment) noexcept {
    number_change(attachment, false);
    handoff_.note();
  }
  // As flush(), for cursors: this rank has folded updates for which a sender may wait. They are
  // sent at once; or, if this rank has lately sent an update of its own each time, together with
  // its next update, when it sleeps, or after kAwayAlone at most.
  void acknowledge(Attachment& attachment) noexcept;
  // As flush(), from any thread: the engine's thread sends it.
  void tell(Attachment& attachment) noexcept {
    number_change(attachment, true);
    handoff_.wake();
  }
  void flush_notices() noexcept { drive(); }
  // A live member knows for certain that `rank`, of another host, has ended. The engine marks it
  // dead here when everything it has sent has been taken in. Any thread.
  void note_end(int rank) noexcept;
  // The time since which nothing that this rank writes has got through to the host of `rank`;
  // nullopt if it gets through. Any thread.
  std::optional<Clock::time_point> unreached_since(int rank) const {
    const auto since = unreached_since_[static_cast<std::size_t>(control_.host_of(rank))].load();
    return since == kReached ? std::nullopt : std::optional(since);
  }
  // Whether what arrived from the other hosts has been taken in since `time`. If not, this rank has
  // not listened, and the other hosts' silence means nothing. Any thread.
  bool has_listened_since(Clock::time_point time) const { return listened_.load() >= time; }
  // The hosts, by number, with whose ranks this rank exchanges heartbeats; all of them until this
  // is called. Any thread.
  void watch(std::vector<bool> hosts) noexcept;
  // While the caller holds this lock, this rank's notices may be rewritten.
  std::unique_lock<std::mutex> hold_notices() { return std::unique_lock(mutex_); }
  bool make_room(Attachment& attachment) noexcept;
  // How many times the engine has looked at a segment. Grows with the changes, not with the number
  // of segments.
  std::uint64_t looks();

  // Work of a waiting rank: it takes in by itself what arrives, which saves waking two threads. The
  // engine's thread keeps away meanwhile.
  bool poll() noexcept override;
  void rest() noexcept override;

  // Sends what there is to send, says goodbye, and ends all connections. Blocks until the others
  // have everything, or until the time is up.
  void leave(std::chrono::nanoseconds limit) noexcept;

 private:
  // E4.
  void number_change(Attachment& attachment, bool is_urgent) noexcept {
    const std::uint64_t number = changes_.fetch_add(1) + 1;
    attachment.changes.store(number);
    if (is_urgent) attachment.urgent.store(number);
    changed_segments_.add(attachment);
  }
  void run();
  bool take_turn(std::unique_lock<std::mutex>& lock) noexcept;
  void drive(bool may_lag = false) noexcept;
  std::size_t take_in(Downlink& downlink, bool to_the_end, Clock::time_point now);
  bool take_in_polled(Clock::time_point now);
  void take_changes();
  void erase_closed();
  void erase(std::uint32_t id);
  void pump(Clock::time_point now, bool with_answers, bool may_lag = false);
  void tend(Clock::time_point now);
  bool was_away(Clock::time_point now) const;
  void call(Uplink& uplink, Clock::time_point now);
  int shares_with(const std::vector<int>& host) const;
  void share(Uplink& uplink, Clock::time_point now);
  void probe(Clock::time_point now);
  void turn_away(int rank);
  bool is_watched(int rank) const;
  std::vector<Networks> exchange_networks(Bootstrap& bootstrap, const EngineOptions& options);
  AdapterRecord open_adapter(const AdapterWish& wish);
  void listen(Bootstrap& bootstrap, const EngineOptions& options,
              const std::vector<Networks>& networks);
  void begin_calls();
  void await_connections(Bootstrap& bootstrap, const EngineOptions& options);
  void start_witness(const std::string& program, int listener);
  void run_listener();
  void let_in(std::vector<net::Caller> callers);
  void settle(Clock::time_point now);
  void use_adapter(TransportChoice choice);
  void add_to_epoll(int fd, std::uint32_t events) const;
  bool is_connected();
  std::uint64_t sent_bytes() const;
  bool is_out() const;
  std::string who_is_missing() const;

  host::Control& control_;
  std::unique_ptr<net::TlsContext> tls_;
  Settings settings_;
  Descriptor epoll_;
  Descriptor listener_stops_;  // an eventfd that ends the listener's thread
  int news_;
  std::optional<net::Listener> listener_;  // used by the listener's thread
  std::optional<Witness> witness_;
  std::unique_ptr<Adapter> adapter_;
  std::vector<std::string> why_;  // by rank
  // Whether some host is reached over TCP alone. By an adapter each update is a write of its own,
  // so sending several at once saves nothing.
  bool has_streams_ = false;

  std::mutex mutex_;  // E1
  std::condition_variable changed_;
  Attachments attachments_;
  // those of attachments_ that this rank has closed
  std::vector<std::shared_ptr<Attachment>> closing_;
  // number of attachments that have been removed
  std::uint64_t detached_ = 0;
  std::uint64_t looks_ = 0;  // looks at closing_
  std::uint32_t last_attached_ = 0;
  std::list<Uplink> uplinks_;  // one per other host
  std::list<Downlink> downlinks_;
  // by caller: why this rank cannot register memory for its writes
  std::map<int, std::string> refusals_;
  Probes probes_;              // of ranks that may have ended
  std::vector<bool> watched_;  // by host: see watch()
  static constexpr Clock::time_point kReached = Clock::time_point::max();
  std::vector<std::atomic<Clock::time_point>> unreached_since_;  // by host
  std::vector<std::atomic<bool>> ended_elsewhere_;               // by rank: see note_end()
  std::atomic<bool> has_ended_elsewhere_{false};
  std::atomic<Clock::time_point> listened_;
  Clock::time_point last_tend_;
  // when this rank returned from its last absence; see was_away()
  std::optional<Clock::time_point> back_at_;
  std::uint64_t calls_ = 0;
  bool leaving_ = false;
  bool stop_ = false;

  Pacing pacing_;
  ChangeList<Attachment> changed_segments_;
  Handoff handoff_;
  std::atomic<std::uint64_t> changes_{Attachment::kUnchanged};  // changes numbered so far
  std::thread thread_;
  std::thread listener_thread_;
};

}  // namespace dstorm::remote
