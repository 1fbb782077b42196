// The user's settings for the network adapter, and how they are read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dstorm::verbs {

// The environment variables from which DeviceSettings are read.
inline constexpr const char* kDeviceVariable = "MALT_RDMA_DEVICE";
inline constexpr const char* kPartitionVariable = "MALT_RDMA_PKEY";
inline constexpr const char* kServiceLevelVariable = "MALT_RDMA_SL";
inline constexpr const char* kTrafficClassVariable = "MALT_RDMA_TRAFFIC_CLASS";

// The adapter that the user asks for; empty: not set.
struct DeviceSettings {
  std::string device{};         // "name", "name:port" or "name:port:gid_index"
  std::string partition{};      // P_Key: 1 to 0xffff, hexadecimal after 0x
  std::string service_level{};  // 0 to 15 (InfiniBand), 0 to 7 (RoCE: the priority)
  std::string traffic_class{};  // 0 to 255 (RoCE: six bits of DSCP, two of ECN)

  static DeviceSettings from_environment();
  bool is_set() const noexcept {
    return !device.empty() || !partition.empty() || !service_level.empty() ||
           !traffic_class.empty();
  }
};

// DeviceSettings::device, taken apart.
struct PortSetting {
  // Throws ConfigError.
  static PortSetting parse(std::string_view text);

  std::string text;
  std::string name;  // empty: any
  std::optional<std::uint32_t> port;
  std::optional<std::uint32_t> gid_index;

  // The beginning of an error's text.
  std::string prefix() const {
    return text.empty() ? "" : std::string(kDeviceVariable) + "=" + text + ": ";
  }
};

// The settings except the device, as numbers; nullopt for those that are not set.
struct Numbers {
  // Throws ConfigError.
  static Numbers parse(const DeviceSettings& settings);

  std::optional<std::uint32_t> partition;
  std::optional<std::uint32_t> service_level;
  std::optional<std::uint32_t> traffic_class;
};

}  // namespace dstorm::verbs
