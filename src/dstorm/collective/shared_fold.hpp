// A shared fold: every rank folds one part of all vectors into a common result, and then all ranks
// read the whole result (reduce-scatter and all-gather, MLlib* section 4.2, in shared memory). This
// file is the protocol; the caller decides what is folded and where the inputs are.
//
// A round has four steps: meet (all live ranks have their input ready), fold (each rank its part),
// done, commit. It ends in the same way for all ranks, committed or aborted:
//  R1 An input does not change from meet() until the round has ended for its rank. (If a late rank
//     still folds inputs of a round that others have aborted, the result is dropped, by R3.)
//  R2 No vector is written before the round is committed. So an aborted round leaves every rank
//     with its old vector, and a committed one gives every rank the new one.
//  R3 Committed and aborted exclude each other: both are a compare-and-swap on one word. Only a
//     rank that has seen all parts done commits.
//  R4 The result is written only after all live ranks have met, and so have left the round before.
//  R5 An evicted rank may wake and write its part of an old round at any time. So once any rank has
//     been evicted, no round is begun, and a round that is in progress is aborted.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "dstorm/host/wait.hpp"
#include "dstorm/segment/state.hpp"

namespace dstorm {

class SharedFold {
 public:
  // The rounds on one board of a segment are of one kind. Each rank numbers them alike, upwards.
  SharedFold(SegmentState& state, int board) : state_(state), board_(board) {}

  // The number of this rank's next round, after that of its last one: one more. After an exchange
  // of the group all ranks go on from the same number, though one may have made fewer calls before
  // it (A9 of allreduce.hpp).
  std::uint64_t after(std::uint64_t last);

  // Announces this rank's input for `round` and waits for the other live ranks. `operation` must be
  // the same on all ranks; `input` is for the others to read. Returns false if the round is
  // aborted; if Group::has_left_out(), every later round will be too.
  bool meet(std::uint64_t round, std::uint64_t operation, std::uint64_t input,
            std::chrono::nanoseconds limit);

  // After meet(): the ranks that share this round, sorted; the index of this rank among them; their
  // inputs.
  const std::vector<int>& members() const { return members_; }
  std::size_t own_part() const { return own_part_; }
  std::uint64_t input(int member) const {
    return line(member).input.load(std::memory_order_relaxed);
  }

  // This rank has folded its part; waits for the parts of the others. Returns true if the round is
  // committed; the result can then be read until the next meet(). Returns false if it is aborted.
  bool finish(std::chrono::nanoseconds limit);

  // Why the last round was aborted: ranks that died in it (try again without them), or live ranks
  // that did not come in time, aborted it, or came with another operation.
  std::vector<int> dead() const;
  std::vector<int> late() const;
  std::vector<int> gave_up() const;      // not this rank
  std::vector<int> interrupted() const;  // those of them that did not wait for their time limit
  bool disagreed() const { return disagreed_; }
  // After an exception of finish(): others have committed the round all the same.
  bool is_committed() const;

 private:
  struct alignas(kLine) Line {         // one for each rank
    std::atomic<std::uint64_t> ready;  // the round it has met in
    std::atomic<std::uint64_t> done;   // the round in which its part is folded
    // The last round that it has aborted << 1; plus 1 if it did so before its time limit, because
    // it was interrupted.
    std::atomic<std::uint64_t> gave_up;
    // Of the last two rounds, by parity: a rank that is a round ahead still shows why the one
    // before was aborted.
    std::atomic<std::uint64_t> operation[2];
    std::atomic<std::uint64_t> input;
    // The number before its first round since the exchange `since`, its last one by then.
    std::atomic<std::uint64_t> base;
    std::atomic<std::uint64_t> since;
  };
  struct alignas(kLine) Outcome {     // one for all; see R3
    std::atomic<std::uint64_t> word;  // last committed round << 32 | last aborted, mod 2^32
  };
  enum class End : std::uint8_t { kOpen, kCommitted, kAborted };

  Line& line(int rank) const {
    return *reinterpret_cast<Line*>(state_.memory().board(board_, rank + 1));
  }
  Outcome& outcome() const { return *reinterpret_cast<Outcome*>(state_.memory().board(board_, 0)); }
  End ended(std::uint64_t word) const;
  bool end_as(End wish, bool is_interrupted = false);
  template <class Ready, class Missing>
  bool wait(Ready&& ready, std::chrono::nanoseconds limit, const Missing& missing);
  void announce();

  SegmentState& state_;
  int board_;
  std::uint64_t round_ = 0;
  bool disagreed_ = false;
  std::size_t own_part_ = 0;
  std::vector<int> members_;
};

}  // namespace dstorm
