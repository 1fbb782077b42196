#include "dstorm/host/segment_memory.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "dstorm/deadline.hpp"
#include "dstorm/errors.hpp"

namespace dstorm::host {
namespace {

// Of make_room_for(): how long a call may take, and the bytes between two looks at the clock.
constexpr std::chrono::milliseconds kRoomTime{5};
constexpr std::size_t kRoomPiece = 1 << 20;

MailboxShape copy_shape_of(const SegmentShape& shape) {
  const MailboxShape& own = shape.mailbox;
  const auto ranks = static_cast<int>(own.receivers().count());
  return {std::make_shared<const Receivers>(ranks, shape.locals), static_cast<int>(own.depth()),
          own.slot_bytes()};
}

}  // namespace

SegmentMemory::SegmentMemory(const SegmentShape& shape, std::string_view what)
    : shape_(shape),
      copy_shape_(shape.locals.empty() ? shape.mailbox : copy_shape_of(shape)),
      what_(what),
      ranks_(shape.mailbox.receivers().count()),
      mailboxes_(round_up(copy_words_at(static_cast<int>(ranks_)), kPage)),
      stride_(shape.mailbox.bytes() + round_up(shape.home_bytes, kPage) +
              round_up(shape.inbox_bytes, kPage)) {}

SegmentMemory SegmentMemory::create(const SegmentShape& shape, std::string_view what,
                                    std::size_t mailboxes) {
  SegmentMemory made(shape, what);
  const std::size_t used = made.mailboxes_ + mailboxes * made.stride_ + shape.result_bytes;
  made.memory_ = Memory::create(made.size(), used, what);
  made.memory_.reserve(0, made.mailboxes_, what);
  made.memory_.reserve(made.result_at(), shape.result_bytes, what);
  const Token token = make_token();
  std::memcpy(made.memory_.data(), &token, sizeof(token));
  return made;
}

SegmentMemory SegmentMemory::open(const SegmentShape& shape, std::string_view what, pid_t maker,
                                  int fd, const Token& token) {
  SegmentMemory mapped(shape, what);
  mapped.memory_ = Memory::open(maker, fd, mapped.size(), what);
  if (mapped.token() != token) {
    throw MemoryGone("the memory offered for " + std::string(what) + " by process " +
                     std::to_string(maker) + " is not what this rank mapped");
  }
  return mapped;
}

Copies SegmentMemory::copies(int sender) const noexcept {
  auto* words =
      reinterpret_cast<std::atomic<std::uint64_t>*>(memory_.data() + copy_words_at(sender));
  return {CopyTable({words, CopyTable::words_for(shape_.copies)}), mailbox(sender),
          memory_.data() + copies_at(sender), shape_of(sender)};
}

void SegmentMemory::reserve_copy(int sender, std::size_t copy) const {
  if (copy == 0) return;
  const std::size_t bytes = copy_shape_.bytes();
  memory_.populate(copies_at(sender) + (copy - 1) * bytes, bytes, "another copy of " + what_);
}

void SegmentMemory::show_home_at(std::byte* address, int rank) const {
  // With an old length of 0, mremap(2) maps shared memory a second time and keeps the first
  // mapping.
  const std::size_t bytes = round_up(shape_.home_bytes, kPage);
  if (mremap(home(rank), 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, address) == MAP_FAILED) {
    throw ConfigError("cannot map " + std::to_string(bytes) +
                      " bytes once more: " + std::strerror(errno) + "; raise vm.max_map_count");
  }
}

void SegmentMemory::reserve_own(int rank, std::string_view what) {
  memory_.reserve(mailbox_at(rank), shape_.mailbox.bytes(), what);
  memory_.reserve(home_at(rank), shape_.home_bytes, what);
  room_of(rank).store(shape_.mailbox.bytes());
}

void SegmentMemory::reserve_words(int sender, std::string_view what) {
  memory_.reserve(mailbox_at(sender), words_bytes(), what);
}

void SegmentMemory::reserve(int sender, std::string_view what) {
  memory_.reserve(mailbox_at(sender), copy_shape_.bytes(), what);
  memory_.reserve(inbox_at(sender), shape_.inbox_bytes, what);
  room_of(sender).store(copy_shape_.bytes());
}

std::size_t SegmentMemory::needed(const SegmentShape& shape, std::size_t locals,
                                  std::size_t senders) {
  const SegmentMemory plan(shape, "");
  return plan.mailboxes_ + round_up(shape.result_bytes, kPage) + locals * plan.stride_ +
         senders * (plan.copy_shape_.bytes() + round_up(shape.inbox_bytes, kPage)) +
         (plan.ranks_ - locals - senders) * plan.words_bytes();
}

std::size_t SegmentMemory::taken() const noexcept {
  std::size_t bytes = mailboxes_ + round_up(shape_.result_bytes, kPage);
  for (int r = 0; r < static_cast<int>(ranks_); ++r) {
    const std::size_t room = room_of(r).load(std::memory_order_relaxed);
    bytes += is_copy(r) ? std::max(room, words_bytes()) : room;
    if (room < shape_of(r).bytes()) continue;
    bytes += round_up(is_copy(r) ? shape_.inbox_bytes : shape_.home_bytes, kPage);
  }
  return bytes;
}

bool SegmentMemory::make_room_for(int sender) const {
  std::atomic<std::uint64_t>& made = room_of(sender);
  const std::uint64_t whole = copy_shape_.bytes();
  const auto end = Clock::now() + kRoomTime;
  for (std::uint64_t done; (done = made.load()) < whole;) {
    if (Clock::now() >= end) return false;
    const std::uint64_t piece = std::min<std::uint64_t>(kRoomPiece, whole - done);
    memory_.populate(mailbox_at(sender) + done, piece,
                     "the updates of rank " + std::to_string(sender) + " in " + what_,
                     whole - done);
    made.compare_exchange_strong(done, done + piece);
  }
  return true;
}

}  // namespace dstorm::host
