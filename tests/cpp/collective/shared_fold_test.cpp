// Rounds of a shared fold whose numbers wrap, and one that a rank gives up.
#include "dstorm/collective/shared_fold.hpp"

#include <gtest/gtest.h>

#include "dstorm/bootstrap.hpp"
#include "dstorm/segment.hpp"
#include "dstorm/segment/parts.hpp"
#include "processes.hpp"

namespace dstorm {
namespace {

using namespace std::chrono_literals;
using testing_processes::Job;
using testing_processes::Shared;

SegmentOptions with_result() {
  SegmentOptions options;
  options.name = "w";
  options.slot_bytes = 64;
  options.result_bytes = 4096;
  return options;
}

TEST(SharedFold, RoundsAreCommittedAcrossTheWrapOfTheirNumbers) {
  SoloBootstrap solo;
  const auto group = Group::join(solo, {});
  Segment segment(group, with_result());
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

// As a program does that is interrupted: it gives the round up, and closes the segment before the
// other rank looks.
TEST(SharedFold, RankThatGaveUpIsNamedAfterItHasClosedTheSegment) {
  Shared<std::atomic<bool>> is_closed;
  Job job(2, [&](Bootstrap& bootstrap) {
    const auto group = Group::join(bootstrap, {.transport = "shm"});
    Segment segment(group, with_result());
    SharedFold fold(segment.parts().state, 0);
    if (group->rank() == 0) {
      CHECK_THAT(!fold.meet(1, 7, 0, 50ms));
      segment.close();
      *is_closed = true;
    } else {
      while (!*is_closed) std::this_thread::sleep_for(1ms);
      CHECK_THAT(!(fold.meet(1, 7, 0, 20s) && fold.finish(20s)));
      CHECK_THAT(fold.gave_up() == std::vector<int>{0});
      CHECK_THAT(fold.late().empty() && fold.interrupted().empty());
    }
    group->barrier();
    return 0;
  });
  testing_processes::expect_all_well(job);
}

// The third rank comes to a round that has ended already: it is not the one to blame.
TEST(SharedFold, RankThatWasInterruptedIsTold) {
  struct Interrupt {};
  Shared<std::atomic<int>> ended;
  Job job(3, [&](Bootstrap& bootstrap) {
    GroupOptions options{.transport = "shm"};
    bool is_due = false;
    options.interrupt = [&] {
      if (is_due) throw Interrupt{};
    };
    const auto group = Group::join(bootstrap, options);
    Segment segment(group, with_result());
    SharedFold fold(segment.parts().state, 0);
    group->barrier();
    is_due = group->rank() == 0;
    if (group->rank() == 0) {
      bool is_interrupted = false;
      try {
        fold.meet(1, 7, 0, 20s);
      } catch (const Interrupt&) {
        is_interrupted = true;
      }
      is_due = false;
      CHECK_THAT(is_interrupted);
    } else {
      while (group->rank() == 2 && *ended < 2) std::this_thread::sleep_for(1ms);
      CHECK_THAT(!(fold.meet(1, 7, 0, 20s) && fold.finish(20s)));
      CHECK_THAT(fold.gave_up() == std::vector<int>{0});
      CHECK_THAT(fold.interrupted() == std::vector<int>{0});
    }
    ++*ended;
    group->barrier();
    return 0;
  });
  testing_processes::expect_all_well(job);
}

}  // namespace
}  // namespace dstorm
