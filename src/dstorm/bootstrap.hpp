// How the ranks of a job find one another: bytes exchanged out of band, a few times at start.
// After start-up nothing goes through it.
#pragma once

#include <chrono>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

namespace dstorm {

using Bytes = std::vector<std::byte>;

// Used by one thread. Collective: every member makes the same calls in the same order.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // The ranks that take part, sorted, this one among them; the others are dead from the start.
  virtual std::vector<int> members() const {
    std::vector<int> all(static_cast<std::size_t>(size()));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  // Blocks until every member has given its bytes (lengths may differ); returns them by rank, none
  // of a rank that is no member.
  // Throws TimeoutError naming the ranks that did not come.
  virtual std::vector<Bytes> allgather(std::span<const std::byte> mine,
                                       std::chrono::nanoseconds timeout) = 0;
};

// A job of one process, without a launcher.
class SoloBootstrap final : public Bootstrap {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::vector<Bytes> allgather(std::span<const std::byte> mine, std::chrono::nanoseconds) override {
    return {Bytes(mine.begin(), mine.end())};
  }
};

}  // namespace dstorm
