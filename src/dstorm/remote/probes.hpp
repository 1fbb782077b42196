// Finds out for certain that ranks of other hosts have ended.
//
// A connection to a rank that ends without a goodbye is a reason to ask, no more: a firewall may have cut it. So
// this probes where the rank listened, again and again for as long as the silence. Its witness answers with its
// token once the rank's process has ended (witness.hpp); nobody else can. A refused, reset or silent probe says
// nothing, and a rank that only this host cannot reach stays suspected at most (membership.hpp).
//
// What the rank has still sent is to be taken in before it is marked dead. Where this rank has read the
// connection by which it came to its end, the rank is marked at once; else, as another rank of this host reads it,
// when nothing has come from it for a while, should that other one be stopped.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>

#include "dstorm/host/control.hpp"
#include "dstorm/remote/tcp/stream.hpp"
#include "dstorm/remote/uplink.hpp"
#include "dstorm/remote/witness.hpp"

namespace dstorm::remote {

// Used under the engine's lock. Nothing blocks.
class Probes {
 public:
  // Until a probe is repeated, the first time: it may be lost, or come before the system has closed all that
  // the rank had open.
  static constexpr std::chrono::milliseconds kFirstPatience{5};

  // `watch` is given each descriptor that step() waits for.
  Probes(host::Control& control, const Settings& settings, std::function<void(int)> watch);

  // A connection with `rank` has ended without a goodbye. `is_read`: it is the one by which the rank's writes
  // came here, and this rank has read all of it.
  void begin(int rank, bool is_read, Clock::time_point now);
  // A live member knows for certain that `rank` has ended.
  void note_end(int rank, Clock::time_point now);
  // Goes on with all; true if a rank has been marked dead. `was_away`: this rank was stopped for so long that the
  // others may have left it out. Who has ended since may have gone on without it and be done: to take that for a
  // death would be to go on alone (M3), so nothing is asked.
  bool step(bool was_away, Clock::time_point now);

  bool empty() const noexcept { return probes_.empty(); }

 private:
  struct Probe {
    int rank;
    std::uint64_t link;  // by which its writes came when this began
    Clock::time_point since;
    std::optional<tcp::Stream> call = {};
    Clock::time_point called = {};
    std::chrono::nanoseconds patience = kFirstPatience;  // until the next call
    WitnessToken answer = {};
    std::size_t answered = 0;  // bytes of it
    bool is_read = false;
    std::optional<Clock::time_point> known_since = {};  // that it has ended
  };

  Probe& find_or_add(int rank, Clock::time_point now);
  void call(Probe& probe, Clock::time_point now);
  void listen(Probe& probe, Clock::time_point now);
  bool has_all_come(const Probe& probe, Clock::time_point now) const;

  host::Control& control_;
  const Settings& settings_;
  std::function<void(int)> watch_;
  std::list<Probe> probes_;
};

}  // namespace dstorm::remote
