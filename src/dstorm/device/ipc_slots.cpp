#include "dstorm/device/ipc_slots.hpp"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

#include "dstorm/device/posts.hpp"
#include "dstorm/errors.hpp"
#include "dstorm/host/descriptor.hpp"
#include "dstorm/segment/parts.hpp"

namespace dstorm::device {
namespace {

constexpr std::size_t kAlignment = 256;  // of a payload: the GPU reads 16 bytes at a time

// The content of a slot of the segment.
struct Place {
  std::uint64_t offset;  // in the sender's memory
  std::uint64_t bytes;
};

// The record that each rank posts.
struct Offer {
  bool has_come = false;
  IpcHandle memory{};
  char error[512] = {};
};

constexpr int kSaid = 0;  // the board in the segment's memory for P2

// P3.
class Retired {
 public:
  struct User {
    std::atomic<std::uint32_t>* has_ended_mappings;
    Descriptor pidfd;
  };
  struct Slots {
    Memory memory;
    std::shared_ptr<const host::SegmentMemory> shared;  // has the words of the users
    std::vector<User> users;
  };

  static Retired& get() {
    static auto& kept = *new Retired;  // for as long as the process lives
    return kept;
  }
  void add(Slots slots) {
    const std::lock_guard lock(mutex_);
    slots_.push_back(std::move(slots));
    erase_free();
  }
  void sweep() {
    const std::lock_guard lock(mutex_);
    erase_free();
  }

 private:
  static bool is_used(const User& user) {
    if (user.has_ended_mappings->load(std::memory_order_acquire) != 0) return false;
    pollfd ended{user.pidfd.get(), POLLIN, 0};
    return poll(&ended, 1, 0) < 1;
  }
  void erase_free() {
    std::erase_if(slots_,
                  [](const Slots& slots) { return std::ranges::none_of(slots.users, is_used); });
  }

  std::mutex mutex_;
  std::vector<Slots> slots_;
};

}  // namespace

IpcSlots::IpcSlots(std::shared_ptr<Gpu> gpu, std::size_t bytes, int depth, std::string what)
    : Slots(std::move(gpu), bytes, depth, std::move(what)), stride_(round_up(bytes, kAlignment)) {}

// To be destroyed before the segment.
IpcSlots::~IpcSlots() {
  for (const auto& [rank, mapped] : mapped_) unmap(mapped.at);
  retire();
}

// P2, P3.
void IpcSlots::retire() noexcept {
  if (segment_ == nullptr || segment_->group().is_forked()) return;
  const SegmentState& state = segment_->parts().state;
  const int own = state.group().rank();
  const auto said = [&](int rank) {
    return reinterpret_cast<std::atomic<std::uint32_t>*>(state.memory().board(kSaid, rank));
  };
  said(own)->store(1, std::memory_order_release);
  if (own_.bytes() == 0) return;
  Retired::Slots slots{std::move(own_), state.share_memory(), {}};
  for (const int r : state.channel().locals()) {
    if (r == own) continue;
    slots.users.push_back(
        {said(r), Descriptor(fcntl(state.channel().pidfd(r), F_DUPFD_CLOEXEC, 0))});
  }
  Retired::get().add(std::move(slots));
}

std::size_t IpcSlots::slot_bytes() const noexcept { return sizeof(Place); }

// P1.
void IpcSlots::attach(Segment& segment) {
  segment_ = &segment;
  const SegmentState& state = segment.parts().state;
  Group& group = segment.group();
  own_rooms_.clear();
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(depth_); ++slot) {
    own_rooms_.push_back(state.mailbox(group.rank()).payload(slot));
  }
  Offer mine;
  attempt(mine, [&] {
    reserve();
    mine.memory = handle_;
  });
  const auto offers = post_or_throw(group, what_ + ", memory of the GPUs", mine);
  Outcome mapped;
  attempt(mapped, [&] {
    for (std::size_t r = 0; r < offers.size(); ++r) {
      const int rank = static_cast<int>(r);
      if (!offers[r].has_come || rank == group.rank()) continue;
      try {
        map(rank, offers[r].memory);
      } catch (const Error&) {
        if (group.is_live(rank)) throw;  // one that has died by now will send nothing
      }
    }
  });
  post_or_throw(group, what_ + ", mapping it", mapped);
}

void IpcSlots::reserve() {
  if (own_.bytes() != 0) return;
  Retired::get().sweep();
  Memory memory(gpu_, size(), what_);
  const Gpu::Use use(*gpu_);
  check(Driver::get().ipc_get(&handle_, memory.at()), what_ + ": sharing memory of the GPU");
  own_ = std::move(memory);
}

Address IpcSlots::place(std::span<std::byte> room) {
  const auto slot = std::ranges::find(own_rooms_, room.data()) - own_rooms_.begin();
  if (slot == depth_) throw Error(what_ + ": the slot is none of this rank's");
  const Place place{static_cast<std::size_t>(slot) * stride_, bytes_};
  std::memcpy(room.data(), &place, sizeof(place));
  return own_.at() + place.offset;
}

Address IpcSlots::find(const Update& update, Stream stream) {
  // An update that has been copied out of its slot has its values, and not a Place.
  if (!update.is_stashed) return find(update.rank, update.payload);
  if (update.payload.size() == bytes_) return upload(update.payload, stream);
  throw Error(what_ + ": an update of rank " + std::to_string(update.rank) +
              " was copied out with " + std::to_string(update.payload.size()) + " bytes");
}

Address IpcSlots::find(int rank, std::span<const std::byte> payload) const {
  Place place;
  const auto mapped = mapped_.find(rank);
  if (payload.size() == sizeof(place) && mapped != mapped_.end()) {
    std::memcpy(&place, payload.data(), sizeof(place));  // copied, then checked
    if (place.bytes == bytes_ && place.offset % stride_ == 0 && place.offset < size()) {
      return mapped->second.at + place.offset;
    }
  }
  throw Error(what_ + ": rank " + std::to_string(rank) +
              " says that its update lies where it has no memory; its memory is damaged");
}

void IpcSlots::map(int rank, const IpcHandle& memory) {
  const auto known = mapped_.find(rank);
  if (known != mapped_.end()) {
    if (known->second.memory == memory) return;
    unmap(known->second.at);  // of a process that had this rank before
    mapped_.erase(known);
  }
  const Driver& driver = Driver::get();
  const Gpu::Use use(*gpu_);
  const std::string whose = "the memory of the GPU of rank " + std::to_string(rank);
  Mapped mapped{memory, 0};
  check(driver.ipc_open(&mapped.at, memory, kIpcLazyPeerAccess), what_ + ": mapping " + whose);
  Address base = 0;
  std::size_t bytes = 0;
  const Result result = driver.address_range(&base, &bytes, mapped.at);
  if (result != kSuccess || base != mapped.at || bytes < size()) {
    unmap(mapped.at);
    check(result, what_ + ": looking at " + whose);
    throw Error(what_ + ": " + whose + " has " + std::to_string(bytes) + " bytes, and not " +
                std::to_string(size()));
  }
  mapped_.emplace(rank, mapped);
}

void IpcSlots::unmap(Address at) noexcept {
  gpu_->if_usable([at](const Driver& driver) { driver.ipc_close(at); });
}

std::vector<std::byte> IpcSlots::copy_out(int rank, std::span<const std::byte> payload) {
  std::vector<std::byte> values(bytes_);
  const Address from = find(rank, payload);
  const Gpu::Use use(*gpu_);
  // Returns when it is done, as the vector's memory is not page-locked.
  check(Driver::get().copy_async(reinterpret_cast<Address>(values.data()), from, bytes_, nullptr),
        what_ + ": copying an update from the GPU");
  check(Driver::get().stream_synchronize(nullptr), what_ + ": copying an update from the GPU");
  return values;
}

}  // namespace dstorm::device
