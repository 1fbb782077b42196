#include "dstorm/errors.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdio>

namespace dstorm {

// People read these messages: past this many ranks, a count says more than a list of numbers.
constexpr std::size_t kRanksNamed = 16;

std::string describe_ranks(const std::vector<int>& ranks) {
  if (ranks.empty()) return "no rank";
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const std::size_t named = std::min(ranks.size(), kRanksNamed);
  for (std::size_t i = 0; i < named; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
  }
  if (named < ranks.size()) text += " and " + std::to_string(ranks.size() - named) + " more";
  return text;
}

std::string format_seconds(std::chrono::nanoseconds time) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g s", std::chrono::duration<double>(time).count());
  return text;
}

}  // namespace dstorm
