// Slots in the host's memory, page-locked, so that the GPU reads and writes them by itself.
#pragma once

#include "dstorm/device/slots.hpp"

namespace dstorm::device {

class HostSlots final : public Slots {
 public:
  HostSlots(std::shared_ptr<Gpu> gpu, std::size_t bytes, int depth, std::string what)
      : Slots(std::move(gpu), bytes, depth, std::move(what)) {}
  ~HostSlots() override { detach(); }

  std::size_t slot_bytes() const noexcept override { return bytes_; }
  void attach(Segment& segment) override;
  void detach() noexcept override;
  Address place(std::span<std::byte> room) override;
  Address find(const Update& update, Stream stream) override;
  std::vector<std::byte> copy_out(int rank, std::span<const std::byte> payload) override;

 private:
  struct Locked {  // one mailbox
    std::byte* begin;
    std::size_t bytes;
    Address device;  // where the GPU sees it
  };

  void lock(Segment& segment);
  const Locked* locked_at(const std::byte* address) const noexcept;

  std::vector<Locked> locked_;
};

}  // namespace dstorm::device
