#include "dstorm/host/segment_memory.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "dstorm/errors.hpp"

namespace dstorm::host {

SegmentMemory::SegmentMemory(const SegmentShape& shape, std::string_view what)
    : shape_(shape),
      what_(what),
      ranks_(shape.mailbox.ranks()),
      mailboxes_(round_up(copy_words_at(static_cast<int>(ranks_)), kPage)),
      stride_(shape.mailbox.bytes() + round_up(shape.home_bytes, kPage) +
              round_up(shape.inbox_bytes, kPage)) {}

SegmentMemory SegmentMemory::create(const SegmentShape& shape, std::string_view what) {
  SegmentMemory made(shape, what);
  made.memory_ = Memory::create(made.size(), made.copies_at(0), what);
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
          memory_.data() + copies_at(sender), shape_.mailbox};
}

void SegmentMemory::reserve_copy(int sender, std::size_t copy) const {
  if (copy == 0) return;
  const std::size_t bytes = shape_.mailbox.bytes();
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

void SegmentMemory::reserve_for(int rank, bool is_local, std::string_view what) {
  memory_.reserve(mailbox_at(rank), shape_.mailbox.bytes(), what);
  if (is_local) {
    memory_.reserve(home_at(rank), shape_.home_bytes, what);
  } else {
    memory_.reserve(inbox_at(rank), shape_.inbox_bytes, what);
  }
}

}  // namespace dstorm::host
