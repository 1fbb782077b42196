// The memory of a segment's payloads if a device writes and reads them.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dstorm/device/gpu.hpp"
#include "dstorm/segment.hpp"

namespace dstorm::device {

// "ipc": in the memory of the sender's GPU, which the other ranks of the host map (CUDA IPC). The
// slots in the host's memory then say where the values are.
// "host": in the slots themselves, which are page-locked for the GPU.
enum class SlotKind : std::uint8_t { kAuto, kIpc, kHost };
// Throws ConfigError for a name that is none of "auto", "ipc", "host".
SlotKind slot_kind(const std::string& name);

struct SlotChoice {
  SlotKind kind;    // not kAuto
  std::string why;  // of kHost
};
// Collective over the live ranks, blocking: which kind all ranks of the job use for `what`. kIpc,
// if all ranks share one host and each can map the memory of all others; that is tried. Throws the
// same ConfigError on all ranks if one of them wishes kIpc and it cannot be had, or if the wishes
// differ; TimeoutError as Group::exchange. `present`: what a rank has from an earlier group; if
// that is kHost on any rank, all have kHost.
SlotChoice choose_slots(Group& group, const std::shared_ptr<Gpu>& gpu, const std::string& what,
                        SlotKind wish, SlotKind present = SlotKind::kAuto);

// The payloads of one segment. For the one thread that uses it.
class Slots {
 public:
  // Of updates of `bytes` bytes. `what` names the vector in errors.
  static std::unique_ptr<Slots> make(SlotKind kind, std::shared_ptr<Gpu> gpu, std::size_t bytes,
                                     int depth, std::string what);
  virtual ~Slots() = default;
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  // For the segment's options.
  virtual std::size_t slot_bytes() const noexcept = 0;
  // Collective over the live ranks, blocking: the segment has its memory. Without it nothing can
  // be sent. Throws the same ConfigError on all ranks if one of them has no room, or cannot map
  // the memory of another; TimeoutError as Group::exchange.
  virtual void attach(Segment& segment) = 0;
  // The segment will soon have other memory, and the device is idle.
  virtual void detach() noexcept = 0;

  // In a scatter: writes into `room`, the segment's slot, what the receivers need to know, and
  // returns where the device is to write the payload. The update has slot_bytes() bytes.
  virtual Address place(std::span<std::byte> room) = 0;
  // In a gather: where the device finds the payload. A payload that the device cannot read in
  // place is copied to its memory, on `stream`, and kept until the next begin_gather(). Throws
  // Error if the update names memory that its sender does not have.
  virtual Address find(const Update& update, Stream stream) = 0;
  void begin_gather() noexcept { uploads_.clear(); }
  // For SegmentOptions::copy_out; blocks.
  virtual std::vector<std::byte> copy_out(int rank, std::span<const std::byte> payload) = 0;

 protected:
  Slots(std::shared_ptr<Gpu> gpu, std::size_t bytes, int depth, std::string what)
      : gpu_(std::move(gpu)), bytes_(bytes), depth_(depth), what_(std::move(what)) {}
  Address upload(std::span<const std::byte> payload, Stream stream);

  std::shared_ptr<Gpu> gpu_;
  std::size_t bytes_;
  int depth_;
  std::string what_;

 private:
  std::vector<Memory> uploads_;
};

}  // namespace dstorm::device
