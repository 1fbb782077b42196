// Settings that all connections of a rank share.
#pragma once

#include <chrono>
#include <vector>

#include "dstorm/remote/net/address.hpp"
#include "dstorm/remote/net/handshake.hpp"
#include "dstorm/remote/net/tls.hpp"

namespace dstorm {
class Recorder;
}

namespace dstorm::remote {

class Adapter;

struct Settings {
  net::KeptKey key;
  net::Address own;                        // where this rank listens, and calls from
  std::vector<net::Address> addresses;     // by rank
  const net::TlsContext* tls;              // nullptr: plain
  std::chrono::nanoseconds suspect_after;  // a rank not heard from for this long is suspected
  Adapter* adapter;                        // nullptr: this rank uses none
  std::vector<bool> by_adapter;            // by rank: whether updates go to it by the adapter
  Recorder* recorder;                      // told of calls; may be null
};

}  // namespace dstorm::remote
