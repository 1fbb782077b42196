#include "vol/ps/placement.hpp"

#include <algorithm>
#include <utility>

namespace vol::ps {
namespace {

// So many ranges a server that the servers' shares differ by about a tenth.
constexpr std::int64_t kRangesOfServer = 128;
constexpr int kLeastShift = 4;  // a range has at least 16 rows

// The last step of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

std::uint64_t weight(std::size_t range, int server) {
  return mix(mix(range + 1) + 0x9e3779b97f4a7c15U * (static_cast<std::uint64_t>(server) + 1));
}

}  // namespace

Placement::Placement(std::int64_t rows, std::vector<int> servers, int replicas, int most,
                     std::span<const int> owners)
    : rows_(rows),
      servers_(std::move(servers)),
      replicas_(std::min(replicas, this->servers() - 1)),
      shift_(shift_of(rows, most)) {
  if (!owners.empty()) {
    for (shift_ = kLeastShift; (rows - 1) >> shift_ >= std::ssize(owners);) ++shift_;
  }
  const auto ranges = static_cast<std::size_t>((rows - 1) >> shift_) + 1;
  orders_.reserve(ranges * servers_.size());
  std::vector<int> order = servers_;
  for (std::size_t range = 0; range < ranges; ++range) {
    std::ranges::sort(order, {}, [range](int server) { return weight(range, server); });
    if (range < owners.size()) {
      const auto owner = std::ranges::find(order, owners[range]);
      if (owner != order.end()) std::rotate(order.begin(), owner, owner + 1);
    }
    orders_.insert(orders_.end(), order.begin(), order.end());
  }
}

int Placement::shift_of(std::int64_t rows, int most) {
  int shift = kLeastShift;
  while ((rows - 1) >> shift >= kRangesOfServer * most) ++shift;
  return shift;
}

std::int64_t Placement::end_row(std::size_t range) const {
  return std::min(rows_, first_row(range + 1));
}

int Placement::place_of(std::size_t range, int server) const {
  int place = 0;
  while (this->server(range, place) != server) ++place;
  return place;
}

}  // namespace vol::ps
