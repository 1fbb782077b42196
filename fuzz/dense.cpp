// What a peer sends to a dense vector, and offers to an allreduce.
//
// input: element type, fold and codec, what to do (1 byte each), then for allreduce the peer's line
// of the board and the one in common, then the mailbox
#include "vol/dense.hpp"

#include <array>

#include "wild_peer.hpp"

namespace fuzz {
namespace {

constexpr std::size_t kCount = 20;  // of which each rank folds some in an allreduce

struct Choice {
  vol::Fold fold;
  vol::Codec codec;
};

Choice choose(unsigned choice) {
  using vol::Codec;
  using vol::Fold;
  const std::array folds{Fold::avg(),     Fold::sum(),    Fold::weighted(),
                         Fold::replace(), Fold::median(), Fold::trimmed_mean(0.4)};
  const std::array codecs{Codec(), Codec::float16(), Codec::bfloat16(), Codec::int8(),
                          Codec::top_k(0.3)};
  return {folds[choice % folds.size()], codecs[choice / folds.size() % codecs.size()]};
}

template <class T>
void gather(const WildPeer& peer, Input input) {
  const auto [fold, codec] = choose(input.take<std::uint8_t>());
  const auto what = input.take<std::uint8_t>();
  const auto line = input.bytes(dstorm::kLine);
  const auto outcome = input.bytes(dstorm::kLine);
  // On the heap, for AddressSanitizer to guard the ends.
  std::vector<T> values(kCount, T{3});
  vol::VectorOptions options{.name = "w", .reject_nonfinite = (what & 1) != 0, .codec = codec};
  if ((what & 2) != 0) options.policy = dstorm::Policy::kQueue;
  vol::Dense<T> vector(peer.group(), options, std::span(values));
  vector.scatter();
  const WildMailbox mailbox(vector.segment(), input.rest());
  const dstorm::GatherOptions waits = gather_options(what >> 2);
  const vol::Gathered& gathered = vector.gather(fold, waits);
  require(gathered.count == gathered.ranks.size(), "a rank for each update folded");
  if ((what & 0x80) == 0 || codec.kind() != vol::Codec::Kind::kNone) return;
  const dstorm::host::SegmentMemory& memory = vector.segment().parts().state.memory();
  if (!line.empty()) std::memcpy(memory.board(0, 1 + kPeer), line.data(), line.size());
  if (!outcome.empty()) std::memcpy(memory.board(0, 0), outcome.data(), outcome.size());
  vector.allreduce(fold, waits.timeout);
}

}  // namespace

void run(Input input) {
  static const WildPeer peer;
  peer.agree();
  is_refused([&] { with_element(input, [&](auto zero) { gather<decltype(zero)>(peer, input); }); });
}

}  // namespace fuzz
