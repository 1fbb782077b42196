// Messages from each rank to all others, with real processes as ranks.
#include "dstorm/collective/messages.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <map>

#include "processes.hpp"

namespace dstorm {
namespace {

using namespace std::chrono_literals;
using testing_processes::expect_all_well;
using testing_processes::ForkBootstrap;
using testing_processes::Job;
using testing_processes::join;

constexpr std::size_t kSlot = 128;
using Texts = std::map<int, std::vector<std::string>>;

bool try_send(Messages& messages, const std::string& text) {
  return messages.try_send(std::as_bytes(std::span(text)));
}

void receive(Messages& messages, Texts& into, bool expected_old = false) {
  messages.receive([&](int rank, std::span<const std::byte> message, bool is_old) {
    std::string text(reinterpret_cast<const char*>(message.data()), message.size());
    into[rank].push_back(is_old == expected_old ? text : text + ", of the wrong group");
  });
}

std::size_t count(const Texts& texts) {
  std::size_t sum = 0;
  for (const auto& [rank, all] : texts) sum += all.size();
  return sum;
}

TEST(Messages, AllArriveInOrderThoughAllRanksSendMoreThanTheSlotsHold) {
  constexpr int kRanks = 3, kCount = 200;
  Job job(kRanks, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Messages messages(group, "m", kSlot, 2, false);
    Texts texts;
    for (int sent = 0; sent < kCount || count(texts) < kCount * (kRanks - 1);) {
      const std::vector<int> live = messages.live();
      const bool is_due = sent < kCount;
      if (is_due && try_send(messages, std::to_string(sent))) {
        ++sent;
      } else {
        CHECK_THAT(messages.await(is_due, live, "messages", 20s));
      }
      receive(messages, texts);
    }
    for (const auto& [rank, all] : texts) {
      for (int i = 0; i < kCount; ++i) {
        CHECK_THAT(all[static_cast<std::size_t>(i)] == std::to_string(i));
      }
    }
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

TEST(Messages, ASendSaysThatThereIsNoRoomAndWhoHoldsIt) {
  Job job(3, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Messages messages(group, "m", kSlot, 2, false);
    if (group->rank() == 0) {
      CHECK_THAT(try_send(messages, "a"));
      CHECK_THAT(try_send(messages, "b"));
      CHECK_THAT(!try_send(messages, "c"));
    }
    group->barrier();
    Texts texts;
    if (group->rank() == 1) receive(messages, texts);
    group->barrier();
    if (group->rank() == 0) {
      CHECK_THAT((messages.blockers() == std::vector<int>{2}));
      CHECK_THAT(!messages.await(true, messages.live(), "room", 10ms));
    }
    group->barrier();
    if (group->rank() == 2) receive(messages, texts);
    if (group->rank() == 0) {
      CHECK_THAT(messages.await(true, messages.live(), "room", 20s));
      CHECK_THAT(try_send(messages, "c"));
    }
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

TEST(Messages, AWaitEndsWhenARankDies) {
  Job job(2, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Messages messages(group, "m", kSlot, 2, false);
    const std::vector<int> live = messages.live();
    CHECK_THAT((live == std::vector<int>{0, 1}));
    group->barrier();
    if (group->rank() == 1) {
      CHECK_THAT(try_send(messages, "last words"));
      kill(getpid(), SIGKILL);
    }
    Texts texts;
    while (messages.live() == live || texts.empty()) {
      CHECK_THAT(messages.await(false, live, "a death", 20s));
      receive(messages, texts);
    }
    CHECK_THAT((texts[1] == std::vector<std::string>{"last words"}));
    CHECK_THAT(try_send(messages, "to nobody"));
    return 0;
  });
  EXPECT_EQ(job.wait(0), 0);
}

TEST(Messages, ThoseThatHaveNotBeenReceivedComeAlongToTheNextGroupAsOld) {
  Job job(2, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Messages messages(group, "m", kSlot, 2, false);
    CHECK_THAT(try_send(messages, "before"));
    group->barrier();
    ForkBootstrap next = dynamic_cast<ForkBootstrap&>(bootstrap).generation(1, {0, 1});
    const auto following = join(next);
    messages.regroup(following);
    Texts texts;
    receive(messages, texts, true);
    const int other = 1 - following->rank();
    CHECK_THAT((texts[other] == std::vector<std::string>{"before"}));
    following->barrier();
    CHECK_THAT(try_send(messages, "after"));
    while (texts[other].size() < 2) {
      CHECK_THAT(messages.await(false, messages.live(), "a message", 20s));
      receive(messages, texts);
    }
    CHECK_THAT(texts[other][1] == "after");
    following->barrier();
    return 0;
  });
  expect_all_well(job);
}

}  // namespace
}  // namespace dstorm
