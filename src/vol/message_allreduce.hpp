// A vector's allreduce by messages (dstorm/collective/allreduce.hpp), with the making of the
// mailboxes that it takes: that is collective, so any step of it may end on one rank alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dstorm/collective/allreduce.hpp"
#include "dstorm/segment.hpp"

namespace vol {

// Adds the bytes and waits of `more` to those of `stats`.
void add_traffic(dstorm::Stats& stats, const dstorm::Stats& more);

// For the one thread that uses the vector.
class MessageAllreduce {
 public:
  // `segment` is the vector's; `call` names the call in errors.
  MessageAllreduce(dstorm::Segment& segment, std::string call)
      : segment_(segment), call_(std::move(call)) {}

  // See dstorm::Allreduce::run. The first call makes the mailboxes, for vectors of `bytes`; so does
  // one for vectors of another length, and one after a rank has failed to make them.
  const std::vector<int>& run(dstorm::Operand& operand, std::size_t bytes,
                              const dstorm::Operation& operation, const dstorm::Deadline& deadline);

  dstorm::Stats stats() const;
  void shut() noexcept;
  // The segment has moved to another group, in which rejoining ranks know nothing of earlier calls.
  void reset();

 private:
  void make(std::size_t bytes, const dstorm::Deadline& deadline);
  void make_with_all(std::size_t bytes, const dstorm::Deadline& deadline);
  void meet(const dstorm::Deadline& deadline);
  void end_mailboxes();
  dstorm::Group& group() const { return segment_.group(); }

  dstorm::Segment& segment_;
  std::string call_;
  std::unique_ptr<dstorm::Allreduce> allreduce_;
  std::size_t bytes_ = 0;      // the length of the vectors that it takes
  bool is_made_anew_ = false;  // by a rank; this one still has allreduce_
  bool have_met_ = false;      // the ranks are here to make it
  bool lacks_it_ = false;      // though other ranks may have made it
  // This rank's calls since the last exchange of another call, this one included; and the last
  // exchange that was none of another call (A9 of dstorm/collective/allreduce.hpp).
  std::uint64_t calls_ = 0;
  std::uint64_t own_exchange_ = 0;
  dstorm::Stats stats_;  // without those of allreduce_
};

}  // namespace vol
