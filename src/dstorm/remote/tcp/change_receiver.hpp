// Takes in the changes of segments that come as frames of the TCP connection itself.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "dstorm/remote/transport/change_receiver.hpp"
#include "dstorm/slot/writer.hpp"

namespace dstorm::tcp {

class ChangeReceiver final : public remote::ChangeReceiver {
 public:
  explicit ChangeReceiver(const remote::Origin& origin) : origin_(origin) {}
  ~ChangeReceiver() override { end(); }

  std::optional<Payload> begin_update(const remote::FrameHead& head,
                                      std::span<const std::byte> body,
                                      const Attached& attachment) override;
  void finish_update() override;
  bool take_clock(std::uint64_t clock, const Attached& attachment) override;
  void take_endpoint(std::span<const std::byte> body) override;
  bool keep_only(const remote::Attachments& attachments) override;
  bool is_at_work() const noexcept override { return is_making_room_; }
  void end() noexcept override;

 private:
  struct Arriving {                                        // the update whose payload is arriving
    std::shared_ptr<const remote::Attachment> attachment;  // keeps its memory mapped
    SlotHeader header;
    std::vector<Addressee> to;
    int slot = -1;          // -1: the update is not wanted
    bool is_begun = false;  // the slot has it already (SlotWriter::begun)
  };
  struct Copy {  // a copy of the sender's mailbox that this rank holds
    std::shared_ptr<const remote::Attachment> attachment;
    CopyTable::Taken taken;
    Mailbox box;
    std::optional<SlotWriter> writer = {};  // from the first update on
  };

  Arriving read_update(const remote::FrameHead& head, std::span<const std::byte> body) const;
  bool is_for_left(std::span<const Addressee> to) const;
  int claim(SlotWriter& writer, const host::SegmentMemory& memory) const;
  bool make_room(Copy& copy);
  Copy* copy_of(const std::shared_ptr<const remote::Attachment>& attachment);

  const remote::Origin& origin_;
  std::map<std::uint32_t, Copy> copies_;
  std::optional<Arriving> arriving_;
  bool is_making_room_ = false;  // for the first update of a sender
};

}  // namespace dstorm::tcp
