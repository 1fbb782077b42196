// What a peer sends to a sparse vector.
//
// input: element type, fold, what to do (1 byte each), then the mailbox
#include "vol/sparse.hpp"

#include <array>

#include "wild_peer.hpp"

namespace fuzz {
namespace {

constexpr std::size_t kDim = 12;
constexpr std::size_t kCapacity = 5;

template <class T>
void check(const vol::Sparse<T>& vector) {
  require(vector.indices().size() == vector.values().size(), "a value for each index");
  require(vector.indices().size() <= kCapacity, "no more than the capacity");
  vol::Index last = -1;
  for (const vol::Index index : vector.indices()) {
    require(index > last && index < static_cast<vol::Index>(kDim), "indices in order and range");
    last = index;
  }
}

template <class T>
void gather(const WildPeer& peer, Input input) {
  using vol::Fold;
  const std::array folds{Fold::avg(),     Fold::sum(),    Fold::weighted(),
                         Fold::replace(), Fold::median(), Fold::trimmed_mean(0.4)};
  const Fold& fold = folds[input.take<std::uint8_t>() % folds.size()];
  const auto what = input.take<std::uint8_t>();
  vol::VectorOptions options{.name = "w", .reject_nonfinite = (what & 1) != 0};
  if ((what & 2) != 0) options.policy = dstorm::Policy::kQueue;
  vol::Sparse<T> vector(peer.group(), kDim, kCapacity, options);
  vector.set(std::array<std::int64_t, 2>{1, 7}, std::array<T, 2>{T{3}, T{4}});
  vector.scatter();
  const WildMailbox mailbox(vector.segment(), input.rest());
  const bool is_damaged = is_refused([&] { vector.gather(fold, gather_options(what >> 2)); });
  require(!is_damaged || vector.indices().size() == 2, "an error changes nothing");
  check(vector);
}

}  // namespace

void run(Input input) {
  static const WildPeer peer;
  peer.agree();
  with_element(input, [&](auto zero) { gather<decltype(zero)>(peer, input); });
}

}  // namespace fuzz
