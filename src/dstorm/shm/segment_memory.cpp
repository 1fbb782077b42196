#include "dstorm/shm/segment_memory.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "dstorm/errors.hpp"

namespace dstorm::shm {

SegmentMemory::SegmentMemory(const SegmentShape& shape)
    : shape_(shape),
      ranks_(shape.mailbox.ranks()),
      mailboxes_(round_up((1 + ranks_ + kBoards * (ranks_ + 1)) * kLine, kPage)),
      stride_(shape.mailbox.bytes() + round_up(shape.home_bytes, kPage) +
              round_up(shape.landing_bytes, kPage)) {}

SegmentMemory SegmentMemory::create(const SegmentShape& shape, std::string_view what) {
  SegmentMemory made(shape);
  made.memory_ = Memory::create(made.size(), what);
  made.memory_.reserve(0, made.mailboxes_, what);
  made.memory_.reserve(made.result_at(), made.size() - made.result_at(), what);
  const Token token = make_token();
  std::memcpy(made.memory_.data(), &token, sizeof(token));
  return made;
}

SegmentMemory SegmentMemory::open(const SegmentShape& shape, std::string_view what, pid_t maker,
                                  int fd, const Token& token) {
  SegmentMemory mapped(shape);
  mapped.memory_ = Memory::open(maker, fd, mapped.size(), what);
  if (mapped.token() != token) {
    throw ConfigError("the memory offered for " + std::string(what) + " by process " +
                      std::to_string(maker) + " is not what this rank mapped");
  }
  return mapped;
}

void SegmentMemory::show_home_at(std::byte* address, int rank) const {
  // Of shared memory, nothing is moved away from a range of length 0 (mremap(2)).
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
    memory_.reserve(landing_at(rank), shape_.landing_bytes, what);
  }
}

}  // namespace dstorm::shm
