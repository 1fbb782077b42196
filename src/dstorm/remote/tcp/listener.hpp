// Where a rank is called: takes connections, and lets in those that prove the job's key. For one
// thread, which does nothing else. Whoever does not prove the key neither slows the rank down nor
// keeps others out:
//
//  D1 All that a listener does takes at most a tenth of a processor (kShare), after what it has saved
//     up (kMostSaved). What a TLS handshake takes is known when it is done: so the listener measures the
//     processor time of its thread, does little at a time (kTurn), and rests when its share is spent.
//     Half-open connections are few, and so is the memory they take.
//  D2 Each host of the job, and all strangers together, take turns at handshakes (Origin). So a flood
//     from elsewhere delays a rank by one stranger's handshake, and one for each other host that calls
//     at the same time. Nobody can forge the address that a TCP connection comes from, unless the
//     answers go through his hands.
//  D3 Calls from one origin are answered in random order, so that no timing of a flood keeps another
//     caller from there out. All calls are accepted, fewer at a time than may be half-open: each has
//     its chance before it makes way, and a rank whose call has made way calls again 20 ms later.
//  D4 Those that have been answered go first: a flood cannot make many of them, as few are answered.
//     When too many are half-open, the oldest makes way of the origin that has most.
//
// So when a link breaks in a flood, its rank is back in some milliseconds if the flood comes from
// elsewhere, well within the silence. If it comes from the rank's own host (another user there), each
// call of the rank's is answered with the probability that any of the flood's is.
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
#include "dstorm/remote/tcp/address.hpp"
#include "dstorm/remote/tcp/handshake.hpp"
#include "dstorm/remote/tcp/processor_budget.hpp"
#include "dstorm/remote/tcp/stream.hpp"

namespace dstorm::tcp {

// One that has proved itself. What it sends next may already be there.
struct Caller {
  Stream stream;
  Introduction introduction;
};

class Listener {
 public:
  // Of a job of many hosts it is two for each.
  static constexpr std::size_t kMostHalfOpen = 64;
  static constexpr std::int64_t kShare = 10;  // one tenth
  // Enough for some hundreds of hosts that begin all at once.
  static constexpr std::chrono::milliseconds kMostSaved{500};
  static constexpr std::chrono::milliseconds kTurn{1};

  // `listener` and `listening` come from listen_at(). A connection has `limit` to prove itself;
  // once it has, it fails when its peer has not acknowledged anything for `silence`. `tls` is null
  // for plain bytes, and outlives the listener and the streams. `processor_time` is what this thread has
  // used so far. Throws ConfigError.
  Listener(UnforkedDescriptor listener, const KeptKey& key, std::uint32_t own_rank,
           const Address& listening, const TlsContext* tls, std::chrono::nanoseconds limit,
           std::chrono::nanoseconds silence,
           std::function<std::chrono::nanoseconds()> processor_time = thread_processor_time);

  // From where the job's ranks call. Others are strangers, who may be ranks nevertheless (NAT).
  void expect(std::span<const Address> ranks);

  // Readable (poll, epoll) when ready() has something to do, be it to end what took too long.
  int fd() const noexcept { return waits_.get(); }
  // Goes on with all connections, for a turn; returns those that have proved themselves since.
  std::vector<Caller> ready();

  const Address& listening() const noexcept { return listening_; }
  std::size_t half_open() const noexcept { return half_open_.size(); }
  // Refused: did not prove the key. Dropped: took too long, or had to go for another.
  std::uint64_t refused() const noexcept { return refused_; }
  std::uint64_t dropped() const noexcept { return dropped_; }
  // Who was refused last and why, one line; empty if nobody was.
  const std::string& last_refusal() const noexcept { return last_refusal_; }

 private:
  // D2: calls from one host of the job, or all others.
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
  std::chrono::nanoseconds limit_, silence_;
  std::function<std::chrono::nanoseconds()> processor_time_;
  std::chrono::nanoseconds turn_began_{};  // by processor_time_
  ProcessorBudget budget_;
  Clock::time_point rests_until_ = {};   // Clock's beginning: it does not
  std::map<std::string, Origin> hosts_;  // by the bytes of their addresses
  Origin strangers_;
  std::size_t most_half_open_ = kMostHalfOpen;
  std::map<std::uint64_t, HalfOpen> half_open_;  // by their numbers: the oldest first
  std::uint64_t calls_ = 0, turns_ = 0;
  std::minstd_rand random_{std::random_device()()};
  std::uint64_t refused_ = 0, dropped_ = 0;
  std::string last_refusal_;
};

}  // namespace dstorm::tcp
