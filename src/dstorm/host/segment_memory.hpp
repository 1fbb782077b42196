// One segment in the memory of a host. In this order: a header, which says whether something is
// lacking; a line per rank that says whether the rank has closed the segment, and for how much of
// its mailbox there is memory; the boards of the shared folds; words per rank that say which
// process writes which copy of its mailbox; for each rank its mailbox, its home and its inbox; one
// result; and room for more copies of the mailboxes of other hosts' ranks. The slots of a sender
// that sends nothing here, and a copy that is not begun, take no memory. Everything that a rank
// writes often is on pages of its own.
#pragma once

#include <algorithm>
#include <atomic>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dstorm/host/memory.hpp"
#include "dstorm/slot/layout.hpp"

namespace dstorm::host {

// The shape of a segment, the same on every rank.
struct SegmentShape {
  MailboxShape mailbox;
  Policy policy;
  std::size_t home_bytes;       // per rank: memory of its own that its host may read
  std::size_t result_bytes;     // once per host: room for a shared fold
  std::size_t inbox_bytes = 0;  // per rank: where other hosts' adapters write its updates
  std::size_t copies = 1;       // of a remote sender's mailbox: one for each rank of the host
  // In a job of several hosts, the ranks of this one: the receivers of remote senders' mailboxes.
  std::vector<int> locals = {};
};

class SegmentMemory {
 public:
  // The first rank creates the memory, and the others open it. Each rank then backs what is its own
  // with pages. All throw ConfigError; create() does if there is too little memory for the slots of
  // `mailboxes` mailboxes.
  static SegmentMemory create(const SegmentShape& shape, std::string_view what,
                              std::size_t mailboxes);
  static SegmentMemory open(const SegmentShape& shape, std::string_view what, pid_t maker, int fd,
                            const Token& token);
  void reserve_own(int rank, std::string_view what);
  // Of the mailbox of a sender on another host, the rank that creates the memory reserves either
  // all, and the inbox, or the words alone, where no update is expected. When one comes after all,
  // make_room_for() takes the memory for the slots, in which nothing is read or written before. It
  // returns false after a few milliseconds if there is more to do, as its caller has others to
  // serve. Any rank may call it, and go on where another has stopped. All throw ConfigError.
  void reserve(int sender, std::string_view what);
  void reserve_words(int sender, std::string_view what);
  bool make_room_for(int sender) const;
  // The bytes that a segment takes on a host: with so many ranks there, and senders elsewhere.
  static std::size_t needed(const SegmentShape& shape, std::size_t locals, std::size_t senders);
  // The bytes of memory that the segment has taken on this host, without further copies.
  std::size_t taken() const noexcept;
  // The sender for whose updates there was no memory when the first of them came; -1 if there is
  // none. The segment is of no more use then.
  int lacks_room_for() const noexcept {
    return static_cast<int>(lacking().load(std::memory_order_acquire)) - 1;
  }
  void note_lack(int sender) const noexcept {
    lacking().store(static_cast<std::uint32_t>(sender) + 1, std::memory_order_release);
  }

  // The descriptor by which others open() the memory. It can be closed once all have.
  int fd() const noexcept { return memory_.fd(); }
  const Token& token() const noexcept { return *reinterpret_cast<const Token*>(memory_.data()); }
  void close_fd() noexcept { memory_.close_fd(); }

  const SegmentShape& shape() const noexcept { return shape_; }
  // The mailbox of `sender` on this host: the sender's own memory, or the first copy of the mailbox
  // of a sender on another host. They have different shapes.
  Mailbox box(int sender) const noexcept { return {mailbox(sender), shape_of(sender)}; }
  const MailboxShape& shape_of(int sender) const noexcept {
    return is_copy(sender) ? copy_shape_ : shape_.mailbox;
  }
  std::byte* mailbox(int sender) const noexcept { return memory_.data() + mailbox_at(sender); }
  std::byte* home(int rank) const noexcept {
    return shape_.home_bytes == 0 ? nullptr : memory_.data() + home_at(rank);
  }
  // Maps the pages of the rank's home at `address` too, in place of the mapping that is there.
  // Throws ConfigError.
  void show_home_at(std::byte* address, int rank) const;
  std::byte* result() const noexcept {
    return shape_.result_bytes == 0 ? nullptr : memory_.data() + result_at();
  }
  std::byte* inbox(int sender) const noexcept { return memory_.data() + inbox_at(sender); }
  // All copies that this host has of the mailbox of a sender on another host. Every copy but the
  // first has to be reserved before use; reserve_copy() throws ConfigError if there is no memory
  // for it.
  Copies copies(int sender) const noexcept;
  void reserve_copy(int sender, std::size_t copy) const;
  // One zeroed cache line per rank and purpose, shared by all ranks of this host.
  static constexpr int kBoards = 2;
  std::byte* board(int which, int line) const noexcept {
    return memory_.data() + board_at(which, line);
  }
  // kClosed or kDropped when `rank` neither sends nor receives here any more. For one that has
  // dropped the segment, before its first call, the others go on to wait.
  static constexpr std::uint32_t kClosed = 1;
  static constexpr std::uint32_t kDropped = 2;
  std::atomic<std::uint32_t>& closed(int rank) const noexcept {
    return *reinterpret_cast<std::atomic<std::uint32_t>*>(memory_.data() + closed_at(rank));
  }
  bool is_closed(int rank) const noexcept {
    return closed(rank).load(std::memory_order_acquire) == kClosed;
  }
  bool has_gone(int rank) const noexcept {
    return closed(rank).load(std::memory_order_acquire) != 0;
  }

 private:
  SegmentMemory(const SegmentShape& shape, std::string_view what);

  std::atomic<std::uint32_t>& lacking() const noexcept {
    return *reinterpret_cast<std::atomic<std::uint32_t>*>(memory_.data() + sizeof(Token));
  }
  // The bytes of a sender's mailbox, from the first on, for which there is memory. A mailbox that
  // has all of its memory has that of its home or inbox too.
  std::atomic<std::uint64_t>& room_of(int sender) const noexcept {
    return *reinterpret_cast<std::atomic<std::uint64_t>*>(memory_.data() + closed_at(sender) + 8);
  }
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
           static_cast<std::size_t>(rank) * (shape_.copies - 1) * copy_shape_.bytes();
  }
  std::size_t mailbox_at(int rank) const {
    return mailboxes_ + static_cast<std::size_t>(rank) * stride_;
  }
  std::size_t inbox_at(int rank) const {
    return home_at(rank) + round_up(shape_.home_bytes, kPage);
  }
  std::size_t home_at(int rank) const { return mailbox_at(rank) + shape_.mailbox.bytes(); }
  // Of the copy of a mailbox, before its slots.
  std::size_t words_bytes() const { return round_up(copy_shape_.slot(0), kPage); }
  std::size_t result_at() const { return mailboxes_ + ranks_ * stride_; }
  std::size_t size() const { return copies_at(static_cast<int>(ranks_)); }

  bool is_copy(int sender) const noexcept {
    return !shape_.locals.empty() && !std::ranges::binary_search(shape_.locals, sender);
  }

  SegmentShape shape_;
  MailboxShape copy_shape_;  // of the mailboxes of other hosts' ranks
  std::string what_;
  std::size_t ranks_, mailboxes_, stride_;
  Memory memory_;
};

}  // namespace dstorm::host
