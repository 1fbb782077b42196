// Proof that the adapters of two ranks reach one another: each writes several packets of the
// largest size that both ends take to the other. That both ends have an adapter says nothing about
// the network in between: it may be another subnet, another partition, or have a switch that
// carries smaller packets only.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dstorm/remote/transport/adapter.hpp"
#include "dstorm/remote/verbs/queue.hpp"
#include "dstorm/remote/verbs/region.hpp"

namespace dstorm::verbs {

class Proof final : public remote::Proof {
 public:
  // As Adapter::begin_proof.
  Proof(const Device& device, int rank, std::vector<int> partners, std::chrono::milliseconds limit);

  Bytes offer() const override;
  void connect(std::span<const Bytes> offers, std::span<const std::string> adapters) override;
  void write(std::span<const std::string> adapters) override;
  const std::vector<Reason>& reasons() const noexcept override { return reasons_; }

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
