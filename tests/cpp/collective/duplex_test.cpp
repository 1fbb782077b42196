// Messages between two ranks, with real processes as ranks.
#include "dstorm/collective/duplex.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "processes.hpp"

namespace dstorm {
namespace {

using namespace std::chrono_literals;
using testing_processes::expect_all_well;
using testing_processes::Job;
using testing_processes::join;
using testing_processes::Shared;

constexpr std::size_t kRoom = 256;
using Content = std::vector<std::byte>;

Content content(std::size_t length, int number) {
  Content bytes(length);
  for (std::size_t i = 0; i < length; ++i) {
    bytes[i] = static_cast<std::byte>(i * 3 + static_cast<std::size_t>(number));
  }
  return bytes;
}

Content take(Duplex& duplex) {
  Content bytes(duplex.peek(10s).body_bytes);
  duplex.take(bytes);
  return bytes;
}

TEST(Duplex, MessagesArriveWholeAndInOrderBothWays) {
  Job job(2, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    const int peer = 1 - group->rank();
    Duplex duplex(group, "d", peer, kRoom, 3);
    for (int i = 0; i < 500; ++i) {
      const auto length = static_cast<std::size_t>(i) % 200;
      if (group->rank() == i % 2) {
        duplex.send(content(1 + length % 50, i), content(length, i));
      } else {
        const Duplex::Arrived arrived = duplex.peek(10s);
        CHECK_THAT(arrived.head == content(1 + length % 50, i));
        CHECK_THAT(duplex.peek(10s).head == arrived.head);
        CHECK_THAT(take(duplex) == content(length, i));
      }
    }
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

TEST(Duplex, ASenderIsAheadByAsManyMessagesAsThereAreSlots) {
  Job job(2, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Duplex duplex(group, "d", 1 - group->rank(), kRoom, 2);
    if (group->rank() == 0) {
      CHECK_THAT(duplex.try_send({}, content(kRoom, 1)));
      CHECK_THAT(duplex.try_send({}, content(1, 2)));
      CHECK_THAT(!duplex.try_send({}, content(1, 3)));
    }
    group->barrier();
    if (group->rank() == 1) {
      CHECK_THAT(take(duplex) == content(kRoom, 1));
    } else {
      duplex.send({}, content(2, 3));  // waits for the slot
    }
    if (group->rank() == 1) {
      CHECK_THAT(take(duplex) == content(1, 2));
      CHECK_THAT(take(duplex) == content(2, 3));
    }
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

TEST(Duplex, ASpareSlotIsLeftForTrySend) {
  Shared<std::atomic<bool>> has_sent_two;
  Job job(2, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Duplex duplex(group, "d", 1 - group->rank(), kRoom, 1, 1);
    if (group->rank() == 0) {
      duplex.send({}, content(1, 1));
      duplex.send({}, content(2, 2));  // waits until the first has been taken
      *has_sent_two = true;
      CHECK_THAT(duplex.try_send({}, content(3, 3)));
      CHECK_THAT(!duplex.try_send({}, content(4, 4)));
      group->barrier();
    } else {
      CHECK_THAT(duplex.peek(10s).body_bytes == 1);
      std::this_thread::sleep_for(100ms);
      CHECK_THAT(!*has_sent_two);
      CHECK_THAT(take(duplex) == content(1, 1));
      group->barrier();
      CHECK_THAT(take(duplex) == content(2, 2));
      CHECK_THAT(take(duplex) == content(3, 3));
    }
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

TEST(Duplex, MessageThatDoesNotFitIsRefusedAndNotTaken) {
  Job job(2, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Duplex duplex(group, "d", 1 - group->rank(), kRoom, 2);
    const auto is_refused = [](auto&& call) {
      try {
        call();
      } catch (const ConfigError&) {
        return true;
      }
      return false;
    };
    Content room(7);
    if (group->rank() == 0) {
      CHECK_THAT(is_refused([&] { duplex.send(content(1, 0), content(kRoom, 0)); }));
      duplex.send({}, content(8, 1));
    } else {
      CHECK_THAT(is_refused([&] { duplex.take(room); }));  // it has not been looked at
      CHECK_THAT(duplex.peek(10s).body_bytes == 8);
      CHECK_THAT(is_refused([&] { duplex.take(room); }));
      CHECK_THAT(take(duplex) == content(8, 1));
      bool is_late = false;
      try {
        duplex.peek(10ms);
      } catch (const TimeoutError& error) {
        is_late = error.ranks() == std::vector<int>{0};
      }
      CHECK_THAT(is_late);
    }
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

TEST(Duplex, MessagesOfADeadRankAreTakenAndThenItIsNamed) {
  Shared<std::atomic<bool>> has_looked;
  Job job(2, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Duplex duplex(group, "d", 1 - group->rank(), kRoom, 4);
    if (group->rank() == 0) {
      duplex.send({}, content(10, 1));
      duplex.send({}, content(11, 2));
      // Between hosts a message may be lost with its sender.
      for (int looks = 0; !*has_looked && looks < 20'000; ++looks) {
        std::this_thread::sleep_for(1ms);
      }
      raise(SIGKILL);
    }
    CHECK_THAT(take(duplex) == content(10, 1));
    CHECK_THAT(duplex.peek(10s).body_bytes == 11);
    *has_looked = true;
    for (int looks = 0; group->is_live(0) && looks < 20'000; ++looks) {
      std::this_thread::sleep_for(1ms);
    }
    CHECK_THAT(!group->is_live(0));
    CHECK_THAT(take(duplex) == content(11, 2));
    const auto names_it = [](auto&& call) {
      try {
        call();
      } catch (const PeerError& error) {
        return error.ranks() == std::vector<int>{0};
      }
      return false;
    };
    CHECK_THAT(names_it([&] { duplex.peek(10s); }));
    CHECK_THAT(names_it([&] { duplex.send({}, content(1, 1)); }));
    CHECK_THAT(!duplex.try_send({}, content(1, 1)));
    return 0;
  });
  EXPECT_EQ(job.wait_all(), (std::vector<int>{128 + SIGKILL, 0}));
}

}  // namespace
}  // namespace dstorm
