// Allreduce by messages: all ranks get the fold of all vectors. It is used between hosts, and
// wherever ranks cannot share a result (shared_fold.hpp). The method is reduce-scatter and
// all-gather (MLlib*, section 4.2; Thakur, Rabenseifner and Gropp, "Optimization of Collective
// Communication Operations in MPICH", 2005). Each rank writes each other rank that rank's part of
// its vector. It then folds its own part of all vectors, and writes the result of that to all.
// However many ranks there are, each writes two vectors less two parts. If the fold is made of
// sums, the ranks of a host add their vectors up there first. Then 2 (H-1) / H vectors leave each
// of H hosts. This file is the protocol; the caller decides what is folded.
//
// A round consists of the calls that all ranks number alike (A9). It may take several attempts. An
// attempt is identified by its members: at first all live ranks, later those that have not been
// lost meanwhile (A2). An attempt has three steps:
//   1  Each member writes each other member the part that the other is to fold. If vectors are
//      added up by host, a member writes each part to the member of its own host that collects it
//      (collectors.hpp). On the owner's host that is the owner. On another host the collector adds
//      up the part of all members there, once it has it from all, and writes the owner the sum.
//   2  A member that has its part of all vectors, or of those of its host and the sums of all other
//      hosts, folds it in rank order, and writes the result to all. A sum has the place of its
//      sender.
//   3  A member that has all parts of the result says "have all". A member that has heard "have
//      all" from all members commits: it writes its vector, and says "committed".
// Two members write each other whole vectors instead; each folds both by itself, and commits if the
// other has not given up, because there is no third rank to agree with. With short vectors more
// than two members write each other whole vectors too, since sending as many bytes again costs less
// than one more wait; but they still take step 3.
//
// Invariants. tests/cpp/collective/allreduce_test.cpp fails without any of them, and
// allreduce_hosts_test.cpp without what they say of sums.
//  A1 A message carries its round and the members of its attempt, and a part counts only in an
//     attempt with the same round and members. So all parts of a result are made of the vectors of
//     exactly its members. The members, their hosts, the length and the operation alone say which
//     member collects which part, and whether a part is a vector's or a sum; all members know these
//     alike, since a rank takes no part from a rank whose operation differs.
//  A2 During a round a rank's set of members only shrinks. It loses ranks that have died, left,
//     closed the vector or been evicted; the rank has read everything that arrived from such a rank
//     before it goes on without it. It also loses ranks that another member has lost in this way. A
//     rank that has gone on to fewer members no longer commits for the larger set on the "have all"
//     messages it hears.
//  A3 A rank that has said "have all" keeps the result until the round is over, or until it says
//     "have all" for fewer members.
//  A4 A rank commits when it has heard "have all" from every member, or when a member says that it
//     has committed the round; in the second case it commits for the members for which it has
//     itself last said "have all".
//     So no two ranks that stay in the job commit differently. Let i commit for M and j for fewer,
//     M'. If i is in M', then j has heard "have all" for M' from i. So i had gone on from M, and
//     never commits for it (A2). If i is not in M', a rank that goes on has lost i. If i left, its
//     last words, "committed", had arrived before (A2), and that rank commits for M too. If i died
//     while these words were on their way, its result died with it; and if they reached a rank in
//     M', that rank commits for M, and j never hears "have all" for M' from it.
//  A5 No vector is written before its round is committed.
//  A6 A message's slot is written again only when all its receivers have released it (QUEUE,
//     slot/layout.hpp). They release parts of vectors after the fold, and parts of the result and
//     the messages after them when the attempt is over. They release at once every message that is
//     of no use any more. A rank reads the messages of another in order, and none beyond the first
//     that belongs to a later round or to fewer members. There are as many slots as parts, or twice
//     as many where whole vectors are exchanged, plus three. That is enough for a rank in the next
//     round while others are still deciding on this one: they have released the parts they have
//     folded, and hold its part of the result, its "have all" and its "committed". It has sent
//     all parts but that of its result, and has a slot left to say that its call fails (A7).
//     Sums take no slots of their own: a member sends each part once in an attempt, as its vector's
//     or, if it collects the part, as the sum or the result. Nothing waits in a circle: a member
//     sends all parts of its vector before it sends a sum, and all its sums before it sends a
//     result; a sum waits only for parts of vectors, and a result only for these and for sums. So
//     what a rank releases after its folds also comes before any part of the result.
//  A7 A rank whose call fails says so, and the calls of all ranks that have not committed by then
//     fail too.
//  A8 A rank may give up (its time limit, an interrupt) when it has said "have all", or has written
//     all parts to the other one of two members. Others may then commit without it. So the round
//     stays open on this rank, with the vector that it gave and what it has received. Its next call
//     ends this round first. If others have committed it, that is the result of the next call.
//     Of two members, the one that has given up does not commit on the other's vector, which may
//     have come after word that it gave up. It commits if the other has been lost, or has
//     committed: a member marks its cursor with the last round that it has committed with one
//     other.
//  A9 A call that begins after an exchange of the group belongs to no round that was begun before
//     it: all ranks have ended those. So a round's number begins with that of the last exchange in
//     which all ranks have met, as far as its rank knows, and ranks of which one has made fewer
//     calls than another number alike again once they have met elsewhere. A rank that has given up
//     an exchange may learn only in its next call that the others have met there. If it learns that
//     from a message of theirs, which may overtake the word of the exchange, then the call after it
//     waits for that word. A round that is open (A8) ends there too. Each call has a number, also
//     one that fails because it could not end the open round, or before the memory for it was made
//     (skip()).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dstorm/collective/allreduce_message.hpp"
#include "dstorm/collective/byte_range.hpp"
#include "dstorm/collective/collectors.hpp"
#include "dstorm/host/wait.hpp"
#include "dstorm/segment.hpp"
#include "dstorm/segment/state.hpp"
#include "dstorm/slot/layout.hpp"

namespace dstorm {

// A vector to be folded, and the way to fold it. Ranges are in bytes of the vector.
class Operand {
 public:
  virtual ~Operand() = default;
  // Copies [begin, end) of this rank's vector to `to`.
  virtual void copy_out(std::byte* to, ByteRange range) const = 0;
  // Folds [begin, end) of all vectors into `to`, or into this rank's vector if `to` is null.
  // `inputs` has, by rank, the address at which the range begins; null for this rank's own.
  virtual void fold(std::byte* to, std::span<const std::byte* const> inputs, ByteRange range) = 0;
  // Whether the fold of all vectors can be made of sums of some of them, by add_up().
  virtual bool is_made_of_sums() const { return false; }
  // Adds up [begin, end) of vectors, and of sums of vectors, into `to`. `inputs` has an address for
  // each, as for fold(). If `total` is 0, the result is a sum for a later add_up(); otherwise it is
  // the fold of all vectors, which are so many.
  virtual void add_up(std::byte* /*to*/, std::span<const std::byte* const> /*inputs*/,
                      ByteRange /*range*/, std::size_t /*total*/) {}
  // Copies a part of the result into this rank's vector.
  virtual void copy_in(const std::byte* from, ByteRange range) = 0;
};

// Must be the same on all ranks.
struct Operation {
  std::uint32_t code;
  std::string name;  // in errors
};
// The error message for ranks that ask for different operations at once.
std::string disagreement(const std::string& call, const Operation& own);
// The error of a call that ranks did not come to within `limit`, or that ranks have given up. It
// names those that were late; but those of `gave_up` that were interrupted, if any: who had not
// come by then may not have been late.
TimeoutError lateness(const std::string& call, std::vector<int> late,
                      const std::vector<int>& gave_up, const std::vector<int>& interrupted,
                      std::chrono::nanoseconds limit);

// Threads: as for a Segment.
class Allreduce {
 public:
  // Collective, as the constructor of a Segment is. `name` appears in errors. `kind` describes the
  // vector; it must be the same on all ranks, and so must `bytes`, which is above 0.
  Allreduce(std::shared_ptr<Group> group, std::string name, std::string kind, std::size_t bytes);

  // Collective, blocking: one round. Returns the ranks whose vectors have been folded, sorted,
  // including this one; valid until the next call. Throws TimeoutError naming the ranks that did
  // not come by the deadline, which is the whole call's, and ConfigError on all ranks if their
  // operations differ. After an exception the vector is unchanged, and the next call goes on with
  // this one if others have ended it (A8). BegunAnew: a rank has failed to make its Allreduce, so
  // that nobody can have ended a round; all make another one.
  const std::vector<int>& run(Operand& operand, const Operation& operation,
                              const Deadline& deadline);

  // How many calls this rank has made since its numbers last began anew (A9), the last one
  // included. skip(): it has made so many before it had this object. The calls of ranks that are
  // behind then fail, as those of a round that this rank has given up (A7).
  std::uint64_t calls() const { return number_ - (number_ >> 32 << 32); }
  void skip(std::uint64_t calls) { number_ = last_before() + calls; }

  // bytes_out, bytes_in, wait_seconds and memory_bytes; the other counters are 0.
  Stats stats() const;
  const Segment& segment() const noexcept { return segment_; }
  // The call by which ranks make it, as Group::exchange knows it.
  const std::string& making() const noexcept { return making_; }
  void shut() noexcept { segment_.shut(); }

 private:
  using Kind = AllreduceHead::Kind;
  struct Peer {  // state read of another rank
    SlotReader reader;
    std::uint64_t read = 0;        // its messages up to this iteration
    std::uint64_t inputs_end = 0;  // those up to this one can go once this rank has folded
    std::uint64_t committed = 0;
    std::uint64_t beyond = 0;  // the last round of it that was later than this rank's
    std::uint64_t came = 0;    // the last round to which it is known to have come
    bool has_parts = false;    // of this attempt
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

  void catch_up(const Deadline& deadline);
  void begin_round(const Operand& operand, std::uint32_t operation);
  void begin_attempt(const RankSet& members);
  void share_out();
  void end_round(Operand& operand, const Operation& operation, const Deadline& deadline);
  void finish_round(Kind last_word);
  bool end_open_round(Operand& operand, const Operation& operation, const Deadline& deadline);
  bool may_be_committed() const;

  bool look();
  bool read(int rank);
  Received receive(int rank, int slot, std::uint64_t clock) const;
  bool take(const Received& received);
  void take_part(const Received& received);

  bool advance(Operand& operand);
  bool send_inputs(Operand& operand);
  bool fold_parts(Operand& operand);
  void fold_part(Operand& operand, std::size_t part, std::byte* to);
  bool say_have_all();
  bool say_gave_up();
  int claim();
  void publish(int slot, Kind kind, std::size_t part, std::size_t part_bytes,
               std::span<const int> to);
  void deliver();

  bool is_complete() const;
  bool commit(Operand& operand);
  void write_result(Operand& operand);
  void keep_result(Operand& operand);
  bool has_failed() const;
  std::uint64_t last_before() const { return state_.group().met() << 32; }  // A9
  bool is_beyond(const Peer& one) const { return one.beyond > round_; }
  bool gave_up(int rank) const { return peer(rank).gave_up || is_beyond(peer(rank)); }
  std::vector<int> late() const;
  std::string lacks(const std::vector<int>& ranks) const;
  [[noreturn]] void throw_timeout(std::chrono::nanoseconds limit) const;
  void release(int rank, std::uint64_t iteration);
  template <class Visit>
  void each_other(Visit&& visit) {
    for (int r : others_) visit(r, peer(r));
  }

  bool has_come(int rank) const { return peer(rank).came >= round_; }
  std::size_t owner(std::size_t part) const { return collectors_.owner(part); }  // index in order_
  bool is_collected_here(std::size_t part) const { return collectors_.of(part, own_) == own_; }
  bool is_whole() const { return !is_shared_out_ || order_.size() <= 2; }
  bool needs_agreement() const { return order_.size() > 2; }
  bool has_agreed() const;
  bool has_marked(int rank) const { return writer_.mark_of(rank) >= round_; }
  std::span<const std::byte*> inputs_of(std::size_t part) {
    return std::span(inputs_).subspan(part * order_.size(), order_.size());
  }
  ByteRange range_of(std::size_t part) const { return part_range(bytes_, part, parts_); }
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  const Peer& peer(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }

  std::string name_;
  std::size_t bytes_;
  bool is_shared_out_;  // among three members or more
  std::size_t parts_;
  std::size_t head_bytes_;
  Segment segment_;  // only this class reads and writes its mailboxes
  std::string making_;
  SegmentState& state_;
  Mailbox mailbox_;
  SlotWriter writer_;
  std::vector<Peer> peers_;  // by rank

  std::uint64_t iteration_ = 0;  // of this rank's last message
  std::uint64_t round_ = 0;
  std::uint64_t number_ = 0;  // of this call, if it does not end an open round
  std::uint64_t committed_ = 0;
  std::uint32_t operation_ = 0;
  bool disagreed_ = false;
  RankSet members_;                  // of the attempt
  RankSet rest_;                     // those of them that are not lost
  std::vector<int> order_, others_;  // members_, with and without this rank, sorted
  std::size_t own_ = 0;              // index of this rank in order_
  bool may_add_ = false;             // this round: Operand::is_made_of_sums()
  Collectors collectors_{1, 0};      // of the attempt
  // Addresses of parts in slots: of vectors, by part and index of the member; and of the result.
  std::vector<const std::byte*> inputs_, results_;
  std::vector<std::size_t> missing_;  // by part: of the inputs that are due here
  std::size_t missing_inputs_ = 0, missing_results_ = 0;  // of all parts
  // The parts to fold here, in this order: those to be sent on as sums (A6), then this rank's own.
  std::vector<std::size_t> to_fold_;
  std::vector<const std::byte*> summands_;      // used in fold_part()
  std::size_t next_input_ = 0, next_fold_ = 0;  // the part to send, and the index in to_fold_
  bool has_all_ = false;                        // this rank has said so
  bool needs_slot_ = false;
  std::vector<std::byte> kept_;        // A3: the result of an earlier attempt, or as A8 has it
  std::vector<int> kept_order_;        // the ranks whose vectors it is of; empty: none is kept
  bool is_open_ = false;               // A8: the last call has left its round
  bool has_given_up_ = false;          // A8: an earlier call has left this round
  std::uint64_t said_gave_up_ = 0;     // the last round of which this rank has said so
  int interrupted_ = -1;               // the rank whose interrupt is known to have ended the round
  std::vector<std::byte> given_;       // the vector of the open round
  std::vector<int> ended_;             // used in look()
  bool is_undelivered_ = false;        // something has been published and not been sent
  std::size_t undelivered_bytes_ = 0;  // of parts
  Stats stats_;
};

}  // namespace dstorm
