// Parses the texts of RdmaOptions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dstorm/rdma_options.hpp"

namespace dstorm::verbs {

// RdmaOptions::device, taken apart.
struct PortSetting {
  // Throws ConfigError.
  static PortSetting parse(std::string_view text);

  std::string text;
  std::string name;  // empty: any
  std::optional<std::uint32_t> port;
  std::optional<std::uint32_t> gid_index;

  // The beginning of an error's text.
  std::string prefix() const {
    return text.empty() ? "" : std::string(RdmaOptions::kDeviceVariable) + "=" + text + ": ";
  }
};

// The settings except the device, as numbers; nullopt for those that are not set.
struct Numbers {
  // Throws ConfigError.
  static Numbers parse(const RdmaOptions& options);

  std::optional<std::uint32_t> partition;
  std::optional<std::uint32_t> service_level;
  std::optional<std::uint32_t> traffic_class;
};

}  // namespace dstorm::verbs
