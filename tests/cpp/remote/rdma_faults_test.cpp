// Jobs over RDMA in which calls to the adapters fail, one after the other, or for good. The
// adapters are those of tests/fake_verbs.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "dstorm/dstorm.hpp"
#include "fake.hpp"
#include "processes.hpp"

namespace dstorm {
namespace {

using namespace std::chrono_literals;
using testing_fake::kForEver;
using testing_processes::expect_all_well;
using testing_processes::Job;
using testing_processes::join;
using testing_processes::Shared;

constexpr std::size_t kSlotBytes = 8000;
constexpr int kFaulty = 1;

class RdmaFaults : public testing::Test {
 protected:
  void SetUp() override { FAKE(fake_verbs_begin)(); }
};

GroupOptions over_rdma(std::chrono::nanoseconds silence = 5s) {
  GroupOptions options;
  options.transport = "verbs";
  options.silence = silence;
  return options;
}

SegmentOptions words(std::string name = "words") {
  SegmentOptions options;
  options.name = std::move(name);
  options.slot_bytes = kSlotBytes;
  return options;
}

// One round of BSP: scatters `number` in every word, and gathers. Returns whether the updates of
// the others are whole, and as many as expected.
bool round(Segment& segment, std::uint64_t number, std::size_t others) {
  segment.scatter([&](std::span<std::byte> room) {
    std::fill_n(reinterpret_cast<std::uint64_t*>(room.data()), room.size() / 8, number);
    return std::pair(room.size(), Tag{room.size() / 8, 0});
  });
  bool is_well = false;
  segment.gather({.staleness = 0}, [&](std::span<const Update> updates) {
    is_well = updates.size() == others;
    for (const Update& update : updates) {
      const auto* word = reinterpret_cast<const std::uint64_t*>(update.payload.data());
      is_well = is_well && update.iteration >= number &&
                std::all_of(word, word + update.payload.size() / 8,
                            [&](std::uint64_t one) { return one == update.iteration; });
    }
  });
  return is_well;
}

constexpr std::uint64_t kNoLast = std::numeric_limits<std::uint64_t>::max();

// The rounds that two ranks make together. The faulty rank decides when to stop.
struct Plan {
  std::atomic<std::uint64_t> last{kNoLast};
  std::atomic<std::uint64_t> faults;
};

// Rounds, before each of which the faulty rank calls `spoil`, until that returns false.
template <class Spoil>
int go_on(Bootstrap& bootstrap, Plan& plan, Spoil&& spoil) {
  {
    const auto group = join(bootstrap, over_rdma(20s));
    Segment segment(group, words());
    for (std::uint64_t i = 1; i <= plan.last; ++i) {
      if (group->rank() == kFaulty && plan.last > i + 2 && !spoil()) plan.last = i + 2;
      CHECK_THAT(round(segment, i, 1));
    }
    CHECK_THAT(group->alive().size() == 2);
    group->barrier();
  }
  return 0;
}

// ---- Calls that fail once ----
// The calls of the data path, and those that make a new link.
constexpr const char* kCalls[] = {
    "post_send",       "completion", "poll_cq",    "req_notify_cq",       "get_cq_event",
    "reg_mr",          "create_qp",  "create_cq",  "create_comp_channel", "modify_qp",
    "get_async_event", "dereg_mr",   "destroy_qp", "destroy_cq",          "destroy_comp_channel"};

// Lets each of the calls fail once: first the next one, then the one after it, and so on, for as
// many calls as a new pair of links takes.
class InTurn {
 public:
  bool next() {
    const auto now = std::chrono::steady_clock::now();
    const bool is_over = ++rounds_ > kRounds && now - since_ > kTime;
    if (FAKE(fake_verbs_failed)(kCalls[call_]) > 0 || is_over) {
      faults_ += FAKE(fake_verbs_failed)(kCalls[call_]);
      FAKE(fake_verbs_fail)(kCalls[call_], 0, 0, 0);
      rounds_ = 0;
      since_ = now;
      if (++nth_ > kMost) {
        nth_ = 1;
        ++call_;
      }
      if (call_ == std::size(kCalls)) return false;
      // A queue pair is asked for again with less inline data, which must be refused as well.
      const bool is_pair = std::string(kCalls[call_]) == "create_qp";
      FAKE(fake_verbs_fail)(kCalls[call_], nth_, is_pair ? 20 : 1, EIO);
      // Both links of this rank end, and are made again.
      if (call_ > 1) FAKE(fake_verbs_event)(IBV_EVENT_QP_FATAL);
    }
    return true;
  }
  std::uint64_t faults() const { return faults_; }

 private:
  // A call that has not failed after so many rounds and so long is not made so often. On a busy
  // machine a link is made anew only after many rounds.
  static constexpr int kRounds = 12;
  static constexpr std::chrono::milliseconds kTime{30};
  static constexpr std::uint64_t kMost = 6;
  std::size_t call_ = 0;
  std::uint64_t nth_ = 0;
  std::uint64_t faults_ = 0;
  int rounds_ = kRounds;
  std::chrono::steady_clock::time_point since_{};
};

TEST_F(RdmaFaults, EachCallThatFailsEndsALinkAndNoProcess) {
  Shared<Plan> plan;
  Job job(2, [&](Bootstrap& bootstrap) {
    InTurn faults;
    const int status = go_on(bootstrap, *plan, [&] { return faults.next(); });
    if (bootstrap.rank() == kFaulty) plan->faults = faults.faults();
    return status;
  });
  expect_all_well(job);
  EXPECT_GT(plan->faults, 40U);
}

// ---- Events ----
TEST_F(RdmaFaults, EventsOfBrokenQueuesMakeLinksAnewAndOthersDoNot) {
  struct Case {
    ibv_event_type type;
    bool is_fault;
  };
  static constexpr Case kEvents[] = {
      {IBV_EVENT_QP_FATAL, true},  {IBV_EVENT_QP_REQ_ERR, true},   {IBV_EVENT_QP_ACCESS_ERR, true},
      {IBV_EVENT_CQ_ERR, true},    {IBV_EVENT_PORT_ERR, true},     {IBV_EVENT_DEVICE_FATAL, true},
      {IBV_EVENT_COMM_EST, false}, {IBV_EVENT_PORT_ACTIVE, false}, {IBV_EVENT_GID_CHANGE, false}};
  Shared<Plan> plan;
  Job job(2, [&](Bootstrap& bootstrap) {
    std::size_t next = 0;
    std::uint64_t made = 0;
    int wrong = 0;
    const int status = go_on(bootstrap, *plan, [&] {
      if (next > 0) {
        const auto end =
            std::chrono::steady_clock::now() + (kEvents[next - 1].is_fault ? 10s : 50ms);
        const auto has_made = [&] { return FAKE(fake_verbs_calls)("create_qp") > made; };
        while (!has_made() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
        wrong += has_made() != kEvents[next - 1].is_fault;
        std::this_thread::sleep_for(100ms);  // until both links are there again
      }
      made = FAKE(fake_verbs_calls)("create_qp");
      if (next == std::size(kEvents)) return false;
      FAKE(fake_verbs_event)(kEvents[next++].type);
      return true;
    });
    CHECK_THAT(wrong == 0);
    return status;
  });
  expect_all_well(job);
}

// ---- Adapters that fail for good ----
// Rounds of the two other ranks, from number `first` on, until the faulty rank is gone. The first
// of them that sees this makes one more round, the last one of both. The other cannot be further,
// because each round needs the update of both.
void go_on_without_it(Group& group, Segment& segment, Plan& plan, std::uint64_t first) {
  for (std::uint64_t i = first; i <= plan.last; ++i) {
    std::uint64_t none = kNoLast;
    if (!group.is_live(kFaulty)) plan.last.compare_exchange_strong(none, i);
    round(segment, i, 0);
  }
  while (group.is_live(kFaulty)) std::this_thread::yield();
}

// Three ranks, of which one calls `spoil` on its adapter after some rounds. That rank must be cut
// off, with an error that names its adapter and `reason`. The other ranks go on.
template <class Spoil>
void expect_cut_off(Spoil&& spoil, const char* reason) {
  constexpr int kRanks = 3;
  Shared<Plan> plan;
  Job job(kRanks, [&](Bootstrap& bootstrap) {
    {
      const auto group = join(bootstrap, over_rdma(1500ms));
      Segment segment(group, words());
      for (std::uint64_t i = 1; i <= 10; ++i) CHECK_THAT(round(segment, i, kRanks - 1));
      group->barrier();
      if (group->rank() == kFaulty) {
        spoil();
        std::string said;
        try {
          for (std::uint64_t i = 11; i < 100'000; ++i) round(segment, i, 0);
        } catch (const PeerError& error) {
          said = error.what();
        }
        if (said.find("transport verbs does not get through by rxe2:1:1") == std::string::npos ||
            said.find(reason) == std::string::npos) {
          std::fprintf(stderr, "rank %d: %s\n", kFaulty, said.c_str());
          return 1;
        }
      } else {
        go_on_without_it(*group, segment, *plan, 11);
        CHECK_THAT(group->alive() == (std::vector<int>{0, 2}));
        group->barrier();
      }
    }
    CHECK_THAT(FAKE(fake_verbs_objects)() == 0);
    return 0;
  });
  expect_all_well(job);
}

TEST_F(RdmaFaults, RankWhoseAdapterIsRemovedIsCutOffWithItsName) {
  expect_cut_off([] { FAKE(fake_verbs_remove)(); }, "Input/output error");
}

class CallThatKeepsFailing : public RdmaFaults, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(RdmaFaults, CallThatKeepsFailing,
                         testing::Values("post_send", "completion", "poll_cq", "create_qp",
                                         "modify_qp", "silence"),
                         [](const auto& given) { return std::string(given.param); });

TEST_P(CallThatKeepsFailing, CutsItsRankOff) {
  const auto spoil = [] {
    FAKE(fake_verbs_fail)(GetParam(), 1, kForEver, ENODEV);
    FAKE(fake_verbs_event)(IBV_EVENT_QP_FATAL);  // links are made again, or would be
  };
  expect_cut_off(spoil, "rxe2");
}

// The rank reaches the others, but they do not reach it: it answers their calls, and refuses them
// again and again.
TEST_F(RdmaFaults, RankThatCannotOpenItsMemoryToTheOthersIsLeftOutWithTheReason) {
  constexpr int kRanks = 3;
  Shared<Plan> plan;
  Job job(kRanks, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap, over_rdma(1500ms));
    // The regions after the mailbox and the cursors: the inboxes, which the rank's engine opens.
    if (group->rank() == kFaulty) FAKE(fake_verbs_fail)("reg_mr", 3, kForEver, ENOMEM);
    std::string said;
    try {
      Segment segment(group, words());
      // The faulty rank gets the error in a call.
      for (std::uint64_t i = 1; group->rank() == kFaulty; ++i) round(segment, i, 0);
      go_on_without_it(*group, segment, *plan, 1);
    } catch (const PeerError& error) {
      said = error.what();
    }
    if (group->rank() != kFaulty) {
      if (!said.empty()) std::fprintf(stderr, "rank %d: %s\n", group->rank(), said.c_str());
      CHECK_THAT(said.empty() && group->alive() == (std::vector<int>{0, 2}));
      group->barrier();
    } else if (said.find("rank 0 cannot be given access to write: device rxe2 cannot register") ==
               std::string::npos) {
      std::fprintf(stderr, "rank %d: %s\n", kFaulty, said.c_str());
      return 1;
    }
    return 0;
  });
  expect_all_well(job);
}

// ---- The limits of an adapter ----
TEST_F(RdmaFaults, AdaptersThatTakeLittleOrNothingInlineWillDo) {
  for (const std::uint32_t bytes : {0U, 8U, 32U, 39U}) {
    Job job(2, [&](Bootstrap& bootstrap) {
      FAKE(fake_verbs_adapter)()->most_inline = bytes;
      const auto group = join(bootstrap, over_rdma());
      Segment segment(group, words());
      for (std::uint64_t i = 1; i <= 300; ++i) CHECK_THAT(round(segment, i, 1));
      group->barrier();
      return 0;
    });
    expect_all_well(job);
  }
}

TEST_F(RdmaFaults, UpdateLongerThanAnAdapterTakesIsRefusedWhenItsSegmentIsMade) {
  constexpr std::uint32_t kLongest = 16384;
  Job job(2, [&](Bootstrap& bootstrap) {
    // The limit of one rank's adapter: the other rank must report it, too.
    FAKE(fake_verbs_adapter)()->longest_message =
        bootstrap.rank() == kFaulty ? kLongest : 4 * kLongest;
    const auto group = join(bootstrap, over_rdma());
    SegmentOptions options = words("long");
    options.slot_bytes = 192 * kLongest;
    std::string said;
    try {
      Segment segment(group, options);
    } catch (const ConfigError& error) {
      said = error.what();
    }
    const bool names_all = said.find("3145728 bytes") != std::string::npos &&
                           said.find("rxe2") != std::string::npos &&
                           said.find("16384 as one write") != std::string::npos &&
                           said.find("smaller vectors") != std::string::npos;
    if (!names_all) std::fprintf(stderr, "rank %d: %s\n", group->rank(), said.c_str());
    CHECK_THAT(names_all);
    options.name = "long enough";
    options.slot_bytes = 190 * kLongest;
    Segment segment(group, options);
    for (std::uint64_t i = 1; i <= 20; ++i) CHECK_THAT(round(segment, i, 1));
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

// Registrations by the ranks themselves, and by their engines when they open the inboxes.
TEST_F(RdmaFaults, MemoryThatCannotBeRegisteredIsRefusedOnAllRanksOrTriedAgain) {
  Job job(2, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap, over_rdma());
    int refused = 0;
    for (std::uint64_t nth = 1; nth <= 4; ++nth) {
      if (group->rank() == kFaulty) FAKE(fake_verbs_fail)("reg_mr", nth, 1, ENOMEM);
      try {
        Segment segment(group, words(std::to_string(nth)));
        for (std::uint64_t i = 1; i <= 5; ++i) CHECK_THAT(round(segment, i, 1));
        group->barrier();
      } catch (const ConfigError& error) {
        CHECK_THAT(std::string(error.what()).find("cannot register") != std::string::npos);
        ++refused;
      }
      group->barrier();
    }
    CHECK_THAT(refused == 2);  // the mailbox, and the cursors
    return 0;
  });
  expect_all_well(job);
}

}  // namespace
}  // namespace dstorm
