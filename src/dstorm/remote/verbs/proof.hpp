// Whether the adapters of two ranks reach one another: tried by a write each way, of several packets of
// the largest size that both ends take, before anything depends on it. That both ends have an adapter
// says nothing of the network in between: another subnet, a switch that carries smaller packets only,
// another partition.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dstorm/bootstrap.hpp"
#include "dstorm/remote/verbs/queue.hpp"
#include "dstorm/remote/verbs/region.hpp"

namespace dstorm::verbs {

// One rank's part in the proofs with its partners. A rank is the partner of its partners. The steps are
// taken by all ranks together, with a meeting of all in between. Failures are kept for reasons().
class Proof {
 public:
  // Why a pair of adapters will not do.
  struct Reason {
    int partner;
    bool is_echo;  // nothing came from the partner, which may know more
    std::string text;
  };

  // `partners` sorted. What is not through after `limit` has failed.
  Proof(const Device& device, int rank, std::vector<int> partners, std::chrono::milliseconds limit);

  // First: what the partners have to know, to be brought to every rank.
  Bytes offer() const;
  // Then, with the offers of all, by rank. `adapters` describes each rank's. Blocks for up to the limit.
  void connect(std::span<const Bytes> offers, std::span<const std::string> adapters);
  // Then, after all have connected. Blocks for up to the limit. The queues have to live until every
  // rank has returned from it.
  void write(std::span<const std::string> adapters);

  const std::vector<Reason>& reasons() const noexcept { return reasons_; }

 private:
  struct Pair {
    int partner;
    std::unique_ptr<Queue> queue;  // nullptr: it has failed
    Target target{};
    bool has_sent = false;
    bool has_come = false;
  };

  void fail(Pair& pair, const std::string& why, bool is_echo = false);
  bool advance(Pair& pair, std::size_t index);

  Device device_;
  int rank_;
  std::chrono::milliseconds limit_;
  std::vector<std::uint64_t> memory_;  // what is written, then what comes from each partner
  std::optional<Region> region_;
  std::vector<Pair> pairs_;
  std::vector<Reason> reasons_;
};

}  // namespace dstorm::verbs
