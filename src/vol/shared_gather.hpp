// A gather at staleness 0 whose fold the ranks of one host share out: each folds one part of the
// vector for all of them (dstorm/collective/shared_fold.hpp). The bits are those of a gather alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>

#include "dstorm/collective/shared_fold.hpp"
#include "dstorm/segment.hpp"
#include "vol/folding.hpp"

namespace vol {

// For the one thread that uses the vector.
class SharedGather {
 public:
  SharedGather(dstorm::Segment& segment, const Elements& elements, Folding& folding);

  // To be called in a gather, with the updates of all other ranks, as they lie in their slots.
  // Returns false, and has changed nothing, if the work is not worth sharing or if not all ranks
  // join in. When a rank does not join in, the others wait for it for a short time. After each such
  // failure they fold alone for a number of gathers, twice as many as after the last failure, and
  // then try again.
  bool fold(const Fold& fold, const dstorm::GatherOptions& options,
            std::span<const dstorm::Update> updates);

  // The segment has moved to another group.
  void reset() noexcept { alone_ = 0, next_alone_ = 1; }

 private:
  bool is_worth_it(const Fold& fold, const dstorm::GatherOptions& options, std::size_t ranks);
  bool fold_part(const Fold& fold, std::chrono::nanoseconds timeout,
                 std::span<const dstorm::Update> updates);
  void copy_result_in(const Fold& fold, const Folding::Operands& operands);

  dstorm::Segment& segment_;
  const Elements& elements_;
  Folding& folding_;
  dstorm::SharedFold shared_;
  std::uint64_t alone_ = 0;       // so many gathers are not shared, since one has failed
  std::uint64_t next_alone_ = 1;  // so many after the next failure
};

}  // namespace vol
