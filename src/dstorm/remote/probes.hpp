// Probes find out for certain that ranks of other hosts are dead.
//
// When a connection to a rank ends without a goodbye, a firewall may have cut it. So this class
// asks: it connects to the address at which the rank listened, again and again for as long as the
// silence. Once the rank's process has ended, its witness answers there with its token
// (witness.hpp); no other process can. A probe that is refused, reset or not answered proves
// nothing, and a rank that only this host cannot reach is at most suspected
// (membership/membership.hpp).
//
// A rank is marked dead when everything that it has sent has been taken in. If this rank has read
// the connection by which the rank's writes arrived to its end, that is at once. Otherwise another
// rank of this host reads that connection, and the mark waits until nothing has arrived from the
// dead rank for a while, in case that reader is stopped.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>

#include "dstorm/host/control.hpp"
#include "dstorm/remote/net/stream.hpp"
#include "dstorm/remote/uplink.hpp"
#include "dstorm/remote/witness.hpp"

namespace dstorm::remote {

// Used under the engine's lock. Nothing blocks.
class Probes {
 public:
  // The time after which the first probe is repeated: it may have been lost, or may have arrived
  // before the system had closed everything that the rank had open.
  static constexpr std::chrono::milliseconds kFirstPatience{5};

  // `watch` is called with each descriptor that step() waits for.
  Probes(host::Control& control, const Settings& settings, std::function<void(int)> watch);

  // A connection with `rank` has ended without a goodbye. `is_read`: the rank's writes arrived over
  // it, and this rank has read all of it.
  void begin(int rank, bool is_read, Clock::time_point now);
  // A live member knows for certain that `rank` has ended.
  void note_end(int rank, Clock::time_point now);
  // Moves all probes on; returns whether a rank has been marked dead. `was_away`: this rank was
  // stopped for so long that the others may have evicted it. A rank that has ended since may then
  // have gone on without this one and finished; if this rank took that for a death, it could go on
  // alone (M3). So it asks nothing.
  bool step(bool was_away, Clock::time_point now);

  bool empty() const noexcept { return probes_.empty(); }

 private:
  struct Probe {
    int rank;
    std::uint64_t link;  // by which its writes arrived when the probe began
    Clock::time_point since;
    std::optional<net::Stream> call = {};
    Clock::time_point called = {};
    std::chrono::nanoseconds patience = kFirstPatience;  // until the next call
    WitnessToken answer = {};
    std::size_t answered = 0;  // bytes of it
    bool is_read = false;
    std::optional<Clock::time_point> known_since = {};  // since when its end is certain
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
