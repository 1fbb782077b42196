// Slots in the host's memory, page-locked, so that the GPU reads and writes them by itself.
//
// If another host is reached by RDMA, the adapter's driver locks some of the same memory
// (remote/verbs/registration.hpp), and the adapter reads and writes while the GPU does:
//  H1 Each driver counts a page that it locks. So both may lock it, in any order, and it stays in
//     place until both have let it go. The adapter's driver comes first: it locks this rank's
//     mailbox and the cursors of this host's ranks while the segment is made, before attach().
//  H2 The adapter reads the payloads of this rank's mailbox, and writes cursors and inboxes. An
//     inbox has pages of its own, which are not locked for the GPU. The processor moves an update
//     from there to a mailbox and then stores its tickets (remote/verbs/inbox.hpp), so D3 holds for
//     it as for an update of this host.
//  H3 The adapter reads a payload after this process has loaded its ticket, and has computed a
//     checksum of it. By D1 all that the GPU has written there is visible to the whole system. If
//     the GPU writes the slot anew meanwhile (LATEST), the checksum tells the receiver.
//  H4 The memory of another copy of a mailbox (slot/copies.hpp) is taken later, and locked for
//     neither: the adapter does not use it, and find() copies from it.
//  H5 The memory is unmapped last. detach() comes before the segment goes or takes other memory,
//     and a registration keeps its memory mapped.
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
