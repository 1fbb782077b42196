// How a server hands over its ranges before it leaves (P11, in server.hpp).
#pragma once

#include <cstdint>
#include <vector>

#include "vol/ps/replication.hpp"
#include "vol/ps/server_state.hpp"

namespace vol::ps {

class Leaving {
 public:
  Leaving(ServerState& state, Replication& replication)
      : state_(state), replication_(replication) {}

  // Begins to hand over. If it has begun, it does so anew: to be called when a server dies.
  void begin();
  void begin_anew() {
    if (state_.members.is_handing_over) begin();
  }
  // Another server hands over; knows that this one does.
  void take(int from, const Head& head);
  void take_known(int from, std::uint64_t round);

 private:
  void end_if_all_know();

  ServerState& state_;
  Replication& replication_;
  bool has_handed_over_ = false;
  std::uint64_t round_ = 0;  // of kLeaving
  std::vector<int> untold_;  // servers that have not answered it
};

}  // namespace vol::ps
