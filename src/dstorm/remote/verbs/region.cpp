#include "dstorm/remote/verbs/region.hpp"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "dstorm/errors.hpp"

namespace dstorm::verbs {
namespace {

std::string locked_memory_limit() {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited"
                                         : std::to_string(limit.rlim_cur / 1024) + " KB";
}

}  // namespace

Region::Region(const Device& device, std::span<std::byte> memory, std::string_view what)
    : device_(device),
      // Without relaxed ordering: the parts of a slot must arrive in the order in which they were
      // written.
      memory_(device.library().reg_mr(device.domain(), memory.data(), memory.size(),
                                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE),
              device.library().dereg_mr) {
  if (memory_ != nullptr) return;
  const int error = errno;
  std::string message = "device " + device.choice().name + " cannot register " +
                        std::to_string(memory.size()) + " bytes for " + std::string(what) + ": " +
                        std::strerror(error);
  if (error == ENOMEM) {
    message += "; RDMA keeps memory in RAM, and this process may lock " + locked_memory_limit() +
               " in all: raise ulimit -l (memlock in /etc/security/limits.conf, LimitMEMLOCK= in "
               "systemd, --ulimit memlock=-1 in Docker)";
  }
  throw ConfigError(message);
}

}  // namespace dstorm::verbs
