// The choice of the transport between each pair of hosts. Updates go by RDMA if every rank of both
// has an adapter, all adapters are of one kind of network, and test writes between them have
// arrived; otherwise by TCP. A new transport is a folder beside tcp/ and verbs/, and a line in
// make_change_sender() and make_change_receiver().
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dstorm/bootstrap.hpp"
#include "dstorm/host/control.hpp"
#include "dstorm/remote/transport/change_receiver.hpp"
#include "dstorm/remote/transport/change_sender.hpp"
#include "dstorm/remote/verbs/device.hpp"

namespace dstorm::remote {

enum class Rdma : std::uint8_t { kIfThere, kRequired, kNever };

// The record by which each rank describes its adapter to the others.
struct AdapterRecord {
  bool is_there;
  verbs::Fabric fabric;
  char text[192];  // the adapter, or why there is none
};

struct TransportChoice {
  std::vector<bool> is_used;     // by rank: whether it is reached by RDMA
  std::vector<std::string> why;  // by rank: the reason
};

// Collective, blocking. Takes up to three exchanges through the bootstrap, and none if no two hosts
// have adapters that could reach one another. All ranks choose alike. A pair of adapters is given
// up after a quarter of `timeout`, at most five seconds. `device` is this rank's adapter, or null.
// Throws ConfigError, the same on all ranks, if RDMA is required and some pair of hosts cannot use
// it.
TransportChoice choose_transports(Bootstrap& bootstrap, const host::Control& control,
                                  const std::vector<AdapterRecord>& adapters,
                                  const verbs::Device* device, Rdma wish, const Deadline& deadline);

std::unique_ptr<ChangeSender> make_change_sender(const Route& route);
// `origin` outlives the receiver.
std::unique_ptr<ChangeReceiver> make_change_receiver(const Origin& origin);

// The index, among the ranks of `host`, of the rank that `rank` of another host calls first.
inline std::size_t first_proxy(int rank, const std::vector<int>& host) {
  return static_cast<std::size_t>(rank) % host.size();
}

}  // namespace dstorm::remote
