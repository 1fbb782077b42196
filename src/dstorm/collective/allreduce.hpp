// The fold of everybody's vectors on all ranks, by messages: between hosts, and wherever ranks cannot
// share a result (shared_fold.hpp). Reduce-scatter and all-gather (MLlib*, section 4.2; Thakur,
// Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005): a
// rank writes each other one its part of the vector, folds its own part of everybody's, and writes
// what comes of that to all: two vectors less two parts, however many ranks. This file is the protocol;
// what is folded is the caller's.
//
// A round is everybody's call of one number. It may take several attempts, which are known by their
// members: at first who is live, then without those who have been lost meanwhile. An attempt goes:
//   1  each member writes each other the part that is that one's to fold;
//   2  who has everybody's folds its part in rank order, and writes the result to all;
//   3  who has all parts of the result says so, "have all"; who has heard that of all members commits:
//      it writes its vector, and says so.
// Two members write each other whole vectors instead, fold them each by itself, and commit: there is
// nobody left to agree with. So do more of them with short vectors, but for step 3: as many bytes
// again cost less than waiting once more.
//
// Invariants. tests/cpp/collective/allreduce_test.cpp fails without any of them.
//  A1 A message bears its round and members, and a part counts only in an attempt of the same. So a
//     result is of the vectors of just its members in all its parts.
//  A2 In a round a rank's members only get fewer: by who has died, left, closed the vector or been left
//     out, of which it has read all that came before it goes on without it; and by whom another member
//     has lost in this way. Who has gone on to fewer no longer commits for the more by what it hears
//     of "have all".
//  A3 Who has said "have all" keeps the result until the round is over, or it says so of fewer members.
//  A4 A rank commits by hearing "have all" from every member, or if a member says that it has committed
//     the round: then it is for the members of whom this rank has last said "have all".
//     So no two ranks that stay in the job commit differently. Let i commit for M and j for fewer, M'.
//     If i is in M', j has heard "have all" for M' from i, which thus had gone on from M and never
//     commits for it (A2). If not, i was lost to a rank that goes on: if i left, its last words,
//     "committed", had come before (A2), and that rank commits for M too; if i died with these on their
//     way, its result has died with it. And if they reached a rank in M', that rank commits for M, and
//     j never hears "have all" for M' from it.
//  A5 Nobody's vector is written before its round is committed.
//  A6 A message's slot is written again only when all its receivers have released it (QUEUE, slot.hpp):
//     parts of vectors after the fold, parts of the result and what follows them when the attempt is
//     over, and all that is of no use any more at once. A rank reads the messages of
//     another in order, and none beyond the first of a later round or of fewer members. There are as many
//     slots as parts, or twice as many where whole vectors are exchanged, and two. That suffices for a rank in the next round while others are still
//     deciding on this one: they have released what they have folded, and hold its part of the
//     result, its "have all" and its "committed".
//  A7 A call that fails says so, and so do all others that have not committed by then.
//
// What cannot be promised: who gives up (its time limit, an interrupt) when its "have all" is under way
// may see its call fail while others commit. Two ranks cannot agree about a last message.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dstorm/collective/allreduce_message.hpp"
#include "dstorm/segment.hpp"
#include "dstorm/slot/layout.hpp"

namespace dstorm {

struct ByteRange {
  std::size_t begin, end;
};

// Part `part` of `parts` of a vector: cut at cache lines, as even as these are.
ByteRange part_of(std::size_t bytes, std::size_t part, std::size_t parts);

// A vector to be folded, and how. Ranges are in bytes of the vector.
class Operand {
 public:
  virtual ~Operand() = default;
  // [begin, end) of this rank's vector.
  virtual void copy_out(std::byte* to, ByteRange range) const = 0;
  // The fold of [begin, end) of all vectors into `to`, or into this rank's vector if that is null.
  // `inputs`: where the ranges begin, by rank; null for this rank's own.
  virtual void fold(std::byte* to, std::span<const std::byte* const> inputs, ByteRange range) = 0;
  // A part of the result.
  virtual void copy_in(const std::byte* from, ByteRange range) = 0;
};

// Must be the same on all ranks.
struct Operation {
  std::uint32_t code;
  std::string name;  // in errors
};
// What is wrong where the ranks make different ones at once.
std::string disagreement(const std::string& call, const Operation& own);

// Its threads: as a Segment's.
class Allreduce {
 public:
  // Collective, as a Segment is. `name` goes into errors; `kind` says what the vector is, and must be
  // the same on all ranks, as must `bytes`, above 0.
  Allreduce(std::shared_ptr<Group> group, std::string name, std::string kind, std::size_t bytes);

  // Collective: one round. Returns the ranks whose vectors have been folded, sorted, this one among
  // them; valid until the next. Throws TimeoutError naming who did not come within `limit`, in all, and
  // ConfigError on all ranks if their operations differ; the vector is then as it was.
  const std::vector<int>& run(Operand& operand, const Operation& operation,
                              std::chrono::nanoseconds limit);

  // bytes_out, bytes_in and wait_seconds; the others are 0.
  Stats stats() const;
  const Segment& segment() const noexcept { return segment_; }
  void shut() noexcept { segment_.shut(); }

 private:
  using Kind = AllreduceHead::Kind;
  struct Peer {  // what has been read of another rank
    SlotReader reader;
    std::uint64_t read = 0;        // its messages up to this iteration
    std::uint64_t inputs_end = 0;  // those up to this one are not needed once this rank has folded
    std::uint64_t committed = 0;
    bool has_parts = false;  // of this attempt
    bool has_come = false;   // to this round, or a later one
    bool is_beyond = false;
    bool has_all = false;
    bool gave_up = false;
  };
  struct Received {  // a message of another rank
    int rank;
    std::uint64_t iteration;
    AllreduceMessage message;
    const std::byte* part;
    std::size_t part_bytes;
  };

  void begin_round(std::uint32_t operation);
  void begin_attempt(const RankSet& members);
  void finish_round(Kind last_word);

  bool look();
  bool read(int rank);
  Received receive(int rank, int slot, std::uint64_t clock) const;
  bool take(const Received& received);
  void take_part(const Received& received);

  bool advance(Operand& operand);
  bool send_inputs(Operand& operand);
  bool fold_own_parts(Operand& operand);
  bool say_have_all();
  int claim();
  void publish(int slot, Kind kind, std::size_t part, std::size_t part_bytes,
               std::span<const int> to);
  void deliver();

  bool is_complete() const;
  bool commit(Operand& operand);
  void write_result(Operand& operand);
  void keep_result(Operand& operand);
  void throw_if_failed(const Operation& operation) const;
  std::vector<int> late() const;
  std::string lacks(const std::vector<int>& ranks) const;
  [[noreturn]] void throw_timeout() const;
  void release(int rank, std::uint64_t iteration);
  template <class Visit>
  void each_other(Visit&& visit) {
    for (int r : others_) visit(r, peer(r));
  }

  std::size_t owner(std::size_t part) const { return part % order_.size(); }  // place in order_
  bool is_whole() const { return !is_shared_out_ || order_.size() <= 2; }
  bool needs_agreement() const { return order_.size() > 2; }
  std::span<const std::byte*> inputs_of(std::size_t part) {
    return std::span(inputs_).subspan(part * order_.size(), order_.size());
  }
  ByteRange range_of(std::size_t part) const { return part_of(bytes_, part, parts_); }
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  const Peer& peer(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }

  std::string name_;
  std::size_t bytes_;
  bool is_shared_out_;  // among three members or more
  std::size_t parts_;
  std::size_t head_bytes_;
  Segment segment_;  // its mailboxes are read and written here alone
  Mailbox mailbox_;
  SlotWriter writer_;
  std::vector<Peer> peers_;  // by rank

  std::uint64_t iteration_ = 0;  // of this rank's last message
  std::uint64_t round_ = 0;
  std::uint64_t committed_ = 0;
  std::uint32_t operation_ = 0;
  bool disagreed_ = false;
  RankSet members_;                  // of the attempt
  RankSet rest_;                     // those of them that are not lost
  std::vector<int> order_, others_;  // members_, with and without this rank, sorted
  std::size_t own_ = 0;              // this rank's place in order_
  // Where parts lie, in slots: of vectors, by part and place of the member; and of the result.
  std::vector<const std::byte*> inputs_, results_;
  std::size_t missing_inputs_ = 0, missing_results_ = 0;
  std::size_t next_input_ = 0, next_own_ = 0;  // the parts to send next
  bool has_all_ = false;                       // this rank has said so
  bool needs_slot_ = false;
  std::vector<std::byte> kept_;        // A3: the result of an earlier attempt
  std::vector<int> kept_order_;        // whose vectors it is of; empty: none is kept
  std::vector<int> lost_;              // in look()
  bool is_undelivered_ = false;        // something that is published
  std::size_t undelivered_bytes_ = 0;  // of parts
  Stats stats_;
};

}  // namespace dstorm
