// The choice of the pairs of hosts between which updates go by RDMA: every rank of both has an
// adapter, all adapters are of one kind of network, and test writes between them have arrived.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "dstorm/bootstrap.hpp"
#include "dstorm/host/control.hpp"
#include "dstorm/remote/verbs/device.hpp"

namespace dstorm::remote {

enum class Rdma : std::uint8_t { kIfThere, kRequired, kNever };

// What each rank tells the others about its adapter.
struct AdapterRecord {
  bool is_there;
  verbs::Fabric fabric;
  char text[192];  // the adapter, or why there is none
};

struct RdmaChoice {
  std::vector<bool> is_used;     // by rank: whether it is reached by RDMA
  std::vector<std::string> why;  // by rank: the reason
};

// Collective, blocking. Takes up to three exchanges through the bootstrap, and none if no two hosts
// have adapters that could reach one another. All ranks choose alike. A pair of adapters is given
// up after a quarter of `timeout`, at most five seconds. `device` is this rank's adapter, or null.
// Throws ConfigError, the same on all ranks, if RDMA is required and some pair of hosts cannot use
// it.
RdmaChoice choose_rdma(Bootstrap& bootstrap, const host::Control& control,
                       const std::vector<AdapterRecord>& adapters, const verbs::Device* device,
                       Rdma wish, std::chrono::nanoseconds timeout);

}  // namespace dstorm::remote
