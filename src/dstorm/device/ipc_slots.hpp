// Slots in the memory of the sender's GPU.
//
// A mapping of memory that its process has freed is undefined (CUDA Driver API,
// cuIpcOpenMemHandle). The death of that process leaves it whole, but nobody can map its memory any
// more. So:
//  P1 Each rank maps the memory of all ranks of its host before any of them can send (attach). Then
//     the last updates of a rank that dies can be folded, by all ranks alike.
//  P2 A rank that has ended all its mappings, and will make no more, says so in the memory that the
//     segment has on this host.
//  P3 A sender frees its slots when each rank of its host has said so, or its process has ended.
//     Until then the slots are retired: they outlive the vector.
#pragma once

#include <map>

#include "dstorm/device/slots.hpp"

namespace dstorm::device {

class IpcSlots final : public Slots {
 public:
  IpcSlots(std::shared_ptr<Gpu> gpu, std::size_t bytes, int depth, std::string what);
  ~IpcSlots() override;

  std::size_t slot_bytes() const noexcept override;
  void attach(Segment& segment) override;
  void detach() noexcept override {}
  Address place(std::span<std::byte> room) override;
  Address find(const Update& update, Stream stream) override;
  std::vector<std::byte> copy_out(int rank, std::span<const std::byte> payload) override;

 private:
  // The memory of a sender, mapped here.
  struct Mapped {
    IpcHandle memory;
    Address at;
  };

  std::size_t size() const noexcept { return stride_ * static_cast<std::size_t>(depth_); }
  Address find(int rank, std::span<const std::byte> payload) const;
  void reserve();
  void map(int rank, const IpcHandle& memory);
  void unmap(Address at) noexcept;
  void retire() noexcept;

  std::size_t stride_;
  Memory own_;
  IpcHandle handle_{};                       // of own_
  std::vector<const std::byte*> own_rooms_;  // by slot
  std::map<int, Mapped> mapped_;             // by rank
  Segment* segment_ = nullptr;
};

}  // namespace dstorm::device
