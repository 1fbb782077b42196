// A view: one membership of a job, as its ranks have agreed on it. A plain value.
#pragma once

#include <cstdint>
#include <vector>

namespace dstorm {

struct View {
  std::uint64_t epoch = 0;        // the number of the membership
  std::vector<int> members = {};  // sorted

  bool has(int rank) const;
  friend bool operator==(const View&, const View&) = default;
};

// Which half goes on when a job splits into two equal halves.
enum class TieRule : std::uint8_t { kLowest /* the one with the lowest rank */, kNeither };

}  // namespace dstorm
