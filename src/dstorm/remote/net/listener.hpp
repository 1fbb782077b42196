// The listener: the listening socket of a rank, or of a launcher for the rendezvous, and the
// handshakes of its callers. It lets in callers that prove the job's key. One thread uses it.
// Callers that do not prove the key neither slow the rank down nor keep others out:
//
//  D1 All work of a listener takes at most a tenth of a processor (kShare), once it has used up
//     what it has saved (kMostSaved). The cost of a TLS handshake is known only after it. So the
//     listener measures the processor time of its thread, does little at a time (kTurn), and rests
//     when its share is spent. The number of half-open connections is bounded, and so is their
//     memory.
//  D2 Each host of the job, and all strangers together, take turns at handshakes (Origin). So a
//     flood from elsewhere delays a rank by one stranger's handshake, and by one for each other
//     host that calls at the same time. A TCP connection cannot come from a forged address, unless
//     the answers pass through the forger's hands.
//  D3 Calls from one origin are answered in random order, so no timing of a flood keeps another
//     caller from the same origin out. All calls are accepted, fewer at a time than may be
//     half-open: so each call has its chance before it makes way, and a rank whose call has made
//     way calls again 20 ms later.
//  D4 Calls that have been answered go first. A flood cannot make many of them, because few are
//     answered. When too many calls are half-open, the oldest call of the origin that has most
//     makes way.
//
// So when a link breaks during a flood from elsewhere, its rank is connected again within some
// milliseconds, well within the silence. If the flood comes from the rank's own host (another user
// there), each call of the rank is answered with the same probability as any call of the flood.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "dstorm/host/fork.hpp"
#include "dstorm/host/wait.hpp"
#include "dstorm/remote/net/address.hpp"
#include "dstorm/remote/net/handshake.hpp"
#include "dstorm/remote/net/processor_budget.hpp"
#include "dstorm/remote/net/stream.hpp"

namespace dstorm::net {

// A caller that has proved the key. Its first frames may have arrived already.
struct Caller {
  Stream stream;
  Introduction introduction;
  Address peer;
  Mac session_key;  // Handshake::session_key()
};

class Listener {
 public:
  // In a job of many hosts the limit is two for each host.
  static constexpr std::size_t kMostHalfOpen = 64;
  static constexpr std::int64_t kShare = 10;  // one tenth
  // Enough for some hundreds of hosts that call at the same time.
  static constexpr std::chrono::milliseconds kMostSaved{500};
  static constexpr std::chrono::milliseconds kSavedPerCaller{10};  // of expect_at_once()
  static constexpr std::chrono::milliseconds kTurn{1};

  // `listener` and `listening` come from listen_at(). A connection has `limit` to prove the key.
  // After that it fails when its peer has acknowledged nothing for `suspect_after`. `tls` is null
  // for plain bytes; it must outlive the listener and the streams. `processor_time` returns the
  // time that the calling thread has used so far. Throws ConfigError.
  Listener(UnforkedDescriptor listener, const KeptKey& key, std::uint32_t own_rank,
           const Address& listening, const TlsContext* tls, std::chrono::nanoseconds limit,
           std::chrono::nanoseconds suspect_after,
           std::function<std::chrono::nanoseconds()> processor_time = thread_processor_time);

  // The addresses from which the job's ranks call. All other callers are strangers, but may still
  // be ranks (NAT).
  void expect(std::span<const Address> ranks);
  // So many callers may come at once, for each of which the listener saves a little more time.
  void expect_at_once(std::size_t callers);

  // Becomes readable (poll, epoll) when ready() has something to do, including to end calls that
  // took too long.
  int fd() const noexcept { return waits_.get(); }
  // Moves all connections on, for one turn. Returns those that have proved the key since the last
  // call.
  std::vector<Caller> ready();

  const Address& listening() const noexcept { return listening_; }
  std::size_t half_open() const noexcept { return half_open_.size(); }
  // Refused: did not prove the key. Dropped: took too long, hung up, or made way for another.
  std::uint64_t refused() const noexcept { return refused_; }
  std::uint64_t dropped() const noexcept { return dropped_; }
  // The caller that was refused last and the reason, in one line; empty if none was.
  const std::string& last_refusal() const noexcept { return last_refusal_; }

 private:
  // D2: calls from one host of the job, or from all strangers.
  struct Origin {
    std::size_t half_open = 0, answered = 0;
    std::uint64_t last_turn = 0;
  };
  struct Exchange {
    Stream stream;
    Handshake handshake;
  };
  struct HalfOpen {
    UnforkedDescriptor socket;  // until it is answered
    std::optional<Exchange> answered;
    Clock::time_point deadline;
    Address peer;
    Origin* origin;
    std::uint32_t events;  // that epoll waits for

    int fd() const { return answered ? answered->stream.fd() : socket.get(); }
  };
  using Place = std::map<std::uint64_t, HalfOpen>::iterator;

  bool is_resting();
  void rest(Clock::time_point until);
  void take_in();
  void make_room();
  void serve(std::vector<Caller>& callers);
  std::vector<Place> find_due();
  void advance(Place place, std::vector<Caller>& callers);
  void refuse(Place place, const std::string& reason);
  void drop(Place place);
  HalfOpen take_out(Place place);
  void watch(Place place);
  void set_timer();

  Descriptor waits_;    // epoll: the timer, and watched_ unless the listener rests
  Descriptor watched_;  // epoll: the listener, the half-open connections
  Descriptor timer_;
  UnforkedDescriptor socket_;
  KeptKey key_;
  std::uint32_t own_rank_;
  Address listening_;
  const TlsContext* tls_;
  std::chrono::nanoseconds limit_, suspect_after_;
  std::function<std::chrono::nanoseconds()> processor_time_;
  std::chrono::nanoseconds turn_began_{};  // by processor_time_
  ProcessorBudget budget_;
  Clock::time_point rests_until_ = {};   // Clock's beginning: it does not rest
  std::map<std::string, Origin> hosts_;  // by the bytes of their addresses
  Origin strangers_;
  std::size_t most_half_open_ = kMostHalfOpen;
  std::map<std::uint64_t, HalfOpen> half_open_;  // by number: the oldest first
  std::uint64_t calls_ = 0, turns_ = 0;
  std::minstd_rand random_{std::random_device()()};
  std::uint64_t refused_ = 0, dropped_ = 0;
  std::string last_refusal_;
};

}  // namespace dstorm::net
