// A job of two ranks on one host of which only rank 0 is real: what rank 1 writes into shared
// memory, the target does.
#pragma once

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "dstorm/group.hpp"
#include "dstorm/host/control.hpp"
#include "dstorm/host/roll_call.hpp"
#include "dstorm/host/wait.hpp"
#include "dstorm/membership/record.hpp"
#include "dstorm/segment/parts.hpp"
#include "target.hpp"

#if __has_include(<sanitizer/asan_interface.h>)
#include <sanitizer/asan_interface.h>  // its macros do nothing without AddressSanitizer
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) \
  (static_cast<void>(address), static_cast<void>(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) \
  (static_cast<void>(address), static_cast<void>(bytes))
#endif

namespace fuzz {

inline constexpr int kRanks = 2;
inline constexpr int kPeer = 1;

// Rank 1 says in every roll call what rank 0 says: that it is in the memory of rank 0, and well.
class Echo final : public dstorm::Bootstrap {
 public:
  int rank() const override { return 0; }
  int size() const override { return kRanks; }
  std::vector<dstorm::Bytes> allgather(std::span<const std::byte> mine,
                                       const dstorm::Deadline&) override {
    if (control_.data() == nullptr) map_control();
    return std::vector(kRanks, dstorm::Bytes(mine.begin(), mine.end()));
  }
  // The group's memory, mapped a second time.
  dstorm::host::Memory take_control() { return std::exchange(control_, dstorm::host::Memory()); }

 private:
  void map_control() {
    using dstorm::host::ControlHeader;
    using dstorm::host::Member;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      const int fd = std::stoi(entry.path().filename());
      std::error_code error;
      const std::size_t bytes = std::filesystem::file_size(entry.path(), error);
      if (error) continue;
      const bool is_other = is_refused([&] {  // by Memory, as not what it is taken for
        control_ = dstorm::host::Memory::open(getpid(), fd, bytes, "the group");
      });
      if (is_other) continue;
      control_.close_fd();
      return;
    }
  }

  dstorm::host::Memory control_;
};

class WildPeer {
 public:
  WildPeer() {
    Echo bootstrap;
    group_ =
        dstorm::Group::join(bootstrap, {.timeout = std::chrono::seconds(10), .transport = "shm"});
    control_ = bootstrap.take_control();
    require(control_.data() != nullptr, "the group's memory is found");
    echo_ = std::thread([this] { echo(); });
  }
  ~WildPeer() {
    is_over_.store(true);
    dstorm::rouse(member().bell);
    echo_.join();
  }
  WildPeer(const WildPeer&) = delete;
  WildPeer& operator=(const WildPeer&) = delete;

  const std::shared_ptr<dstorm::Group>& group() const { return group_; }
  dstorm::host::Member& member(int rank = kPeer) const {
    return reinterpret_cast<dstorm::host::Member*>(control_.data() +
                                                   sizeof(dstorm::host::ControlHeader))[rank];
  }
  // Rank 1 lives and takes part in whatever rank 0 does, without a word of its own.
  void agree() const {
    member().state = dstorm::host::State::kAlive;
    member().posted = member(0).posted.load();
    agrees_.store(true);
  }
  // Rank 1 lives and has posted this to every exchange there may ever be.
  void post(std::string_view what) const {
    agrees_.store(false);
    for (dstorm::host::Notice& notice : member().notices) {
      notice.bytes = 0;
      notice.what_bytes = static_cast<std::uint32_t>(what.size());
      std::memcpy(notice.what, what.data(), what.size());
    }
    member().state = dstorm::host::State::kAlive;
    member().posted = ~std::uint64_t{0};
  }

 private:
  void echo() {
    std::atomic<std::uint32_t> superseded{0};
    dstorm::Waiter waiter(member().bell, std::chrono::nanoseconds(0), superseded, [] {});
    const auto is_due = [this] {
      return is_over_.load() || (agrees_.load() && member().posted < member(0).posted);
    };
    for (;;) {
      if (!waiter.until(is_due, std::chrono::seconds(1))) continue;
      if (is_over_.load()) return;
      const std::uint64_t number = member(0).posted;
      const dstorm::host::Notice& theirs = member(0).notices[number % 2];
      dstorm::host::Notice& notice = member().notices[number % 2];
      notice.bytes = 0;
      notice.what_bytes = theirs.what_bytes;
      std::memcpy(notice.what, theirs.what, sizeof(notice.what));
      member().posted = number;
      dstorm::rouse(member(0).bell);
    }
  }

  std::shared_ptr<dstorm::Group> group_;
  dstorm::host::Memory control_;
  mutable std::atomic<bool> agrees_{false};
  std::atomic<bool> is_over_{false};
  std::thread echo_;
};

// The bytes of rank 1's mailbox. What is no payload behind its headers is poisoned:
// AddressSanitizer tells of a read beyond a slot as it would of one beyond a variable.
class WildMailbox {
 public:
  WildMailbox(const dstorm::Segment& segment, std::span<const std::byte> bytes)
      : base_(segment.parts().state.memory().mailbox(kPeer)),
        shape_(segment.parts().state.shape()) {
    const std::size_t size = std::min(bytes.size(), shape_.bytes());
    if (size > 0) std::memcpy(base_, bytes.data(), size);
    for (std::size_t slot = 0; slot < shape_.depth(); ++slot) {
      const std::size_t end = shape_.slot(slot) + sizeof(dstorm::SlotHeader) + shape_.slot_bytes();
      const std::size_t next = slot + 1 < shape_.depth() ? shape_.slot(slot + 1) : shape_.bytes();
      ASAN_POISON_MEMORY_REGION(base_ + end, next - end);
    }
  }
  ~WildMailbox() { ASAN_UNPOISON_MEMORY_REGION(base_, shape_.bytes()); }
  WildMailbox(const WildMailbox&) = delete;
  WildMailbox& operator=(const WildMailbox&) = delete;

  // Whether it is the payload of one of the slots, or part of it; or a copy, of an update put by.
  bool gave(std::span<const std::byte> payload) const {
    if (payload.size() > shape_.slot_bytes()) return false;
    if (payload.data() < base_ || payload.data() >= base_ + shape_.bytes()) return true;
    for (std::size_t slot = 0; slot < shape_.depth(); ++slot) {
      const std::byte* begin = base_ + shape_.slot(slot) + sizeof(dstorm::SlotHeader);
      if (payload.data() == begin) return true;
    }
    return false;
  }

 private:
  std::byte* base_;
  dstorm::MailboxShape shape_;
};

// How a gather is to wait: the time limit is over at once.
inline dstorm::GatherOptions gather_options(unsigned choice) {
  dstorm::GatherOptions options;
  options.timeout = std::chrono::nanoseconds(1);
  if (choice % 3 != 0) options.staleness = choice % 3 - 1;
  return options;
}

}  // namespace fuzz
