// The C++ twin of MALT's side of exchange.py: averages a dense float32 vector over forked ranks.
//
//   exchange RANKS BYTES scatter_gather|allreduce|allreduce_own [BLOCKS]
//
// Prints the median over blocks of the mean microseconds an exchange, as rank 0 sees it; every rank
// checks the average.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "dstorm/group.hpp"
#include "forked_ranks.hpp"
#include "vol/dense.hpp"

namespace {

using forked_ranks::ForkBootstrap;
using forked_ranks::kMostRanks;
using forked_ranks::Meeting;
using Clock = std::chrono::steady_clock;

constexpr double kBlockSeconds = 0.02;

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
    return forked_ranks::run(ranks, [&](Meeting& meeting, int rank) {
      run(meeting, rank, ranks, count, variant, blocks);
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
