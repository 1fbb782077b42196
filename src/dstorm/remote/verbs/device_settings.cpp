#include "dstorm/remote/verbs/device_settings.hpp"

#include <charconv>
#include <sstream>

#include "dstorm/errors.hpp"

namespace dstorm::verbs {
namespace {

std::optional<std::uint32_t> number_in(const std::string& text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Throws ConfigError that names the variable, the value and its range.
std::uint32_t number_of(const char* variable, const std::string& text, std::uint32_t least,
                        std::uint32_t most, const char* form) {
  std::uint32_t value = 0;
  const bool is_hex = text.starts_with("0x") || text.starts_with("0X");
  const char* const end = text.data() + text.size();
  const auto [at, error] =
      std::from_chars(text.data() + (is_hex ? 2 : 0), end, value, is_hex ? 16 : 10);
  if (error == std::errc() && at == end && value >= least && value <= most) return value;
  throw ConfigError(std::string(variable) + "=" + text + ": must be " + form);
}

}  // namespace

PortSetting PortSetting::parse(std::string_view text) {
  PortSetting setting;
  setting.text = text;
  std::istringstream fields(setting.text);
  bool well = true;
  std::string field;
  for (int i = 0; std::getline(fields, field, ':'); ++i) {
    if (i == 0) {
      setting.name = field;
      well = !field.empty();
    } else {
      auto& number = i == 1 ? setting.port : setting.gid_index;
      number = number_in(field);
      well = well && number && i <= 2;
    }
  }
  if (!well || text.ends_with(':')) {
    throw ConfigError(setting.prefix() +
                      "must be a device, DEVICE:PORT or DEVICE:PORT:GID_INDEX, such as mlx5_0:1:3; "
                      "`malt info` lists the devices");
  }
  return setting;
}

Numbers Numbers::parse(const RdmaOptions& options) {
  Numbers numbers;
  if (!options.partition.empty()) {
    numbers.partition = number_of(RdmaOptions::kPartitionVariable, options.partition, 1, 0xffff,
                                  "a partition key, 1 to 0xffff, such as 0x8001");
  }
  if (!options.service_level.empty()) {
    numbers.service_level =
        number_of(RdmaOptions::kServiceLevelVariable, options.service_level, 0, 15,
                  "a service level, 0 to 15 over InfiniBand, 0 to 7 over RoCE");
  }
  if (!options.traffic_class.empty()) {
    numbers.traffic_class = number_of(RdmaOptions::kTrafficClassVariable, options.traffic_class, 0,
                                      255, "a traffic class, 0 to 255 (four times the DSCP)");
  }
  return numbers;
}

}  // namespace dstorm::verbs
