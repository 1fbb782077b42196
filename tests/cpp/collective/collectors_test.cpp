// Which members fold which parts, without messages.
#include "dstorm/collective/collectors.hpp"

#include <gtest/gtest.h>

#include <utility>

#include "placed.hpp"

namespace dstorm {
namespace {

using testing_processes::hosts_of;
using testing_processes::placements;

// The collectors and the owner of each part together get the vector of each member once.
TEST(Collectors, EveryVectorReachesEachOwnerOnce) {
  for (const std::vector<int>& hosts : placements()) {
    for (const std::size_t lost : {0UL, 1UL, 2UL}) {
      const std::vector<int> left(hosts.begin(), hosts.end() - static_cast<long>(lost));
      const Collectors collectors(left.size(), hosts.size(), left);
      for (std::size_t part = 0; part < hosts.size(); ++part) {
        std::vector<int> weights(left.size(), 1);  // of the vectors that a member has, in sum
        for (const bool is_sum : {false, true}) {
          for (std::size_t to = 0; to < left.size(); ++to) {
            std::size_t senders = 0;
            for (std::size_t from = 0; from < left.size(); ++from) {
              if (!collectors.sends(from, part, to)) continue;
              ++senders;
              EXPECT_TRUE(left[from] == left[to] || collectors.owner(part) == to);
              if ((collectors.of(part, from) == from) != is_sum) continue;
              weights[to] += std::exchange(weights[from], 0);
            }
            if (collectors.of(part, to) == to) {
              EXPECT_EQ(collectors.senders(part, to), senders);
            } else {
              EXPECT_EQ(senders, 0U);
            }
          }
        }
        EXPECT_EQ(weights[collectors.owner(part)], static_cast<int>(left.size()));
      }
    }
  }
}

TEST(Collectors, MembersOfAHostTakeEqualTurns) {
  for (const bool is_dealt : {false, true}) {
    std::vector<int> hosts = hosts_of(4, 4);
    for (std::size_t r = 0; is_dealt && r < 16; ++r) hosts[r] = static_cast<int>(r % 4);
    const Collectors collectors(16, 16, hosts);
    for (std::size_t member = 0; member < 16; ++member) {
      int collected = 0;
      for (std::size_t part = 0; part < 16; ++part) {
        if (collectors.of(part, member) == member) ++collected;
      }
      EXPECT_EQ(collected, 1 + 12 / 4);
    }
  }
}

}  // namespace
}  // namespace dstorm
