// The allreduce of a dense vector: in shared memory on one host, by messages between hosts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dstorm/collective/shared_fold.hpp"
#include "dstorm/segment.hpp"
#include "vol/folding.hpp"
#include "vol/message_allreduce.hpp"

namespace vol {

// For the one thread that uses the vector.
class DenseAllreduce {
 public:
  // `owns_memory`: the elements lie in the segment's memory, where the other ranks of the host read
  // them. `has_codec`: no slot holds the elements as they are.
  DenseAllreduce(dstorm::Segment& segment, const Elements& elements, Folding& folding,
                 bool owns_memory, bool has_codec);

  // See DenseVector::allreduce. Returns the ranks whose vectors have been folded, sorted, including
  // this rank; valid until the next call.
  const std::vector<int>& run(const Fold& fold, const dstorm::Deadline& deadline, bool last,
                              std::uint32_t call);

  dstorm::Stats stats() const;  // bytes and waits
  void shut() noexcept;
  // The segment has moved to another group, in which rejoining ranks know nothing of earlier
  // rounds.
  void reset();

 private:
  class MessageOperand;

  bool run_shared(const Fold& fold, const dstorm::Operation& operation,
                  const dstorm::Deadline& deadline);
  bool meet_and_fold(const Fold& fold, std::uint32_t operation, std::uint64_t place,
                     const dstorm::Deadline& deadline);
  void throw_if_failed(const dstorm::Operation& operation, const dstorm::Deadline& deadline) const;
  const std::vector<int>& take_missed(std::uint32_t operation);
  void find_inputs();
  void copy_result_in() const;
  void count_shared();

  dstorm::Segment& segment_;
  const Elements& elements_;
  Folding& folding_;
  bool owns_memory_;
  bool has_codec_;
  std::string call_;  // in errors
  dstorm::SharedFold shared_;
  Folding::Operands inputs_;  // each member's vector, on this host
  std::uint64_t round_ = 0;
  // A round that others have committed while an exception ended this rank's call. It is the result
  // of the next call, as in A8 and A9 of dstorm/collective/allreduce.hpp.
  struct Missed {
    std::uint32_t operation;
    std::uint64_t met;  // the last exchange before it
    std::vector<int> ranks;
    std::vector<std::byte> result;
  };
  std::optional<Missed> missed_;
  std::vector<int> ranks_;  // of the last one that was taken
  // Used between hosts, with a codec, and once a rank has been evicted.
  MessageAllreduce by_messages_;
  dstorm::Stats stats_;  // without those of by_messages_
};

}  // namespace vol
