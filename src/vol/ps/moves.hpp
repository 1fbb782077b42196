// How ranges go from the servers of one edition to those of the next (P10, in server.hpp).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "vol/ps/edition.hpp"
#include "vol/ps/held_ranges.hpp"
#include "vol/ps/server_state.hpp"

namespace vol::ps {

class Replication;

// This server's state for the next edition, once it has stopped. The clock is the client's.
Brought brought_by(const ServerState& state, const HeldRanges& held);

// The ranges that other servers hand to this one.
class Arrivals {
 public:
  explicit Arrivals(std::size_t servers) : due_(servers) {}

  void await(Held& held, int mover);
  void note_come(Held& held);
  // The servers whose ranges have yet to come. Any thread may ask.
  std::vector<int> movers() const;
  // How many ranges have been due. Any thread may ask, once the server is made.
  std::size_t count() const { return count_; }

 private:
  std::vector<std::atomic<std::size_t>> due_;  // by server: how many have yet to come
  std::size_t count_ = 0;
};

// Those that this server hands to others.
class Departures {
 public:
  Departures(ServerState& state, HeldRanges& held, Arrivals& arrivals, Replication& replication)
      : state_(state), held_(held), arrivals_(arrivals), replication_(replication) {}

  // Takes the ranges that stay here from the server of the last edition, and notes those that go
  // and come. `before`: null if this rank joins.
  void begin(const Edition& edition, const HeldRanges* before);
  // Sends one range, if no message waits for a slot: those take memory (M2). Returns whether it
  // did.
  bool send_next();

 private:
  struct Departure {
    std::size_t number;
    std::shared_ptr<Range> range;
    int to;
  };

  ServerState& state_;
  HeldRanges& held_;
  Arrivals& arrivals_;
  Replication& replication_;
  std::deque<Departure> left_;  // to be sent
};

}  // namespace vol::ps
