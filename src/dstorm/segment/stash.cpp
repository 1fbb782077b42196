#include "dstorm/segment/stash.hpp"

#include <algorithm>

namespace dstorm {

std::size_t Stash::count(int rank) const {
  return static_cast<std::size_t>(
      std::ranges::count(updates_, rank, [](const Stashed& update) { return update.rank; }));
}

const Stash::Stashed* Stash::newest(int rank, std::uint64_t limit) const {
  const Stashed* newest = nullptr;
  for (const Stashed& update : updates_) {
    if (update.rank == rank && update.header.iteration <= limit) newest = &update;
  }
  return newest;
}

std::uint64_t Stash::last_ordinal(int rank) const {
  const Stashed* last = newest(rank, kMostIteration);
  return last == nullptr ? 0 : last->ordinal;
}

void Stash::erase(int rank, std::uint64_t iteration) {
  std::erase_if(updates_, [&](const Stashed& update) {
    return update.rank == rank && update.header.iteration <= iteration;
  });
}

}  // namespace dstorm
