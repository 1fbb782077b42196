// What a peer writes to an allreduce by messages.
//
// input: how many rounds (1 byte), then the mailbox
#include "dstorm/collective/allreduce.hpp"

#include <memory>

#include "wild_peer.hpp"

namespace fuzz {
namespace {

using dstorm::ByteRange;

constexpr std::size_t kBytes = 160;

// Sums of bytes; on the heap, for AddressSanitizer to guard the ends.
class Bytes final : public dstorm::Operand {
 public:
  void copy_out(std::byte* to, ByteRange range) const override {
    std::memcpy(to, part(range), range.end - range.begin);
  }
  void fold(std::byte* to, std::span<const std::byte* const> inputs, ByteRange range) override {
    std::byte* const result = to == nullptr ? part(range) : to;
    for (std::size_t i = 0; i < range.end - range.begin; ++i) {
      unsigned sum = 0;
      for (const std::byte* input : inputs) {
        sum += static_cast<unsigned>((input == nullptr ? part(range) : input)[i]);
      }
      result[i] = static_cast<std::byte>(sum);
    }
  }
  void copy_in(const std::byte* from, ByteRange range) override {
    std::memcpy(part(range), from, range.end - range.begin);
  }

 private:
  std::byte* part(ByteRange range) const {
    require(range.begin < range.end && range.end <= kBytes, "a range lies in the vector");
    return values_.get() + range.begin;
  }

  std::unique_ptr<std::byte[]> values_{new std::byte[kBytes]()};
};

// Rounds in the input are numbered from 1 on; an Allreduce's, from the group's last exchange on.
void count_from_last_exchange(const dstorm::Segment& segment) {
  const dstorm::SegmentState& state = segment.parts().state;
  const dstorm::Mailbox mailbox(state.memory().mailbox(kPeer), state.shape());
  for (std::size_t slot = 0; slot < state.shape().depth(); ++slot) {
    dstorm::AllreduceHead head;
    std::memcpy(&head, mailbox.payload(slot), sizeof(head));
    head.round += segment.group().posted() << 32;
    std::memcpy(mailbox.payload(slot), &head, sizeof(head));
  }
}

}  // namespace

void run(Input input) {
  static const WildPeer peer;
  peer.agree();
  const unsigned rounds = input.take<std::uint8_t>() % 4;
  is_refused([&] {
    dstorm::Allreduce allreduce(peer.group(), "sum", "bytes", kBytes);
    const WildMailbox mailbox(allreduce.segment(), input.rest());
    count_from_last_exchange(allreduce.segment());
    Bytes vector;
    for (unsigned round = 0; round <= rounds; ++round) {
      is_refused([&] {
        const std::vector<int>& folded =
            allreduce.run(vector, {1, "sums of bytes"}, std::chrono::nanoseconds(1));
        require(folded.at(0) == 0, "this rank's is among the vectors folded");
      });
    }
  });
}

}  // namespace fuzz
