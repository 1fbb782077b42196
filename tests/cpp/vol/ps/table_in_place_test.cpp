// Tables on one host, whose pulls read the servers' memory (P9). Over TCP the same pulls go by
// messages.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <new>
#include <thread>
#include <utility>

#include "table_rank.hpp"

namespace vol::ps {
namespace {

bool is_one_host() { return testing_processes::transport() == "shm"; }

// A server's acknowledgement comes after its word on where its rows are.
TEST(TableInPlace, OnOneHostAPullReadsTheServersMemory) {
  for (const Codec& codec : {Codec(), Codec::float16()}) {
    const std::int64_t rows = 3000;
    TableOptions options = options_of(rows, 3);
    options.staleness = 0;
    options.codec = codec;
    run_ranks(2, options, [&](Rank& one) {
      one.add(every(rows, 1), 1);
      one.client->advance({});
      CHECK_THAT(are_all(one.all(), 2));  // waits for the other client's clock
      const std::uint64_t before = one.client->rows_in_place();
      CHECK_THAT(are_all(one.pull(every(rows, 7)), 2));
      CHECK_THAT(are_all(one.all(), 2));
      const std::uint64_t pulled = every(rows, 7).size() + static_cast<std::uint64_t>(rows);
      const bool is_in_place = is_one_host() && codec.kind() == Codec::Kind::kNone;
      CHECK_THAT(one.client->rows_in_place() - before == (is_in_place ? pulled : 0));
      return 0;
    });
  }
}

// Memory for numbers. Its first write stops until `meanwhile` has returned: the page is closed, and
// the handler of the fault opens it. There is one at a time.
class Stopping {
 public:
  Stopping(std::size_t count, std::function<void()> meanwhile)
      : count_(count),
        bytes_(count * sizeof(double)),
        at_(mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
        meanwhile_(std::move(meanwhile)) {
    if (at_ == MAP_FAILED) throw std::bad_alloc();
    current = this;
    struct sigaction action{};
    action.sa_handler = [](int) { current->open(); };
    sigaction(SIGSEGV, &action, &before_);
  }
  ~Stopping() {
    sigaction(SIGSEGV, &before_, nullptr);
    munmap(at_, bytes_);
  }
  Stopping(const Stopping&) = delete;
  Stopping& operator=(const Stopping&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(at_); }
  std::vector<double> values() const {
    const auto* const first = static_cast<const double*>(at_);
    return {first, first + count_};
  }

 private:
  void open() {
    if (!std::exchange(is_closed_, false)) std::abort();  // another fault
    meanwhile_();
    mprotect(at_, bytes_, PROT_READ | PROT_WRITE);
  }

  static Stopping* current;
  std::size_t count_, bytes_;
  void* at_;
  std::function<void()> meanwhile_;
  bool is_closed_ = true;
  struct sigaction before_{};
};
Stopping* Stopping::current = nullptr;

// P9 (d): rank 1 dies, and rank 2 pushes to the servers that take over, while rank 0 copies.
TEST(TableInPlace, APullTakesNothingFromAServerThatAnotherOneHasReplaced) {
  if (!is_one_host()) GTEST_SKIP() << "the ranks share no memory";
  Shared<Posts> posts;
  Shared<std::atomic<bool>> is_copying, is_dead, is_pushed;
  Job job(3, [&](dstorm::Bootstrap& bootstrap) {
    constexpr std::size_t kRows = 2000;
    TableOptions options = options_of(kRows, 1);
    options.replicas = 1;
    Rank one(*posts, bootstrap.rank(), 3, options);
    if (one.rank == 1) {
      for (;;) std::this_thread::sleep_for(1h);
    }
    if (one.rank == 2) {
      await(*is_dead);
      one.add(every(kRows, 1), 1);
      one.client->wait({}, {});
      *is_pushed = true;
    } else {
      one.add(every(kRows, 1), 1);
      one.client->wait({}, {});
      const Stopping to(kRows, [&] {
        *is_copying = true;
        await(*is_pushed);
      });
      one.client->pull({nullptr, 0, kRows}, to.data(), {});
      CHECK_THAT(are_all(to.values(), 2));
      CHECK_THAT(one.client->rows_in_place() > 0);
    }
    one.client->finish({});
    return 0;
  });
  await(*is_copying);
  job.signal(1, SIGKILL);
  EXPECT_EQ(job.wait(1), 128 + SIGKILL);
  *is_dead = true;
  for (int rank : {0, 2}) EXPECT_EQ(job.wait(rank), 0) << rank;
}

TEST(TableInPlace, APullDoesNotWaitForAnUpdateFunctionThatIsAtWork) {
  if (!is_one_host()) GTEST_SKIP() << "the ranks share no memory";
  Shared<Posts> posts;
  Shared<std::atomic<int>> calls;
  Shared<std::atomic<bool>> is_pulled;
  Job job(2, [&](dstorm::Bootstrap& bootstrap) {
    TableOptions options = options_of(16, 1);  // one range, on one server
    options.rule.kind = Rule::Kind::kFunction;
    options.rule.function = [&](std::byte* values, const std::byte* gradients, std::size_t) {
      if (++*calls == 2) await(*is_pulled);
      std::memcpy(values, gradients, sizeof(double));
    };
    Rank one(*posts, bootstrap.rank(), 2, options);
    if (one.rank == 0) {
      one.add({3}, 1);
      one.client->wait({}, {});
      one.add({3}, 2);
    } else {
      while (*calls < 2) std::this_thread::sleep_for(1ms);
      CHECK_THAT(are_all(one.pull({3}), 1));
      *is_pulled = true;
    }
    one.client->finish({});
    return 0;
  });
  expect_all_well(job);
}

}  // namespace
}  // namespace vol::ps
