// Messages among all ranks of a group, with real processes as ranks.
#include "dstorm/collective/mail.hpp"

#include <gtest/gtest.h>

#include <algorithm>
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

constexpr std::size_t kSlot = 256;

using Number = std::uint64_t;

void send(Mail& mail, int to, Number number) {
  // Of different lengths, so that a message in the wrong place is found.
  std::vector<std::byte> message(sizeof(number) + number % (kSlot - sizeof(number)));
  std::memcpy(message.data(), &number, sizeof(number));
  mail.send(to, message);
}

// Takes in until `done`, and checks the numbers of each sender.
template <class Done>
bool take_all(Mail& mail, std::vector<Number>& next, Done&& done) {
  bool is_right = true;
  while (!done()) {
    const bool is_news = mail.take_in([&](int sender, std::span<const std::byte> message) {
      Number number = 0;
      std::memcpy(&number, message.data(), sizeof(number));
      is_right = is_right && number == next[static_cast<std::size_t>(sender)]++ &&
                 message.size() == sizeof(number) + number % (kSlot - sizeof(number));
    });
    if (mail.pump() || is_news) continue;
    is_right = is_right && mail.wait(done, 60s, [] { return std::string("mail"); });
  }
  return is_right;
}

TEST(Mail, RanksThatSendOneAnotherMoreThanSlotsHoldGetAllOfItInOrder) {
  constexpr Number kMessages = 2000;
  Job job(3, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Mail mail(group, "m", kSlot, 2);
    const Turn turn(mail.turns(), "test");
    for (Number number = 0; number < kMessages; ++number) {
      for (int to = 0; to < 3; ++to) {
        if (to != mail.rank()) send(mail, to, number);
      }
    }
    std::vector<Number> next(3);
    next[static_cast<std::size_t>(mail.rank())] = kMessages;
    const auto have_all = [&] {
      return mail.waiting() == 0 &&
             std::ranges::all_of(next, [](Number each) { return each == kMessages; });
    };
    CHECK_THAT(take_all(mail, next, have_all));
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

// Rank 0 answers each number that rank 1 sends, and rank 1 takes nothing for a while. Meanwhile
// rank 2 gets all of its answers.
TEST(Mail, MessagesThatAreLeftLyingStayInOrderUntilTheirSenderHasTakenSome) {
  constexpr Number kMessages = 100;
  constexpr std::size_t kMost = 3;
  constexpr int kDepth = 8;
  testing_processes::Shared<std::atomic<bool>> is_served;
  Job job(3, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Mail mail(group, "m", kSlot, kDepth);
    const Turn turn(mail.turns(), "test");
    std::vector<Number> next(3);
    if (mail.rank() != 0) {
      for (Number number = 0; number < kMessages; ++number) send(mail, 0, number);
      next[0] = 0;
      while (mail.rank() == 1 && !*is_served) {
        mail.pump();
        std::this_thread::sleep_for(1ms);
      }
      CHECK_THAT(take_all(mail, next, [&] { return next[0] == kMessages; }));
      if (mail.rank() == 2) *is_served = true;
      group->barrier();
      return 0;
    }
    std::size_t most = 0;
    const auto answer = [&](int sender, std::span<const std::byte> message) {
      most = std::max(most, mail.untaken(1));
      if (sender == 1 && mail.untaken(1) >= kMost) return false;
      Number number = 0;
      std::memcpy(&number, message.data(), sizeof(number));
      if (number != next[static_cast<std::size_t>(sender)]++) throw Error("out of order");
      mail.send(sender, message);
      return true;
    };
    while (next[1] < kMessages || next[2] < kMessages || mail.waiting() > 0) {
      const bool is_news = mail.take_in(answer);
      // It sleeps while there is nothing that it may take.
      if (!mail.pump() && !is_news) CHECK_THAT(mail.wait([] { return false; }, 60s));
    }
    CHECK_THAT(most == kMost);
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

// Rank 1 takes nothing until rank 2 has got all that rank 0 sent after it had filled slots for
// rank 1.
TEST(Mail, AReceiverThatTakesNothingLeavesSlotsToTheOthers) {
  constexpr Number kMessages = 100;
  testing_processes::Shared<std::atomic<bool>> is_served;
  Job job(3, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Mail mail(group, "m", kSlot, 4);
    const Turn turn(mail.turns(), "test");
    std::vector<Number> next(3);
    if (mail.rank() == 0) {
      for (const int to : {1, 2}) {
        for (Number number = 0; number < kMessages; ++number) send(mail, to, number);
      }
      CHECK_THAT(take_all(mail, next, [&] { return mail.waiting() == 0; }));
    } else {
      while (mail.rank() == 1 && !*is_served) std::this_thread::sleep_for(1ms);
      CHECK_THAT(take_all(mail, next, [&] { return next[0] == kMessages; }));
      if (mail.rank() == 2) *is_served = true;
    }
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

TEST(Mail, MessagesForADeadRankAreDroppedAndHoldUpNoOthers) {
  Job job(3, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Mail mail(group, "m", kSlot, 2);
    if (mail.rank() == 2) std::raise(SIGKILL);
    const Turn turn(mail.turns(), "test");
    const int other = 1 - mail.rank();
    constexpr Number kMessages = 100;
    for (Number number = 0; number < kMessages; ++number) {
      send(mail, 2, number);
      send(mail, other, number);
    }
    std::vector<Number> next(3);
    CHECK_THAT(take_all(mail, next, [&] {
      return mail.waiting() == 0 && next[static_cast<std::size_t>(other)] == kMessages;
    }));
    group->barrier();
    return 0;
  });
  EXPECT_EQ(job.wait(2), 128 + SIGKILL);
  EXPECT_EQ(job.wait(0), 0);
  EXPECT_EQ(job.wait(1), 0);
}

// Senders may write into the slots of a rank that has left (S4 c). A thread of that rank may be
// reading one: where its own process would be the writer, over TCP, the slot stays as it is.
TEST(Mail, AMessageThatIsBeingReadStaysWhileItsReaderLeaves) {
  for (int round = 0; round < 20; ++round) {
    Job job(2, [&](Bootstrap& bootstrap) {
      const auto group = join(bootstrap);
      Mail mail(group, "m", kSlot, 4);
      std::vector<std::byte> message(kSlot);
      if (mail.rank() == 0) {
        const Turn turn(mail.turns(), "test");
        for (int number = 0; mail.is_live(1); ++number) {
          std::ranges::fill(message, static_cast<std::byte>(number));
          mail.send(1, message);
          while (mail.is_live(1) && mail.untaken(1) >= 3) mail.pump();
        }
        return 0;
      }
      std::atomic<int> taken = 0;
      std::atomic<bool> is_torn = false;
      std::thread reader([&] {
        const Turn turn(mail.turns(), "test");
        try {
          for (;;) {
            group->check_standing();
            mail.take_in([&](int, std::span<const std::byte> arrived) {
              std::vector<std::byte> first(arrived.begin(), arrived.end());
              std::this_thread::sleep_for(100us);
              is_torn = is_torn || !std::ranges::equal(first, arrived);
              ++taken;
            });
          }
        } catch (const ConfigError&) {  // this rank has left
        }
      });
      while (taken < 20 + round) std::this_thread::yield();
      group->leave();
      reader.join();
      CHECK_THAT(!is_torn || testing_processes::transport() != "tcp");
      return 0;
    });
    expect_all_well(job);
  }
}

}  // namespace
}  // namespace dstorm
