// Ranks of one machine that are placed on several hosts.
#pragma once

#include <cstring>

#include "processes.hpp"

namespace testing_processes {

// `hosts`: by rank, the number of its host. Ranks of different hosts cannot map one another's
// memory, because neither is told where that of the other is.
class PlacedBootstrap final : public dstorm::Bootstrap {
 public:
  PlacedBootstrap(dstorm::Bootstrap& inner, std::vector<int> hosts)
      : inner_(inner), hosts_(std::move(hosts)) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::vector<int> members() const override { return inner_.members(); }
  std::vector<dstorm::Bytes> allgather(std::span<const std::byte> mine,
                                       const dstorm::Deadline& deadline) override {
    std::vector<dstorm::Bytes> all = inner_.allgather(mine, deadline);
    if (std::exchange(has_begun_, true)) return all;
    // The record begins with a version, a process and a descriptor (dstorm/host/control.cpp).
    constexpr std::int32_t kNoDescriptor = -1;
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (hosts_[r] == hosts_[static_cast<std::size_t>(rank())]) continue;
      std::memcpy(all[r].data() + 2 * sizeof(std::int32_t), &kNoDescriptor, sizeof(kNoDescriptor));
    }
    return all;
  }

 private:
  dstorm::Bootstrap& inner_;
  std::vector<int> hosts_;
  bool has_begun_ = false;
};

// Over TCP between hosts, and in shared memory on each.
inline std::shared_ptr<dstorm::Group> join_placed(dstorm::Bootstrap& bootstrap,
                                                  const std::vector<int>& hosts,
                                                  dstorm::GroupOptions options = {}) {
  PlacedBootstrap placed(bootstrap, hosts);
  options.transport = "auto";
  options.tls = "off";
  return dstorm::Group::join(placed, std::move(options));
}

// `ranks` on each of `count` hosts, one host after the other.
inline std::vector<int> hosts_of(int count, int ranks) {
  std::vector<int> hosts;
  for (int r = 0; r < count * ranks; ++r) hosts.push_back(r / ranks);
  return hosts;
}

// Hosts of equally and of unequally many ranks, in order and dealt.
inline std::vector<std::vector<int>> placements() {
  return {hosts_of(2, 2), {0, 1, 0, 1}, {0, 0, 1, 1, 1, 2}, {0, 1, 2, 2, 1}, hosts_of(4, 4)};
}

}  // namespace testing_processes
