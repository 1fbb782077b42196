#include "dstorm/shm/segment_memory.hpp"

#include <cstring>

#include "dstorm/errors.hpp"

namespace dstorm::shm {

SegmentMemory::SegmentMemory(const SegmentShape& shape)
    : shape_(shape),
      ranks_(shape.mailbox.ranks()),
      mailboxes_(round_up((1 + ranks_ + kBoards * (ranks_ + 1)) * kLine, kPage)),
      stride_(shape.mailbox.bytes() + round_up(shape.home_bytes, kPage)) {}

SegmentMemory SegmentMemory::create(const SegmentShape& shape, std::string_view what) {
  SegmentMemory made(shape);
  made.memory_ = Memory::create(made.bytes(), what);
  made.memory_.reserve(0, made.mailboxes_, what);
  made.memory_.reserve(made.result_at(), made.bytes() - made.result_at(), what);
  const Token token = make_token();
  std::memcpy(made.memory_.data(), &token, sizeof(token));
  return made;
}

SegmentMemory SegmentMemory::open(const SegmentShape& shape, std::string_view what, pid_t maker,
                                  int fd, const Token& token) {
  SegmentMemory mapped(shape);
  mapped.memory_ = Memory::open(maker, fd, mapped.bytes(), what);
  if (mapped.token() != token) {
    throw ConfigError("the memory offered for " + std::string(what) + " by process " +
                      std::to_string(maker) + " is not what this rank mapped");
  }
  return mapped;
}

void SegmentMemory::reserve_for(int rank, bool with_home, std::string_view what) {
  const std::size_t bytes = with_home ? stride_ : shape_.mailbox.bytes();
  memory_.reserve(mailbox_at(rank), bytes, what);
}

}  // namespace dstorm::shm
