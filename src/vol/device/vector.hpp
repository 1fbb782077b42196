// Dense vectors in the memory of a GPU: the calls of vol::DenseVector, in the order of a stream.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dstorm/device/slots.hpp"
#include "vol/dense.hpp"
#include "vol/device/program.hpp"

namespace vol {

// Threads, collective calls and errors: as for DenseVector. The differences:
//  - Each call takes the stream of the caller's work (a CUstream). A scatter sends the elements as
//    they are behind that work, and the result of a fold is there for the work that comes next on
//    the stream. Neither waits for the GPU, except as follows.
//  - A scatter waits until the scatter before it has been carried out, and each call until the
//    gather before it has been. So a program is never further ahead of the GPU than by one of each.
//  - Receivers see an update when the GPU has written it, not when scatter() returns.
//  - gather() folds what has arrived when it is called. A wait for other ranks (staleness, quorum)
//    is a wait of the caller's thread.
//  - With reject_nonfinite, max_norm or a top-k codec, gather() waits for the GPU.
//  - Folds of the user's own are refused.
// All members of the job have the vector in the memory of a GPU.
class DeviceVector {
 public:
  // Over the caller's memory on one GPU, which must outlive the vector. `slots`: where updates lie
  // (dstorm/device/slots.hpp). Also throws, on this rank only, ConfigError if the memory is not on
  // one GPU, and Error if the kernels cannot be compiled; and on all ranks ConfigError if one of
  // them has no memory for its slots. Without `sends` it can only be reduced, and has no slots for
  // updates.
  DeviceVector(std::shared_ptr<dstorm::Group> group, DType dtype, std::vector<Piece> pieces,
               VectorOptions options, dstorm::device::SlotKind slots, bool sends = true);
  ~DeviceVector();

  void regroup(std::shared_ptr<dstorm::Group> group);
  std::span<const int> scatter(device::Stream stream, const dstorm::Graph* graph = nullptr);
  const Gathered& gather(device::Stream stream, const Fold& fold,
                         const dstorm::GatherOptions& options = {});
  // On one host the values do not leave the GPU. Between hosts it copies them to the host's memory
  // and back, and waits for that.
  const Gathered& allreduce(device::Stream stream, const Fold& fold,
                            std::optional<std::chrono::nanoseconds> timeout = std::nullopt,
                            bool last = false);

  // As DenseVector::move_to(): from then on allreduce() is of `count` elements at `data`, at most
  // as many as the vector was made with, on the same GPU.
  void move_to(void* data, std::size_t count);

  DType dtype() const noexcept;
  std::size_t count() const noexcept;
  dstorm::Segment& segment() noexcept;
  const dstorm::Segment& segment() const noexcept;
  dstorm::Stats stats() const;
  Screened screened() const;
  // The place of the updates: "ipc", or "host" and why.
  const dstorm::device::SlotChoice& slots() const noexcept;
  // Copies the elements to the host's memory, and from there. They wait for the GPU.
  void read(std::span<std::byte> to, device::Stream stream) const;
  void write(std::span<const std::byte> from, device::Stream stream);

  // As of DenseVector; they wait until the GPU has finished what was begun here. To be called
  // before the group is left: what the GPU has not written by then is lost.
  void close();
  void shut() noexcept;

 private:
  struct Parts;

  std::unique_ptr<Parts> parts_;
};

}  // namespace vol
