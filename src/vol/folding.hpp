// The one place in which a dense vector is folded. A gather by this rank alone, a gather that the
// ranks of a host share out, an allreduce in shared memory and one by messages all call fold().
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "vol/apply_fold.hpp"
#include "vol/elements.hpp"
#include "vol/fold.hpp"

namespace vol {

// The folds that work element by element and without weights, and so can be shared out.
bool is_shareable(const Fold& fold);
// A number that is the same on two ranks if they use the same fold.
std::uint32_t operation_code(const Fold& fold);
// A call's number as a part (by ^) of the code that ranks compare. It differs between numbers that
// are close to one another, and is 0 in the lowest three bits and in the highest one.
constexpr std::uint32_t call_code(std::uint32_t number) {
  return number * 0x9E3779B1U & 0x7FFFFFF8U;  // Knuth's multiplicative hash
}

// For the one thread that uses the vector.
class Folding {
 public:
  explicit Folding(const Elements& elements) : elements_(elements) {}

  // The vectors to fold, in the order of the fold.
  struct Operands {
    // The address of each; null for this rank's elements.
    std::vector<const std::byte*> starts = {};
    std::size_t origin = 0;            // the byte of the vector that lies at `starts`
    std::vector<double> weights = {};  // for WEIGHTED, one each
  };
  // This rank's elements and the updates, in rank order, without weights. Valid until the next
  // call, which takes the same memory.
  Operands& operands_of(std::span<const dstorm::Update> updates, int own_rank);
  // The place of `own_rank` in that order.
  static std::size_t place_of(std::span<const dstorm::Update> updates, int own_rank);

  // Folds bytes `range` of all operands into `to`, whose first byte is also byte `origin` of the
  // vector. If `to` is null, folds into this rank's elements.
  void fold(const Fold& fold, const Operands& operands, Elements::Range range, std::byte* to);

  // Whether add_up() makes the fold of sums of some operands. A mean of integers, and folds of
  // halves, round once at the end, from sums that are wider than the elements.
  bool is_made_of_sums(const Fold& fold) const;
  // As fold(), of operands that may be sums. `total`: how many vectors they are made of, if those
  // are all; if it is 0, the result is a sum for a later add_up().
  void add_up(const Fold& fold, const Operands& operands, Elements::Range range, std::byte* to,
              std::size_t total);

 private:
  const Elements& elements_;
  Operands operands_;
  std::vector<const void*> inputs_;
};

}  // namespace vol
