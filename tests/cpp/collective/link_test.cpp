// Messages from one rank to another, with real processes as ranks.
#include "dstorm/collective/link.hpp"

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

constexpr std::size_t kSlot = 128;
using Bytes = std::vector<std::byte>;

Bytes message(std::size_t length, int number) {
  Bytes bytes(length);
  for (std::size_t i = 0; i < length; ++i) {
    bytes[i] = static_cast<std::byte>(i * 3 + static_cast<std::size_t>(number));
  }
  return bytes;
}

Bytes receive(Link& link, std::size_t length, std::uint32_t tag) {
  Bytes bytes(length);
  link.receive(bytes, tag, 10s);
  return bytes;
}

TEST(Link, MessagesOfATagArriveInTheirOrderAndOtherTagsInAny) {
  Job job(2, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Link link(group, "l", kSlot, 4);
    if (group->rank() == 0) {
      link.send(message(5000, 1), 1);  // more than the slots hold
      link.send(message(0, 0), 2);
      link.send(message(10, 3), 1);
      link.send(message(200, 4), 7);
    } else {
      CHECK_THAT(receive(link, 200, 7) == message(200, 4));
      const std::array<std::uint32_t, 2> tags{9, 1};
      CHECK_THAT(link.await(tags, 10s) == 1);
      CHECK_THAT(receive(link, 5000, 1) == message(5000, 1));
      CHECK_THAT(receive(link, 10, 1) == message(10, 3));
      CHECK_THAT(receive(link, 0, 2).empty());
      CHECK_THAT(link.await(tags, 10ms) == -1);
    }
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

TEST(Link, NothingArrivesOfAMessageWhoseSendHasFailed) {
  Shared<std::atomic<bool>> has_failed;
  Job job(2, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Link link(group, "l", kSlot, 4);
    if (group->rank() == 0) {
      bool is_late = false;
      try {
        link.send(message(8 * kSlot, 1), 1, 300ms);
      } catch (const TimeoutError&) {
        is_late = true;
      }
      CHECK_THAT(is_late);
      *has_failed = true;
      link.send(message(8 * kSlot, 2), 1);
      link.send(message(3, 3), 1);
    } else {
      while (!*has_failed) std::this_thread::yield();
      CHECK_THAT(receive(link, 8 * kSlot, 1) == message(8 * kSlot, 2));
      CHECK_THAT(receive(link, 3, 1) == message(3, 3));
    }
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

TEST(Link, ASendWithoutAWaitSaysWhetherThereWasRoom) {
  Job job(2, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Link link(group, "l", kSlot, 2);
    if (group->rank() == 0) {
      CHECK_THAT(!link.try_send(message(kSlot + 1, 0), 1));
      CHECK_THAT(link.try_send(message(kSlot, 1), 1));
      CHECK_THAT(link.try_send(message(1, 2), 1));
      CHECK_THAT(!link.try_send(message(1, 3), 1));
    }
    group->barrier();
    if (group->rank() == 1) {
      CHECK_THAT(receive(link, kSlot, 1) == message(kSlot, 1));
      CHECK_THAT(receive(link, 1, 1) == message(1, 2));
    }
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

TEST(Link, AMessageOfAnotherLengthIsRefusedAndDropped) {
  Job job(2, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Link link(group, "l", kSlot, 4);
    if (group->rank() == 0) {
      link.send(message(300, 1), 1);
      link.send(message(20, 2), 1);
    } else {
      bool is_refused = false;
      try {
        receive(link, 10, 1);
      } catch (const ConfigError&) {
        is_refused = true;
      }
      CHECK_THAT(is_refused);
      CHECK_THAT(receive(link, 20, 1) == message(20, 2));
    }
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

// What arrived before the time was up is not lost: a later call gets the whole message.
TEST(Link, AReceiveThatTimesOutCanBeMadeAgain) {
  Job job(2, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Link link(group, "l", kSlot, 64);
    if (group->rank() == 1) {
      Bytes bytes(10);
      bool is_late = false;
      try {
        link.receive(bytes, 1, 20ms);
      } catch (const TimeoutError& error) {
        is_late = error.ranks() == std::vector<int>{0};
      }
      CHECK_THAT(is_late);
    }
    group->barrier();
    if (group->rank() == 0) link.send(message(1000, 5), 1);
    if (group->rank() == 1) CHECK_THAT(receive(link, 1000, 1) == message(1000, 5));
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

// Also if the time is up in the middle of the message, which was on its way to the caller's memory.
TEST(Link, AReceiveThatTimesOutInTheMiddleOfAMessageCanBeMadeAgain) {
  constexpr std::size_t kLong = 16 << 20;
  Shared<std::atomic<pid_t>> sender;
  Job job(2, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Link link(group, "l", 4096, 4);
    if (group->rank() == 0) *sender = getpid();
    group->barrier();
    if (group->rank() == 0) link.send(message(kLong, 5), 1);
    if (group->rank() == 1) {
      const std::uint32_t tags[] = {1};
      CHECK_THAT(link.await(tags, 10s) == 0);
      kill(*sender, SIGSTOP);
      int late = 0;
      Bytes bytes;
      for (bool is_whole = false; !is_whole;) {
        bytes.assign(kLong, std::byte{0});  // what came before is not there any more
        try {
          link.receive(bytes, 1, 0ns);  // until the sender is behind
          is_whole = true;
        } catch (const TimeoutError&) {
          if (++late == 2) kill(*sender, SIGCONT);
        }
      }
      CHECK_THAT(bytes == message(kLong, 5));
      CHECK_THAT(late > 1);
    }
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

// Of messages that nobody asks for, so many are kept; then their sender waits.
TEST(Link, MessagesOfOtherTagsFillWhatIsKeptAndNoMore) {
  constexpr std::size_t kPart = 256 << 10;
  constexpr std::size_t kFits = Link::kMostKept / kPart - 1;
  Job job(2, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Link link(group, "l", kPart, 4);
    if (group->rank() == 0) {
      for (std::size_t k = 0; k < kFits; ++k) link.send(message(kPart, 1), 1);
      link.send(message(10, 3), 3);
      std::size_t sent = 0;
      try {
        for (; sent < 20; ++sent) link.send(message(kPart, 1), 1, 500ms);
      } catch (const TimeoutError&) {
      }
      CHECK_THAT(sent >= 4 && sent <= 8);  // the slots, and what was left of the room
      group->barrier();
      for (std::size_t k = sent; k < 20; ++k) link.send(message(kPart, 1), 1);
      link.send(message(10, 2), 2);
    } else {
      CHECK_THAT(receive(link, 10, 3) == message(10, 3));
      std::string said;
      const auto began = std::chrono::steady_clock::now();
      try {
        receive(link, 10, 2);
      } catch (const ConfigError& error) {
        said = error.what();
      }
      CHECK_THAT(std::chrono::steady_clock::now() - began < 5s);  // no use to wait
      CHECK_THAT(said.find("no message with tag 2 can be received yet") != std::string::npos);
      CHECK_THAT(said.find("of 262144 bytes with tag 1)") != std::string::npos);
      CHECK_THAT(said.find("fill the 64 MiB") != std::string::npos);
      const std::uint32_t tags[] = {2};
      CHECK_THAT(link.await(tags, 10ms) == -1);
      bool is_full = false;
      try {
        link.check_room(2);
      } catch (const ConfigError& error) {
        is_full = said == error.what();
      }
      CHECK_THAT(is_full);
      group->barrier();
      for (std::size_t k = 0; k < kFits + 20; ++k) {
        CHECK_THAT(receive(link, kPart, 1) == message(kPart, 1));
      }
      link.check_room(2);
      CHECK_THAT(receive(link, 10, 2) == message(10, 2));
    }
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

// However long it is: it goes to the memory of the caller, also what came before the call.
TEST(Link, TheMessageThatIsReceivedIsNotKept) {
  constexpr std::size_t kLong = Link::kMostKept + (8 << 20);
  Job job(2, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Link link(group, "l", 1 << 20, 4);
    if (group->rank() == 0) {
      link.send(message(kLong, 1), 1);
      link.send(message(kLong, 2), 1);
      link.send(message(3, 3), 1);
    } else {
      const std::uint32_t tags[] = {1};
      CHECK_THAT(link.await(tags, 10s) == 0);
      CHECK_THAT(receive(link, kLong, 1) == message(kLong, 1));
      bool is_refused = false;  // and is dropped as it comes
      try {
        receive(link, 10, 1);
      } catch (const ConfigError&) {
        is_refused = true;
      }
      CHECK_THAT(is_refused);
      CHECK_THAT(receive(link, 3, 1) == message(3, 3));
    }
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

// To make it takes several waits, and each is short of the limit: all of them together have it.
TEST(Link, IsMadeWithinOneLimit) {
  static constexpr std::chrono::milliseconds kLimit{1000};
  Job job(2, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    if (group->rank() == 1) {  // comes to the first two steps, each late
      for (const char* step : {"segment 'l', step 1", "segment 'l', step 2"}) {
        std::this_thread::sleep_for(kLimit * 3 / 4);
        try {
          group->exchange(step, {}, 20s);
        } catch (const TimeoutError&) {
        }
      }
      return 0;
    }
    const auto began = std::chrono::steady_clock::now();
    const auto before = group->timeout();
    bool is_late = false;
    try {
      const Group::Within within(*group, kLimit);
      CHECK_THAT(group->timeout() <= kLimit);
      Link(group, "l", kSlot, 4);
    } catch (const TimeoutError& error) {
      is_late = error.ranks() == std::vector<int>{1};
    }
    CHECK_THAT(is_late);
    CHECK_THAT(std::chrono::steady_clock::now() - began < 2 * kLimit);
    CHECK_THAT(group->timeout() == before);
    std::this_thread::sleep_for(kLimit);
    return 0;
  });
  expect_all_well(job);
}

TEST(Link, ADeadSenderIsNamed) {
  Shared<std::atomic<bool>> has_come;
  Job job(2, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Link link(group, "l", kSlot, 4);
    if (group->rank() == 0) {
      link.send(message(10, 1), 1);
      // Between hosts a message may be lost with its sender.
      for (int looks = 0; !*has_come && looks < 20'000; ++looks) {
        std::this_thread::sleep_for(1ms);
      }
      raise(SIGKILL);
    }
    CHECK_THAT(receive(link, 10, 1) == message(10, 1));
    *has_come = true;
    bool is_named = false;
    try {
      receive(link, 10, 1);
    } catch (const PeerError& error) {
      is_named = error.ranks() == std::vector<int>{0};
    }
    CHECK_THAT(is_named);
    return 0;
  });
  EXPECT_EQ(job.wait_all(), (std::vector<int>{128 + SIGKILL, 0}));
}

}  // namespace
}  // namespace dstorm
