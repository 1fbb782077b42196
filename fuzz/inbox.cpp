// A inbox as a peer's adapter may have left it.
//
// input: what to do (1 byte), then the area. A checksum keeps out all but the whole; so that what
// is behind it is reached, the target puts the right one where the input asks for that.
#include "dstorm/remote/verbs/inbox.hpp"

#include <array>
#include <memory>

#include "dstorm/slot/checksum.hpp"
#include "target.hpp"

namespace fuzz {
namespace {

using dstorm::SlotHeader;
using dstorm::verbs::Inbox;
using dstorm::verbs::InboxShape;

constexpr int kRanks = 3;  // 0 and 1 are here, 2 sends
constexpr int kSender = 2;
constexpr std::array kHere{0, 1};
constexpr std::size_t kSlotBytes = 40;
const dstorm::MailboxShape kMailbox(kRanks, 2, kSlotBytes);
const InboxShape kArea(kMailbox, kHere.size());

struct Memory {  // on the heap, for AddressSanitizer to guard its ends
  explicit Memory(std::size_t bytes)
      : data(static_cast<std::byte*>(std::aligned_alloc(dstorm::kPage, bytes)), &std::free) {
    std::fill_n(data.get(), bytes, std::byte{0});
  }
  std::unique_ptr<std::byte, void (*)(void*)> data;
};

// As the sender would have. Not where the header fits no slot.
void put_checksum(std::byte* slot) {
  SlotHeader header;
  std::memcpy(&header, slot, sizeof(header));
  if (header.payload_bytes > kSlotBytes) return;
  const auto payload = dstorm::round_up(static_cast<std::size_t>(header.payload_bytes), 8);
  const std::size_t covered = sizeof(header) + payload + kArea.trailer_bytes() - 8;
  std::memcpy(slot + covered - 16, &header.iteration, 8);
  const std::span<const std::byte> all(slot, covered);
  dstorm::Checksum of_tail;
  of_tail.add(all.subspan(sizeof(header) + payload).first(kArea.trailer_bytes() - 16));
  const std::uint64_t own = of_tail.value();
  std::memcpy(slot + covered - 8, &own, sizeof(own));
  dstorm::Checksum checksum;
  checksum.add(all.first(sizeof(header)));
  checksum.add(all.subspan(sizeof(header), payload));
  checksum.add(all.subspan(sizeof(header) + payload));
  const std::uint64_t value = checksum.value();
  std::memcpy(slot + covered, &value, sizeof(value));
}

}  // namespace

void run(Input input) {
  const auto what = input.take<std::uint8_t>();
  const Memory area(kArea.bytes());
  const Memory copy(kMailbox.bytes());
  const std::span<const std::byte> bytes = input.bytes(kArea.bytes());
  if (!bytes.empty()) std::memcpy(area.data.get(), bytes.data(), bytes.size());
  for (std::size_t slot = 0; slot < kArea.depth(); ++slot) {
    if ((what >> slot & 1) != 0) put_checksum(area.data.get() + kArea.slot(slot));
  }
  const Memory other_copy(kMailbox.bytes());
  std::array<std::atomic<std::uint64_t>, dstorm::CopyTable::words_for(kHere.size())> words{};
  const dstorm::Copies copies(dstorm::CopyTable(words), copy.data.get(), other_copy.data.get(),
                              kMailbox);
  const dstorm::Mailbox box = copies.box(0);
  const auto policy = (what & 4) != 0 ? dstorm::Policy::kQueue : dstorm::Policy::kLatest;
  const auto live = [&](int rank) {
    require(rank >= 0 && rank < kRanks, "only ranks of the job are asked for");
    return (what >> 4 >> rank & 1) == 0;
  };
  Inbox inbox(area.data.get(), kArea, copies, policy, kSender, kHere, 0);
  for (int i = 0; i < 2; ++i) {
    inbox.take_in(live, [&](int rank) { return !live(rank); }, [](std::size_t) {});
  }

  for (std::size_t slot = 0; slot < kMailbox.depth(); ++slot) {
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::uint64_t iteration = box.ticket(slot, rank).iteration;
      if (iteration == 0 || !live(rank)) continue;  // a dead rank's ticket may outlive the update
      const SlotHeader& header = box.header(slot);
      require(rank != kSender, "an update is for ranks of this host");
      require(header.sender == kSender, "an update is its sender's");
      require(header.iteration == iteration, "a ticket is its update's");
      require(iteration <= dstorm::kMostIteration, "an iteration can be held");
      require(iteration <= box.clock(), "the clock is at every update");
      require(header.payload_bytes <= kSlotBytes, "a payload fits its slot");
    }
  }
}

}  // namespace fuzz
