// The host of ranks 0 and 1 in a job of four, and a segment there; ranks 2 and 3 are elsewhere.
#pragma once

#include <sys/socket.h>

#include <array>
#include <memory>
#include <vector>

#include "dstorm/remote/downlink.hpp"
#include "dstorm/remote/uplink.hpp"
#include "target.hpp"
#include "tcp_ranks.hpp"

namespace fuzz {

inline constexpr int kRanks = 4;
inline constexpr int kSender = 2;
inline constexpr std::uint32_t kSegment = 1;
inline constexpr std::uint32_t kClosedSegment = 2;  // by every rank of the host
inline constexpr std::size_t kSlotBytes = 256;

class TcpHost {
 public:
  explicit TcpHost(dstorm::Policy policy)
      : shape_{dstorm::MailboxShape(kRanks, 2, kSlotBytes), policy, 0, 0, 0, 1, {0, 1}},
        controls_(kRanks) {
    testing_ranks::in_ranks(kRanks, [this](dstorm::Bootstrap& bootstrap) {
      const int rank = bootstrap.rank();
      controls_[static_cast<std::size_t>(rank)] = std::make_unique<dstorm::host::Control>(
          bootstrap, testing_ranks::sharing_of(rank), std::chrono::seconds(10));
    });
    attachments[kSegment] = std::make_shared<dstorm::remote::Attachment>(kSegment, make_memory());
  }

  dstorm::host::Control& control(int rank) const {
    return *controls_[static_cast<std::size_t>(rank)];
  }
  dstorm::host::Member& sender() const { return control(0).member(kSender); }
  const dstorm::host::SegmentMemory& memory() const { return *attachments.at(kSegment)->memory; }
  dstorm::Mailbox box(int rank) const { return memory().box(rank); }
  std::shared_ptr<dstorm::host::SegmentMemory> make_memory() const {
    auto made = std::make_shared<dstorm::host::SegmentMemory>(
        dstorm::host::SegmentMemory::create(shape_, "a segment", kRanks));
    for (int rank = 0; rank < kRanks; ++rank) made->reserve_own(rank, "a segment");
    return made;
  }

  // As if the sender had never said anything.
  void forget() const {
    std::memset(memory().mailbox(kSender), 0, memory().shape_of(kSender).bytes());
    for (auto& word : memory().copies(kSender).table().words()) word = 0;
    for (auto& word : control(0).board_table(kSender).words()) word = 0;
    for (const int rank : {0, 1}) new (&box(rank).cursor(kSender)) dstorm::Cursor{};
    memory().closed(kSender) = 0;
    sender().state = dstorm::host::State::kAlive;
    sender().link = sender().posted = 0;
  }
  // All in this host's memory that is none of the sender's business.
  std::vector<std::byte> of_others() const {
    std::vector<std::byte> all;
    for (const int rank : {0, 1, 3}) {
      const std::byte* mailbox = memory().mailbox(rank);
      const dstorm::MailboxShape& shape = memory().shape_of(rank);
      const std::size_t cursor = rank == 3 ? shape.bytes() : shape.cursor(kSender);
      all.insert(all.end(), mailbox, mailbox + cursor);
      if (rank != 3) {
        all.insert(all.end(), mailbox + cursor + sizeof(dstorm::Cursor), mailbox + shape.bytes());
      }
      const dstorm::host::Member& member = control(0).member(rank);
      for (const std::uint64_t word :
           {std::uint64_t{memory().closed(rank)}, static_cast<std::uint64_t>(member.state.load()),
            member.posted.load(), member.link.load()}) {
        const auto bytes = std::as_bytes(std::span(&word, 1));
        all.insert(all.end(), bytes.begin(), bytes.end());
      }
    }
    return all;
  }

  dstorm::remote::Attachments attachments;

 private:
  dstorm::host::SegmentShape shape_;
  std::vector<std::unique_ptr<dstorm::host::Control>> controls_;
};

inline dstorm::remote::Settings settings_at(const dstorm::net::Address& at) {
  return {.key = {},
          .own = at.with_port(0),
          .addresses = std::vector(kRanks, at),
          .tls = nullptr,
          .suspect_after = std::chrono::seconds(5),
          .adapter = nullptr,
          .by_adapter = std::vector(kRanks, false),
          .recorder = nullptr};
}

// Two ends of a connection without ports, of which there are not enough for so many.
struct Ends {
  Ends() {
    std::array<int, 2> made{};
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, made.data()) == 0,
            "a socket pair is made");
    here = dstorm::Descriptor(made[0]);
    there = dstorm::Descriptor(made[1]);
  }
  dstorm::Descriptor here, there;
};

inline void raw_send(const dstorm::Descriptor& to, std::span<const std::byte> bytes) {
  static_cast<void>(::send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
}

}  // namespace fuzz
