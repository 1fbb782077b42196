// One segment as it lies in the memory of a host: a header, a line per rank that says whether it
// has closed, the boards of the shared folds, words per rank that say who writes the copies of its
// mailbox, then per rank its mailbox, its home and its inbox, then one result, and room for
// more copies of the mailboxes of other hosts' ranks, which takes no memory until one is begun.
// Everything a rank writes much is on pages of its own.
#pragma once

#include <atomic>
#include <span>
#include <string>
#include <string_view>

#include "dstorm/host/memory.hpp"
#include "dstorm/slot/layout.hpp"

namespace dstorm::host {

// What a segment is made of, the same on every rank.
struct SegmentShape {
  MailboxShape mailbox;
  Policy policy;
  std::size_t home_bytes;       // per rank: memory of the rank's own that all of its host may read
  std::size_t result_bytes;     // once per host: room for a shared fold
  std::size_t inbox_bytes = 0;  // per rank: where its updates land from another host, by RDMA
  std::size_t copies = 1;       // of a remote sender's mailbox: as many as the host has ranks
};

class SegmentMemory {
 public:
  // The first makes it, the others map it, and each then backs its own part with pages. Throw
  // ConfigError.
  static SegmentMemory create(const SegmentShape& shape, std::string_view what);
  static SegmentMemory open(const SegmentShape& shape, std::string_view what, pid_t maker, int fd,
                            const Token& token);
  void reserve_for(int rank, bool is_local, std::string_view what);

  // For open(); once everyone has, the descriptor can go.
  int fd() const noexcept { return memory_.fd(); }
  const Token& token() const noexcept { return *reinterpret_cast<const Token*>(memory_.data()); }
  void close_fd() noexcept { memory_.close_fd(); }

  const SegmentShape& shape() const noexcept { return shape_; }
  // The mailbox of `sender` on this host: the sender's own memory, or the first copy of what has
  // arrived of it.
  std::byte* mailbox(int sender) const noexcept { return memory_.data() + mailbox_at(sender); }
  std::byte* home(int rank) const noexcept {
    return shape_.home_bytes == 0 ? nullptr : memory_.data() + home_at(rank);
  }
  // Has the pages of the rank's home at this address too, in place of what is mapped there. Throws
  // ConfigError.
  void show_home_at(std::byte* address, int rank) const;
  std::byte* result() const noexcept {
    return shape_.result_bytes == 0 ? nullptr : memory_.data() + result_at();
  }
  std::byte* inbox(int sender) const noexcept { return memory_.data() + inbox_at(sender); }
  // Of a sender on another host, all its copies here. Each but the first is used after it has been
  // reserved. Throws ConfigError if there is no memory for it.
  Copies copies(int sender) const noexcept;
  void reserve_copy(int sender, std::size_t copy) const;
  // One zeroed cache line per rank and purpose, shared by all ranks of this host.
  static constexpr int kBoards = 2;
  std::byte* board(int which, int line) const noexcept {
    return memory_.data() + board_at(which, line);
  }
  // This rank neither sends nor receives here any more.
  std::atomic<std::uint32_t>& closed(int rank) const noexcept {
    return *reinterpret_cast<std::atomic<std::uint32_t>*>(memory_.data() + closed_at(rank));
  }
  bool is_closed(int rank) const noexcept {
    return closed(rank).load(std::memory_order_acquire) != 0;
  }

 private:
  SegmentMemory(const SegmentShape& shape, std::string_view what);

  std::size_t closed_at(int rank) const { return (1 + static_cast<std::size_t>(rank)) * kLine; }
  std::size_t board_at(int which, int line) const {
    return (1 + ranks_ + static_cast<std::size_t>(which) * (ranks_ + 1) +
            static_cast<std::size_t>(line)) *
           kLine;
  }
  std::size_t copy_words_at(int rank) const {
    return (1 + ranks_ + kBoards * (ranks_ + 1)) * kLine +
           static_cast<std::size_t>(rank) * copy_words_bytes();
  }
  std::size_t copy_words_bytes() const {
    return round_up(CopyTable::words_for(shape_.copies) * sizeof(std::uint64_t), kLine);
  }
  std::size_t copies_at(int rank) const {
    return result_at() + round_up(shape_.result_bytes, kPage) +
           static_cast<std::size_t>(rank) * (shape_.copies - 1) * shape_.mailbox.bytes();
  }
  std::size_t mailbox_at(int rank) const {
    return mailboxes_ + static_cast<std::size_t>(rank) * stride_;
  }
  std::size_t inbox_at(int rank) const {
    return home_at(rank) + round_up(shape_.home_bytes, kPage);
  }
  std::size_t home_at(int rank) const { return mailbox_at(rank) + shape_.mailbox.bytes(); }
  std::size_t result_at() const { return mailboxes_ + ranks_ * stride_; }
  std::size_t size() const { return copies_at(static_cast<int>(ranks_)); }

  SegmentShape shape_;
  std::string what_;
  std::size_t ranks_, mailboxes_, stride_;
  Memory memory_;
};

}  // namespace dstorm::host
