// Which RDMA adapter a rank uses, and with which network settings.
#pragma once

#include <cstdlib>
#include <string>

namespace dstorm {

// Returns the value of an environment variable; empty if it is not set.
inline std::string environment(const char* variable) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

// Texts, as they stand in the environment. An empty one leaves the choice to MALT. Group::join()
// throws ConfigError for a text that is out of range or that no adapter of this host has.
struct RdmaOptions {
  static constexpr const char* kDeviceVariable = "MALT_RDMA_DEVICE";
  static constexpr const char* kPartitionVariable = "MALT_RDMA_PKEY";
  static constexpr const char* kServiceLevelVariable = "MALT_RDMA_SL";
  static constexpr const char* kTrafficClassVariable = "MALT_RDMA_TRAFFIC_CLASS";

  std::string device{};         // "name", "name:port" or "name:port:gid_index"
  std::string partition{};      // P_Key: 1 to 0xffff, hexadecimal after 0x
  std::string service_level{};  // 0 to 15 (InfiniBand), 0 to 7 (RoCE: the priority)
  std::string traffic_class{};  // 0 to 255 (RoCE: six bits of DSCP, two of ECN)

  static RdmaOptions from_environment() {
    return {environment(kDeviceVariable), environment(kPartitionVariable),
            environment(kServiceLevelVariable), environment(kTrafficClassVariable)};
  }
  bool is_set() const noexcept {
    return !device.empty() || !partition.empty() || !service_level.empty() ||
           !traffic_class.empty();
  }
};

}  // namespace dstorm
