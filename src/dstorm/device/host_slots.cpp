#include "dstorm/device/host_slots.hpp"

#include <algorithm>

#include "dstorm/device/posts.hpp"
#include "dstorm/errors.hpp"
#include "dstorm/segment/parts.hpp"

namespace dstorm::device {

// H4: locks only the mailboxes, after their memory has been reserved.
void HostSlots::attach(Segment& segment) {
  Outcome mine;
  attempt(mine, [&] { lock(segment); });
  post_or_throw(segment.group(), what_ + ", page-locking", mine);
}

void HostSlots::lock(Segment& segment) {
  const SegmentState& state = segment.parts().state;
  const Driver& driver = Driver::get();
  const Gpu::Use use(*gpu_);
  for (int r = 0; r < state.group().size(); ++r) {
    while (!std::ranges::binary_search(state.channel().locals(), r) &&
           !state.memory().make_room_for(r)) {
    }
    Locked mailbox{state.memory().mailbox(r), state.memory().shape_of(r).bytes(), 0};
    const Result result = driver.host_register(mailbox.begin, mailbox.bytes,
                                               kHostRegisterPortable | kHostRegisterDeviceMap);
    if (result != kSuccess) {
      detach();
      throw Error(what_ + ": " + std::to_string(mailbox.bytes >> 20) +
                  " MB of the host's memory cannot be page-locked for " + gpu_->describe() + ": " +
                  describe(result) + "; raise the limit (ulimit -l), or make the vector smaller");
    }
    locked_.push_back(mailbox);
    check(driver.host_device_pointer(&locked_.back().device, mailbox.begin, 0),
          what_ + ": mapping the host's memory into " + gpu_->describe());
  }
}

void HostSlots::detach() noexcept {
  if (locked_.empty()) return;
  gpu_->if_usable([this](const Driver& driver) {
    for (const Locked& mailbox : locked_) driver.host_unregister(mailbox.begin);
  });
  locked_.clear();
}

const HostSlots::Locked* HostSlots::locked_at(const std::byte* address) const noexcept {
  const auto at = std::ranges::find_if(locked_, [&](const Locked& mailbox) {
    return address >= mailbox.begin && address < mailbox.begin + mailbox.bytes;
  });
  return at == locked_.end() ? nullptr : &*at;
}

Address HostSlots::place(std::span<std::byte> room) {
  const Locked* const mailbox = locked_at(room.data());
  if (mailbox == nullptr) throw Error(what_ + ": the slot is not page-locked");
  return mailbox->device + static_cast<std::size_t>(room.data() - mailbox->begin);
}

Address HostSlots::find(const Update& update, Stream stream) {
  if (update.payload.size() != bytes_) {
    throw Error(what_ + ": rank " + std::to_string(update.rank) + " sent " +
                std::to_string(update.payload.size()) + " bytes where " + std::to_string(bytes_) +
                " belong; its memory is damaged");
  }
  const Locked* const mailbox = locked_at(update.payload.data());
  if (mailbox == nullptr) return upload(update.payload, stream);
  return mailbox->device + static_cast<std::size_t>(update.payload.data() - mailbox->begin);
}

std::vector<std::byte> HostSlots::copy_out(int, std::span<const std::byte> payload) {
  return {payload.begin(), payload.end()};
}

}  // namespace dstorm::device
