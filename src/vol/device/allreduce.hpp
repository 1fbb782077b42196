// The allreduce of a vector in the memory of a GPU. On one host it is a round of an exchange of its
// own, over all ranks at staleness 0; between hosts it is that of a vector in the host's memory.
// A rank that has noted a death does not look for the update of the dead, which another may have
// found. So the ranks agree, in each round, whose updates all of them have found.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dstorm/collective/allreduce.hpp"
#include "vol/dense.hpp"
#include "vol/device/folding.hpp"
#include "vol/device/stream_exchange.hpp"

namespace vol::device {

// For the one thread that uses the vector, but for shut().
class Allreduce {
 public:
  // `exchange` is the vector's; `options` are those of the segment on one host. The first three
  // outlive it. `what` names the vector in errors.
  Allreduce(StreamExchange& exchange, const Elements& elements, Folding& folding,
            std::shared_ptr<Gpu> gpu, dstorm::SegmentOptions options, std::string what)
      : exchange_(exchange),
        elements_(elements),
        folding_(folding),
        gpu_(std::move(gpu)),
        options_(std::move(options)),
        what_(std::move(what)) {}

  // See DeviceVector::allreduce. `gathered` is empty.
  void run(Stream stream, const Fold& fold, const dstorm::Deadline& deadline, bool last,
           Gathered& gathered);

  dstorm::Stats stats() const;  // bytes and waits
  // Whether the GPU has finished all that was begun here; does not wait.
  bool is_idle() const { return on_device_ == nullptr || on_device_->is_idle(); }
  void shut() noexcept;  // any thread
  // The vector moves to another group, in which rejoining ranks know nothing of earlier rounds.
  void reset();

 private:
  void meet(const dstorm::Deadline& deadline);
  void run_on_device(Stream stream, const Fold& fold, const dstorm::Deadline& deadline, bool last,
                     Gathered& gathered);
  std::vector<int> found_by_all(std::span<const dstorm::Update> updates,
                                const dstorm::Deadline& deadline);
  void run_on_host(Stream stream, const Fold& fold, const dstorm::Deadline& deadline, bool last,
                   Gathered& gathered);

  StreamExchange& exchange_;
  const Elements& elements_;
  Folding& folding_;
  std::shared_ptr<Gpu> gpu_;
  dstorm::SegmentOptions options_;
  std::string what_;
  bool have_met_ = false;
  // The first run in a group makes either the first two or the third.
  std::mutex mutex_;  // of them, for shut()
  std::shared_ptr<StreamExchange> on_device_;
  std::shared_ptr<dstorm::Allreduce> agreement_;  // on whose updates are folded
  std::shared_ptr<DenseVector> on_host_;
  Address sent_at_ = 0;  // the slot of the last scatter
  dstorm::Stats stats_;  // without those of the three
};

}  // namespace vol::device
