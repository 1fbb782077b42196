// Where a rank is called: takes connections, and lets in those that prove the job's key. Whoever
// cannot costs little and shuts nobody out: half-open connections are few, short-lived, and the
// oldest goes when another comes. For one thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "dstorm/fork.hpp"
#include "dstorm/tcp/address.hpp"
#include "dstorm/tcp/handshake.hpp"
#include "dstorm/tcp/stream.hpp"
#include "dstorm/wait.hpp"

namespace dstorm::tcp {

// One that has proved itself. What it sends next may already be there.
struct Caller {
  Stream stream;
  Introduction introduction;
};

class Door {
 public:
  static constexpr std::size_t kMostHalfOpen = 64;

  // `listener` and `listening` come from listen_at(). A connection has `limit` to prove itself;
  // once it has, it fails when its peer has not acknowledged anything for `silence`. `tls` is null
  // for plain bytes, and outlives the door and the streams. Throws ConfigError.
  Door(UnforkedDescriptor listener, const KeptKey& key, std::uint32_t own_rank,
       const Address& listening, const TlsContext* tls, std::chrono::nanoseconds limit,
       std::chrono::nanoseconds silence);

  // Readable (poll, epoll) when ready() has something to do, be it to end what took too long.
  int fd() const noexcept { return watched_.get(); }
  // Goes on with all connections; returns those that have proved themselves since.
  std::vector<Caller> ready();

  const Address& listening() const noexcept { return listening_; }
  std::size_t half_open() const noexcept { return half_open_.size(); }
  // Refused: did not prove the key. Dropped: took too long, or had to go for another.
  std::uint64_t refused() const noexcept { return refused_; }
  std::uint64_t dropped() const noexcept { return dropped_; }
  // Who was refused last and why, one line; empty if nobody was.
  const std::string& last_refusal() const noexcept { return last_refusal_; }

 private:
  struct HalfOpen {
    Stream stream;
    Handshake handshake;
    Clock::time_point deadline;
    Address peer;
    std::uint32_t events;  // that epoll waits for
  };

  void take_in();
  void pause();
  void watch(HalfOpen& one);
  void set_timer();

  Descriptor watched_;  // epoll: the listener, the timer, the half-open connections
  Descriptor timer_;
  UnforkedDescriptor listener_;
  KeptKey key_;
  std::uint32_t own_rank_;
  Address listening_;
  const TlsContext* tls_;
  std::chrono::nanoseconds limit_, silence_;
  Clock::time_point paused_until_ = {};  // Clock's beginning: not paused
  std::list<HalfOpen> half_open_;        // the oldest first
  std::uint64_t refused_ = 0, dropped_ = 0;
  std::string last_refusal_;
};

}  // namespace dstorm::tcp
