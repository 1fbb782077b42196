// Settings that all connections of a rank share.
#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

#include "dstorm/remote/net/address.hpp"
#include "dstorm/remote/net/handshake.hpp"
#include "dstorm/remote/net/tls.hpp"

namespace dstorm::verbs {
class Device;
}

namespace dstorm {
class Recorder;
}

namespace dstorm::remote {

struct Settings {
  net::KeptKey key;
  net::Address own;                        // where this rank listens, and calls from
  std::vector<net::Address> addresses;     // by rank
  const net::TlsContext* tls;              // nullptr: plain
  std::chrono::nanoseconds suspect_after;  // a rank not heard from for this long is suspected
  const verbs::Device* device;             // nullptr: no RDMA
  std::vector<bool> rdma;                  // by rank: whether it is reached by RDMA
  std::size_t most_ranks;                  // of a host
  Recorder* recorder;                      // told of calls; may be null
};

}  // namespace dstorm::remote
