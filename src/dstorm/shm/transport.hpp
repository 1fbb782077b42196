// Shared memory: every mailbox lies once on the host and is read in place.
#pragma once

#include "dstorm/group.hpp"
#include "dstorm/shm/control.hpp"
#include "dstorm/transport.hpp"

namespace dstorm::shm {

// `group` and `control` outlive the transport and its channels.
std::unique_ptr<Transport> make_transport(Group& group, Control& control);

}  // namespace dstorm::shm
