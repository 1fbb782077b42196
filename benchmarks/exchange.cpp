// The C++ twin of MALT's side of exchange.py: averages a dense float32 vector over forked ranks.
//
//   exchange RANKS BYTES scatter_gather|allreduce|allreduce_own [BLOCKS]
//
// Prints the median over blocks of the mean microseconds an exchange, as rank 0 sees it; every rank
// checks the average.
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "dstorm/bootstrap.hpp"
#include "dstorm/group.hpp"
#include "vol/dense.hpp"

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kBlockSeconds = 0.02;
constexpr int kMostRanks = 256;

// What the forked ranks have in common: a counter to meet at, and room for each one's bytes.
struct Meeting {
  std::atomic<int> arrived;
  std::atomic<int> repeats;
  struct {
    std::size_t bytes;
    std::byte data[4096];
  } posts[kMostRanks];
};

class ForkBootstrap final : public dstorm::Bootstrap {
 public:
  ForkBootstrap(Meeting& meeting, int rank, int size)
      : meeting_(meeting), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::vector<dstorm::Bytes> allgather(std::span<const std::byte> mine,
                                       std::chrono::nanoseconds timeout) override {
    auto& post = meeting_.posts[rank_];
    if (mine.size() > sizeof(post.data))
      throw std::runtime_error("more bytes than a post has room for");
    post.bytes = mine.size();
    std::copy(mine.begin(), mine.end(), post.data);
    meet(timeout);
    std::vector<dstorm::Bytes> all;
    for (int r = 0; r < size_; ++r) {
      const auto& theirs = meeting_.posts[r];
      all.emplace_back(theirs.data, theirs.data + theirs.bytes);
    }
    meet(timeout);
    return all;
  }

 private:
  void meet(std::chrono::nanoseconds timeout) {
    meetings_ += size_;
    ++meeting_.arrived;
    for (const auto start = Clock::now(); meeting_.arrived < meetings_; sched_yield()) {
      if (Clock::now() - start > timeout) throw std::runtime_error("a rank did not start");
    }
  }

  Meeting& meeting_;
  int rank_, size_, meetings_ = 0;
};

// Small integers, so that the average is exact whatever the order of the sum.
void fill(std::span<float> values, int rank) {
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(i % 97) + 2.0F * static_cast<float>(rank);
}

void check(std::span<const float> values, int ranks) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] != static_cast<float>(i % 97) + static_cast<float>(ranks - 1)) {
      throw std::runtime_error("element " + std::to_string(i) + " of the average is wrong");
    }
  }
}

double seconds_each(int repeats, const std::function<void()>& exchange) {
  const auto start = Clock::now();
  for (int i = 0; i < repeats; ++i) exchange();
  return std::chrono::duration<double>(Clock::now() - start).count() / repeats;
}

void run(Meeting& meeting, int rank, int ranks, std::size_t count, const std::string& variant,
         int blocks) {
  ForkBootstrap bootstrap(meeting, rank, ranks);
  const auto group = dstorm::Group::join(bootstrap);
  std::vector<float> memory(variant == "allreduce_own" ? 0 : count);
  std::unique_ptr<vol::Dense<float>> vector;
  if (memory.empty()) {
    vector = std::make_unique<vol::Dense<float>>(group, vol::VectorOptions{.name = "v"}, count);
  } else {
    vector = std::make_unique<vol::Dense<float>>(group, vol::VectorOptions{.name = "v"},
                                                 std::span(memory));
  }
  const std::function<void()> exchange = [&] {
    if (variant == "scatter_gather") {
      vector->scatter();
      vector->gather(vol::Fold::avg(), {.staleness = 0, .timeout = std::nullopt});
    } else {
      vector->allreduce(vol::Fold::avg());
    }
  };

  fill(vector->values(), rank);
  exchange();
  check(vector->values(), ranks);
  const double once = seconds_each(4, exchange);
  if (rank == 0) meeting.repeats = std::clamp(static_cast<int>(kBlockSeconds / once), 1, 20000);
  std::vector<double> seconds;
  for (int block = 0; block < blocks; ++block) {
    group->barrier();
    seconds.push_back(seconds_each(meeting.repeats, exchange));
  }
  check(vector->values(), ranks);
  std::nth_element(seconds.begin(), seconds.begin() + blocks / 2, seconds.end());
  if (rank == 0) std::printf("%.4f\n", 1e6 * seconds[static_cast<std::size_t>(blocks) / 2]);
}

int start(int ranks, std::size_t count, const std::string& variant, int blocks) {
  void* shared =
      mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) throw std::runtime_error("no memory for the ranks to meet in");
  auto* meeting = new (shared) Meeting;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child < 0) throw std::runtime_error("fork failed");
    if (child > 0) continue;
    try {
      run(*meeting, rank, ranks, count, variant, blocks);
      std::fflush(stdout);
      _exit(0);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      _exit(1);
    }
  }
  int worst = 0;
  for (int status = 0; wait(&status) > 0;) worst |= status;
  return worst == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string variant = argc > 3 ? argv[3] : "";
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 0;
  const std::size_t count = argc > 2 ? std::strtoull(argv[2], nullptr, 10) / sizeof(float) : 0;
  const int blocks = argc > 4 ? std::atoi(argv[4]) : 9;
  const bool known =
      variant == "scatter_gather" || variant == "allreduce" || variant == "allreduce_own";
  if (!known || ranks < 1 || ranks > kMostRanks || count < 1 || blocks < 1) {
    std::fprintf(stderr, "usage: %s RANKS BYTES scatter_gather|allreduce|allreduce_own [BLOCKS]\n",
                 argv[0]);
    return 2;
  }
  try {
    return start(ranks, count, variant, blocks);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
