// Proof that the adapters of two ranks reach one another: before anything depends on it, each
// writes several packets of the largest size that both ends take to the other. That both ends have
// an adapter says nothing about the network in between: it may be another subnet, another
// partition, or have a switch that carries smaller packets only.
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

// One rank's part in the proofs with its partners. If a rank has a partner, it is that rank's
// partner too. All ranks take the steps together, with a meeting of all ranks in between. Failures
// are kept for reasons().
class Proof {
 public:
  // Why a pair of adapters cannot be used.
  struct Reason {
    int partner;
    bool is_echo;  // nothing came from the partner, which may know more
    std::string text;
  };

  // `partners` are sorted. A partner that is not reached within `limit` has failed.
  Proof(const Device& device, int rank, std::vector<int> partners, std::chrono::milliseconds limit);

  // First step: returns what the partners have to know. The caller brings it to every rank.
  Bytes offer() const;
  // Second step, with the offers of all ranks, by rank. `adapters` describes each rank's adapter.
  // Blocks for up to the limit.
  void connect(std::span<const Bytes> offers, std::span<const std::string> adapters);
  // Third step, after all have connected. Blocks for up to the limit. The queues must live until
  // every rank has returned from this.
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
  std::vector<std::uint64_t> memory_;  // the words to write, then those from each partner
  std::optional<Region> region_;
  std::vector<Pair> pairs_;
  std::vector<Reason> reasons_;
};

}  // namespace dstorm::verbs
