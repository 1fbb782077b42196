// How often a test does what it could do for ever.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "sanitizers.hpp"

// `usual`, or MALT_STRESS times that; at least 1. A sanitizer needs some ten times as long for
// each, and finds what it can in fewer.
inline std::uint64_t stressed(double usual) {
  const char* given = std::getenv("MALT_STRESS");
  const double factor = given != nullptr ? std::atof(given) : kSanitized ? 0.2 : 1;
  return std::max<std::uint64_t>(static_cast<std::uint64_t>(factor * usual), 1);
}
