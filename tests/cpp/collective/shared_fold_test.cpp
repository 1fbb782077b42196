// Rounds of a shared fold whose numbers wrap.
#include "dstorm/collective/shared_fold.hpp"

#include <gtest/gtest.h>

#include "dstorm/bootstrap.hpp"
#include "dstorm/segment.hpp"
#include "dstorm/segment/parts.hpp"

namespace dstorm {
namespace {

using namespace std::chrono_literals;

TEST(SharedFold, RoundsAreCommittedAcrossTheWrapOfTheirNumbers) {
  SoloBootstrap solo;
  const auto group = Group::join(solo, {});
  SegmentOptions options;
  options.name = "w";
  options.slot_bytes = 64;
  options.result_bytes = 4096;
  Segment segment(group, options);
  SharedFold fold(segment.parts().state, 0);
  constexpr std::uint64_t kTop = std::uint64_t{1} << 32;
  std::vector<std::uint64_t> rounds{1, 2, kTop / 2};
  for (std::uint64_t round = kTop - 1500; round < kTop + 1500; ++round) rounds.push_back(round);
  rounds.insert(rounds.end(), {2 * kTop - 700, 2 * kTop, 3 * kTop + 1});
  for (const std::uint64_t round : rounds) {
    ASSERT_TRUE(fold.meet(round, 7, 0, 1s)) << round;
    ASSERT_TRUE(fold.finish(1s)) << round;
  }
}

}  // namespace
}  // namespace dstorm
