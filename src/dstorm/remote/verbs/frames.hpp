// The frames by which both ends of a connection introduce their adapters.
#pragma once

#include "dstorm/remote/net/handshake.hpp"
#include "dstorm/remote/verbs/queue.hpp"

namespace dstorm::verbs {

// The body of remote::FrameKind::kEndpoint.
struct EndpointBody {
  Endpoint endpoint;
  net::Mac proof;
};
static_assert(sizeof(EndpointBody) == 64);

}  // namespace dstorm::verbs
