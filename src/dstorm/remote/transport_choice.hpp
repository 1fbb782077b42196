// The choice of the transport between each pair of hosts. Updates go by adapters if every rank of
// both has one, all adapters are of one kind of network, and test writes between them have arrived;
// otherwise they go over the connections.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dstorm/bootstrap.hpp"
#include "dstorm/host/control.hpp"
#include "dstorm/remote/transport/adapter.hpp"

namespace dstorm::remote {

// The record by which each rank describes its adapter to the others.
struct AdapterRecord {
  bool is_there;
  char network[31];
  char text[192];  // the adapter, or why there is none
};

struct TransportChoice {
  std::vector<bool> by_adapter;  // by rank: whether updates go to it by the adapter
  std::vector<std::string> why;  // by rank: the reason
};

// Collective, blocking. Takes up to three exchanges through the bootstrap, and none if no two hosts
// have adapters that could reach one another. All ranks choose alike. A pair of adapters is given
// up after a quarter of `timeout`, at most five seconds. `own` is this rank's adapter, or null.
// Throws ConfigError, the same on all ranks, if adapters are required and some pair of hosts cannot
// use them.
TransportChoice choose_transports(Bootstrap& bootstrap, const host::Control& control,
                                  const std::vector<AdapterRecord>& adapters, const Adapter* own,
                                  const AdapterWish& wish, const Deadline& deadline);

AdapterRecord record_of(const Adapter& adapter);

std::unique_ptr<ChangeSender> make_change_sender(const Route& route);
// `origin` outlives the receiver.
std::unique_ptr<ChangeReceiver> make_change_receiver(const Origin& origin);

// The index, among the ranks of `host`, of the rank that `rank` of another host calls first.
inline std::size_t first_proxy(int rank, const std::vector<int>& host) {
  return static_cast<std::size_t>(rank) % host.size();
}

}  // namespace dstorm::remote
