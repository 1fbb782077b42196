// A bootstrap is how the ranks of a job find one another: it exchanges bytes out of band, a few
// times at the start. After that nothing goes through it.
#pragma once

#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

#include "dstorm/deadline.hpp"

namespace dstorm {

using Bytes = std::vector<std::byte>;

// One thread uses a bootstrap. Its calls are collective: every member makes the same calls in the
// same order.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // The ranks that take part, sorted, including this one. All other ranks are dead from the start.
  virtual std::vector<int> members() const {
    std::vector<int> all(static_cast<std::size_t>(size()));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  // Blocks until every member has given its bytes, whose lengths may differ. Returns the bytes by
  // rank; they are empty for a rank that is not a member. Throws TimeoutError naming the ranks that
  // did not come by the deadline, and its whole limit.
  virtual std::vector<Bytes> allgather(std::span<const std::byte> mine,
                                       const Deadline& deadline) = 0;
};

// The bootstrap of a job of one process, without a launcher.
class SoloBootstrap final : public Bootstrap {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::vector<Bytes> allgather(std::span<const std::byte> mine, const Deadline&) override {
    return {Bytes(mine.begin(), mine.end())};
  }
};

}  // namespace dstorm
