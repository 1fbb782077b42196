// Checks that name the value, its limit and the way out. Internal to linear models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "dstorm/errors.hpp"

namespace learn {

inline void require(bool holds, const char* name, double value, const char* limit) {
  if (holds) return;
  std::string text = std::to_string(value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  throw dstorm::ConfigError(std::string(name) + " is " + text + "; it must be " + limit);
}
inline void check_length(const char* name, std::size_t length, std::size_t needed,
                         const char* what) {
  if (length == needed) return;
  throw dstorm::ConfigError(std::string(name) + " has " + std::to_string(length) +
                            " values; it needs " + std::to_string(needed) + ", " + what);
}
inline std::size_t weights_of(std::int64_t features, int outputs) {
  return (static_cast<std::size_t>(features) + 1) * static_cast<std::size_t>(outputs);
}
inline void check_features(std::int64_t given, std::int64_t features) {
  if (given == features) return;
  throw dstorm::ConfigError("the matrix has " + std::to_string(given) +
                            " features; the model has " + std::to_string(features));
}
inline void check_range(std::int64_t first, std::int64_t last, std::int64_t count, const char* of) {
  if (first >= 0 && first <= last && last <= count) return;
  throw dstorm::ConfigError("rows " + std::to_string(first) + " to " + std::to_string(last) +
                            " do not lie within the " + std::to_string(count) + " of the " + of);
}

}  // namespace learn
