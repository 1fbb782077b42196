// Between which hosts of a job updates go by RDMA: where every rank of both has an adapter, all of one
// kind of network, and writes between them have been seen to arrive.
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

// What each rank tells the others of its adapter.
struct AdapterRecord {
  bool is_there;
  verbs::Fabric fabric;
  char text[192];  // which, or why there is none
};

struct RdmaChoice {
  std::vector<bool> is_used;     // by rank: whether it is reached by RDMA
  std::vector<std::string> why;  // by rank: or not
};

// Collective; takes up to three exchanges through the bootstrap, and none where no two hosts have
// adapters that could reach one another. All ranks choose alike. A pair of adapters is given up after a
// quarter of `timeout`, at most five seconds. `device` is this rank's, if it has one. Throws ConfigError,
// the same on all ranks, if RDMA is required and something stands against it.
RdmaChoice choose_rdma(Bootstrap& bootstrap, const host::Control& control,
                       const std::vector<AdapterRecord>& adapters, const verbs::Device* device,
                       Rdma wish, std::chrono::nanoseconds timeout);

}  // namespace dstorm::remote
