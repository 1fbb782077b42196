// Carries what this rank writes in its host's memory to the other hosts, and what ranks of other
// hosts write in theirs into this host's.
//
// What a rank writes, only it writes (slot.hpp, S1), so the memory of every host can hold a copy of
// it, which the ranks there use in place by the same protocol. For each rank and other host, one
// live rank of that host (its proxy) takes the bytes in: one copy over the network, however many
// receivers. A proxy that ends is followed by the next, who is simply told everything again.
//
// A thread of its own does the work, so that the program need not call in; a scatter also lends a
// hand where that is quicker than waking it. A second thread runs the listener (tcp/listener.hpp). One lock, E1:
// everything is touched under it, but for the listener, the counters of Attachment and what is atomic.
// No work is forgotten, E2: who wants something sets wanted_, then looks whether the thread is asleep or
// the lock is free; the thread says that it is about to sleep, then looks at wanted_; all sequentially consistent. Nor is
// what the rank holds back, E3: it sets holds_back_, then wakes the thread if that sleeps and will not
// look soon by itself; the thread says how it is about to sleep, then looks at holds_back_. Whoever
// clears holds_back_ sends all there is. Nor is any segment, E4: a change is numbered, then its segment is
// listed (change_list.hpp), then wanted_, noted_ or holds_back_ is set; every pump first takes the list and
// tells each connection, which keeps the segment among those due until all of it has been sent. A
// connection that is made looks at all segments once.
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
#include "dstorm/remote/attachment.hpp"
#include "dstorm/remote/change_list.hpp"
#include "dstorm/remote/downlink.hpp"
#include "dstorm/remote/probes.hpp"
#include "dstorm/remote/rdma_choice.hpp"
#include "dstorm/remote/tcp/listener.hpp"
#include "dstorm/remote/tcp/tls.hpp"
#include "dstorm/remote/uplink.hpp"
#include "dstorm/remote/witness.hpp"

namespace dstorm::remote {

struct EngineOptions {
  std::chrono::nanoseconds timeout;  // of the set-up and of the goodbye
  std::chrono::nanoseconds silence;  // who is not heard of for so long is missed
  std::string interface;  // a name or a CIDR; empty: by the route to `toward`, else to the others
  std::string toward;     // a host all ranks can reach, or empty
  std::string secret;     // what the ranks of the job alone know, or empty
  Rdma rdma;
  int news;                  // an eventfd, written when a rank has ended or a record has come
  std::string witness = {};  // the program (witness.hpp); without one, ends are found by silence
};

struct Networks;

class Engine final : public Work {
 public:
  // Collective, in a job of several hosts: returns when every rank is connected to every other
  // host. Throws the same ConfigError on all: who cannot reach whom, and why.
  Engine(Bootstrap& bootstrap, host::Control& control, const EngineOptions& options);
  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Whether ranks of other hosts write into this one's memory by RDMA: then every segment has
  // inboxes there.
  bool has_rdma() const noexcept { return settings_.device != nullptr; }
  bool has_rdma_with(int rank) const { return settings_.rdma[static_cast<std::size_t>(rank)]; }
  verbs::InboxShape inbox_shape(const MailboxShape& mailbox) const {
    return {mailbox, settings_.most_ranks};
  }
  // Why `rank`, of another host, is reached as it is.
  std::string why(int rank) const;
  // By which adapter nothing gets through to some host, and why; empty if all is well. Any thread.
  std::string adapter_trouble();

  // A segment of this job, before any rank may send in it; and one that came to nothing. Throws
  // ConfigError if its memory cannot be registered.
  std::shared_ptr<Attachment> attach(std::uint32_t id,
                                     std::shared_ptr<const host::SegmentMemory> memory);
  void detach(std::uint32_t id) noexcept;

  // This rank has changed something in the segment, or posted a notice: others shall know at once,
  // or when there is time. `bytes`: of the payload there is to send, if any. What `may_lag` leaves this
  // process at once, but goes along with what is sent next, when this rank waits or after 0.1 s.
  void flush(Attachment& attachment, std::size_t bytes, bool may_lag = false) noexcept;
  void note(Attachment& attachment) noexcept {
    number_change(attachment, false);
    noted_.store(true, std::memory_order_relaxed);
  }
  // The same of what it has folded, which a sender may wait for: at once, or where this rank has lately sent
  // something itself each time, along with that, when it sleeps, or within kAwayAlone.
  void acknowledge(Attachment& attachment) noexcept;
  void flush_notices() noexcept { drive(); }
  // A live member knows for certain that `rank`, of another host, has ended: it is marked dead here, once what it
  // has still sent has been taken in. Any thread.
  void note_end(int rank) noexcept;
  // Since when nothing of what this rank writes gets through to `rank`'s host, if so. Any thread.
  std::optional<Clock::time_point> unreached_since(int rank) const {
    const auto since = unreached_since_[static_cast<std::size_t>(control_.host_of(rank))].load();
    return since == kReached ? std::nullopt : std::optional(since);
  }
  // Whether what has come from the other hosts has been taken in since. If not, their silence is none:
  // this rank has not listened. Any thread.
  bool has_listened_since(Clock::time_point time) const { return listened_.load() >= time; }
  // While it is held, this rank's notices may be rewritten.
  std::unique_lock<std::mutex> hold_notices() { return std::unique_lock(mutex_); }
  bool make_room(Attachment& attachment) noexcept;
  // How often it has looked at a segment so far: grows with what is changed, not with what there is.
  std::uint64_t looks();

  // While this rank waits it takes in what comes itself, which saves waking two threads; the
  // engine's own keeps away meanwhile.
  bool poll() noexcept override;
  void rest() noexcept override;

  // Sends what there is to send, says goodbye, and ends all connections. Returns when the others
  // have it all, or when the time is up.
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
  bool may_wait(const Attachment& attachment, std::size_t bytes) noexcept;
  void hold_back() noexcept;
  bool take_turn(std::unique_lock<std::mutex>& lock) noexcept;
  void drive(bool may_lag = false) noexcept;
  std::size_t take_in(Downlink& downlink, bool to_the_end, Clock::time_point now);
  bool take_in_polled(Clock::time_point now);
  void wake() noexcept;
  void take_changes();
  void erase_closed();
  void erase(std::uint32_t id);
  void pump(Clock::time_point now, bool with_answers, bool may_lag = false);
  void keep_away(bool in_burst);
  void tend(Clock::time_point now);
  bool was_away(Clock::time_point now) const;
  void call(Uplink& uplink, Clock::time_point now);
  int shares_with(const std::vector<int>& host) const;
  void share(Uplink& uplink, Clock::time_point now);
  void probe(Clock::time_point now);
  void turn_away(int rank);
  void start_witness(const std::string& program, int listener);
  void run_listener();
  void let_in(std::vector<tcp::Caller> callers);
  void settle(Clock::time_point now);
  void use_rdma(RdmaChoice choice);
  void hear_device();
  void add_to_epoll(int fd, std::uint32_t events) const;
  bool is_connected();
  std::uint64_t sent_bytes() const;
  bool is_out() const;
  std::string who_is_missing() const;

  host::Control& control_;
  std::unique_ptr<tcp::TlsContext> tls_;
  Settings settings_;
  Descriptor epoll_;
  Descriptor alarm_;           // an eventfd that wakes the thread
  Descriptor listener_stops_;  // an eventfd that ends the listener's thread
  int news_;
  std::optional<tcp::Listener> listener_;  // the listener's thread's
  std::optional<Witness> witness_;
  std::optional<verbs::Device> device_;
  std::vector<std::string> why_;  // by rank
  // Whether some host is reached over TCP alone. By RDMA each update is a write of its own: to send
  // several at once saves nothing.
  bool has_streams_ = false;

  std::mutex mutex_;  // E1
  std::condition_variable changed_;
  Attachments attachments_;
  std::vector<std::shared_ptr<Attachment>> closing_;  // those of them that this rank has closed
  std::uint64_t detached_ = 0;                        // those that are no more
  std::uint64_t looks_ = 0;                           // at closing_
  std::uint32_t last_attached_ = 0;
  std::list<Uplink> uplinks_;  // one per other host
  std::list<Downlink> downlinks_;
  std::map<int, std::string> refusals_;  // by caller: for want of what its adapter would write to
  Probes probes_;                        // of ranks that may have ended
  static constexpr Clock::time_point kReached = Clock::time_point::max();
  std::vector<std::atomic<Clock::time_point>> unreached_since_;  // by host
  std::vector<std::atomic<bool>> ended_elsewhere_;               // by rank: see note_end()
  std::atomic<bool> has_ended_elsewhere_{false};
  std::atomic<Clock::time_point> listened_;
  Clock::time_point last_tend_;
  std::optional<Clock::time_point> back_at_;  // from the last absence; see was_away()
  std::uint64_t calls_ = 0;
  bool leaving_ = false;
  bool stop_ = false;

  // The rank's own.
  Clock::time_point last_active_{};  // when it last scattered or waited
  int burst_ = 0;                    // scatters in a row without an update that came in between
  int answers_ = 0;                  // scatters in a row with one
  bool owes_answer_ = false;         // credits have been put off until the next scatter
  std::uint32_t held_segment_ = 0;
  std::size_t held_updates_ = 0;
  std::size_t held_bytes_ = 0;
  std::atomic<bool> has_come_{false};  // an update, since the last scatter

  ChangeList<Attachment> changed_segments_;
  std::atomic<bool> wanted_{false};
  std::atomic<bool> asleep_{false};
  std::atomic<bool> queued_{false};                             // the thread waits for the lock
  std::atomic<std::uint64_t> changes_{Attachment::kUnchanged};  // numbered so far
  std::atomic<bool> noted_{false};   // something is to be sent when there is time
  std::atomic<bool> polled_{false};  // by the rank, since the thread last looked
  std::atomic<bool> keeps_away_{false};
  std::atomic<bool> away_briefly_{false};
  std::atomic<bool> is_blocked_{false};  // a connection takes no more for now
  std::atomic<bool> holds_back_{false};  // there is something that the rank has not sent yet
  std::atomic<bool> lags_{false};        // something may lie in a socket
  std::atomic<std::uint64_t> turns_{0};  // of the rank's at sending and taking in
  std::thread thread_;
  std::thread listener_thread_;
};

}  // namespace dstorm::remote
