// The calls of a job go one at a time, whichever threads make them.
#include "dstorm/host/turn.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "dstorm/errors.hpp"

namespace dstorm {
namespace {

using namespace std::chrono_literals;

std::string refusal_of(Turns& turns, const char* call) {
  try {
    const Turn turn(turns, call, "w");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Turn, CallOfAnotherThreadIsRefusedWhileOneWaits) {
  Turns turns({[](std::uintptr_t) { return "the first"; }, nullptr});
  const Turn turn(turns, "gather");
  const Turns::Pause pause(turns);
  std::string refusal;
  std::thread([&] {
    refusal = refusal_of(turns, "scatter");
    const Turns::Look look(turns);  // this works
  }).join();
  EXPECT_NE(refusal.find("scatter of 'w': another thread (the first) is in gather"),
            std::string::npos)
      << refusal;
}

TEST(Turn, CallOfAnotherThreadWaitsWhileOneWorks) {
  Turns turns;
  std::atomic<bool> has_begun{false};
  std::atomic<bool> is_over{false};
  std::thread other;
  {
    const Turn turn(turns, "scatter");
    other = std::thread([&] {
      has_begun = true;
      const Turn second(turns, "scatter");
      EXPECT_TRUE(is_over);
    });
    while (!has_begun) std::this_thread::yield();
    std::this_thread::sleep_for(5ms);
    is_over = true;
  }
  other.join();
}

TEST(Turn, CallInsideAFoldIsRefusedAndTheOneAroundItGoesOn) {
  Turns turns;
  {
    const Turn turn(turns, "gather");
    const Turn part(turns, "wait");  // a turn of the library's own
    {
      const Turns::Pause pause(turns, Turns::Code::kFold);
      EXPECT_NE(refusal_of(turns, "scatter").find("inside the function that gather"),
                std::string::npos);
      EXPECT_THROW(turns.check("finalize", true), ConfigError);
      const Turns::Look look(turns);
    }
    EXPECT_EQ(refusal_of(turns, "scatter"), "");
    const Turns::Pause pause(turns, Turns::Code::kInterrupt);
    EXPECT_NE(refusal_of(turns, "scatter").find("in the middle of gather"), std::string::npos);
    turns.check("finalize", true);
  }
  std::thread([&] { EXPECT_EQ(refusal_of(turns, "scatter"), ""); }).join();
}

// Under the thread sanitizer this shows that no two threads touch what a turn protects.
TEST(Turn, StateIsTouchedByOneThreadAtATime) {
  Turns turns;
  std::uint64_t calls = 0;  // plain: the turn guards it
  std::uint64_t looks = 0;
  std::atomic<std::uint64_t> refused{0};
  std::atomic<std::uint64_t> made{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 2000; ++i) {
        if (thread == 0) {
          const Turns::Look look(turns);
          ++looks;
          continue;
        }
        try {
          const Turn turn(turns, "gather");
          ++calls;
          if (i % 16 == thread) {
            const Turns::Pause pause(turns);
            std::this_thread::yield();
          }
          ++calls;
          ++made;
        } catch (const ConfigError&) {
          ++refused;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(calls, 2 * made);
  EXPECT_EQ(looks, 2000U);
  EXPECT_EQ(made + refused, 6000U);
  EXPECT_TRUE(turns.await_end(0s));
}

}  // namespace
}  // namespace dstorm
