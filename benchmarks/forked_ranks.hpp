// The ranks of the C++ benchmarks: forked processes that find one another in inherited memory.
#pragma once

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <new>
#include <stdexcept>
#include <vector>

#include "dstorm/bootstrap.hpp"

namespace forked_ranks {

inline constexpr int kMostRanks = 256;

// What the ranks have in common: a counter to meet at, room for each one's bytes, and how often
// to repeat what is measured, which one of them finds out for all.
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
                                       const dstorm::Deadline& deadline) override {
    auto& post = meeting_.posts[rank_];
    if (mine.size() > sizeof(post.data))
      throw std::runtime_error("more bytes than a post has room for");
    post.bytes = mine.size();
    std::copy(mine.begin(), mine.end(), post.data);
    meet(deadline);
    std::vector<dstorm::Bytes> all;
    for (int r = 0; r < size_; ++r) {
      const auto& theirs = meeting_.posts[r];
      all.emplace_back(theirs.data, theirs.data + theirs.bytes);
    }
    meet(deadline);
    return all;
  }

  // Returns when every rank has called it.
  void meet(const dstorm::Deadline& deadline) {
    meetings_ += size_;
    ++meeting_.arrived;
    for (; meeting_.arrived < meetings_; sched_yield()) {
      if (deadline.left().count() == 0) throw std::runtime_error("a rank did not come");
    }
  }

 private:
  Meeting& meeting_;
  int rank_, size_, meetings_ = 0;
};

// Runs body(meeting, rank) in `ranks` processes; returns the exit code: 0 if none threw.
inline int run(int ranks, const std::function<void(Meeting&, int)>& body) {
  void* shared =
      mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) throw std::runtime_error("no memory for the ranks to meet in");
  auto* meeting = new (shared) Meeting;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child < 0) throw std::runtime_error("fork failed");
    if (child > 0) continue;
    try {
      body(*meeting, rank);
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

}  // namespace forked_ranks
