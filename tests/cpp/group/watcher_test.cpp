// A rank whose engine is held up, for example by a thread of the program that is traced while it
// sends; and a rank that another rank was about to wake when it died.
#include "dstorm/group/watcher.hpp"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <array>
#include <memory>
#include <thread>

#include "dstorm/host/wait.hpp"
#include "dstorm/remote/engine.hpp"
#include "tcp_ranks.hpp"

namespace dstorm {
namespace {

using namespace std::chrono_literals;

constexpr auto kSilence = 2s;

struct Rank {
  Descriptor news{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::unique_ptr<host::Control> control;
  std::unique_ptr<remote::Engine> engine;
  std::unique_ptr<Watcher> watcher;
};

TEST(Watcher, RankThatCannotListenTakesNobodyForSilent) {
  std::array<Rank, 2> ranks;
  testing_ranks::in_ranks(2, [&](Bootstrap& bootstrap) {
    Rank& own = ranks[static_cast<std::size_t>(bootstrap.rank())];
    own.control = std::make_unique<host::Control>(bootstrap, host::Sharing::kNone, 10s);
    own.engine = std::make_unique<remote::Engine>(bootstrap, *own.control,
                                                  remote::EngineOptions{.deadline = 10s,
                                                                        .suspect_after = kSilence,
                                                                        .interface = {},
                                                                        .toward = {},
                                                                        .secret = {},
                                                                        .news = own.news.get()});
    own.watcher = std::make_unique<Watcher>(*own.control, own.engine.get(), own.news.get(),
                                            WatcherOptions{kSilence, TieRule::kLowest, nullptr});
  });
  {
    // Rank 0 is the half that would go on alone. Rank 1 has no majority, and some time until it
    // stops.
    const auto held = ranks[0].engine->hold_notices();
    std::this_thread::sleep_for(3 * kSilence / 2);
  }
  std::this_thread::sleep_for(kSilence);
  for (const Rank& rank : ranks) {
    EXPECT_EQ(rank.watcher->view(), (View{0, {0, 1}}));
    EXPECT_TRUE(rank.control->is_live(0) && rank.control->is_live(1));
  }
}

// W3. A rank that is not woken looks for changes when its nap is over.
TEST(Watcher, RankIsWokenAfterADeathThoughTheDeadHadUndertakenTo) {
  bool is_woken = false;
  for (int attempt = 0; attempt < 20 && !is_woken; ++attempt) {
    std::array<Rank, 2> ranks;
    testing_ranks::in_ranks(2, [&](Bootstrap& bootstrap) {
      Rank& own = ranks[static_cast<std::size_t>(bootstrap.rank())];
      own.control = std::make_unique<host::Control>(bootstrap, host::Sharing::kAll, 10s);
    });
    Rank& own = ranks[0];
    host::Control& control = *own.control;
    own.watcher = std::make_unique<Watcher>(control, nullptr, own.news.get(),
                                            WatcherOptions{60s, TieRule::kLowest, nullptr});
    Doorbell& bell = control.bell(0);
    const std::atomic<std::uint32_t> alarm{0};
    int naps = 0;
    Waiter waiter(bell, 0ms, alarm, [&] { ++naps; });
    std::thread waiting(
        [&] { EXPECT_TRUE(waiter.until([&] { return own.watcher->view().epoch == 1; }, 60s)); });
    std::uint32_t word = 0;
    while (((word = bell.word.load()) & 1) == 0) std::this_thread::yield();
    std::this_thread::sleep_for(5ms);  // so that it sleeps by now
    bell.word.compare_exchange_strong(word, word + 1);
    control.mark(1, host::State::kDead);
    eventfd_write(own.news.get(), 1);
    waiting.join();
    is_woken = naps == 0;
  }
  EXPECT_TRUE(is_woken);
}

}  // namespace
}  // namespace dstorm
