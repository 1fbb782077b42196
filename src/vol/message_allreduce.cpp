#include "vol/message_allreduce.hpp"

#include "dstorm/errors.hpp"

namespace vol {

void add_traffic(dstorm::Stats& stats, const dstorm::Stats& more) {
  stats.bytes_out += more.bytes_out;
  stats.bytes_in += more.bytes_in;
  stats.wait_seconds += more.wait_seconds;
  stats.memory_bytes += more.memory_bytes;
}

const std::vector<int>& MessageAllreduce::run(dstorm::Operand& operand, std::size_t bytes,
                                              const dstorm::Operation& operation,
                                              const dstorm::Deadline& deadline) {
  if (allreduce_ != nullptr && bytes_ != bytes) {  // DenseVector::move_to
    end_mailboxes();
    have_met_ = false;
  }
  if (const std::uint64_t met = group().met(); met > own_exchange_) {
    own_exchange_ = met;
    calls_ = 0;
    have_met_ = false;
  }
  ++calls_;
  for (;;) {
    try {
      if (is_made_anew_ || allreduce_ == nullptr) make(bytes, deadline);
      const std::vector<int>& ranks = allreduce_->run(operand, operation, deadline);
      calls_ = allreduce_->calls();  // fewer by one if this call has ended an earlier one
      return ranks;
    } catch (const dstorm::BegunAnew&) {
      is_made_anew_ = allreduce_ != nullptr;
    }
  }
}

// A call that an exception ends here has been given up on this rank, as one in a round. The next
// one goes on where it has ended, as the others may wait there; but if all ranks have met in
// another call since, they begin anew.
void MessageAllreduce::make(std::size_t bytes, const dstorm::Deadline& deadline) {
  const std::uint64_t posted = group().posted();
  const auto note_exchanges = [&] {
    if (group().posted() > posted) own_exchange_ = group().posted();
  };
  try {
    make_with_all(bytes, deadline);
  } catch (const dstorm::BegunAnew&) {
    note_exchanges();
    throw;
  } catch (const dstorm::OtherCalls& error) {
    note_exchanges();
    if (!have_met_ && allreduce_ == nullptr) throw;
    have_met_ = false;  // these ranks have given this call up, and are in another one
    throw dstorm::lateness(call_, {}, error.ranks(), {}, deadline.limit());
  } catch (...) {
    note_exchanges();
    lacks_it_ = lacks_it_ || have_met_;
    group().abandon(call_);
    throw;
  }
  note_exchanges();
  allreduce_->skip(calls_ - 1);
  bytes_ = bytes;
  have_met_ = lacks_it_ = false;
}

void MessageAllreduce::make_with_all(std::size_t bytes, const dstorm::Deadline& deadline) {
  try {
    if (!have_met_) meet(deadline);
    end_mailboxes();
    const dstorm::Group::Within within(group(), deadline);
    allreduce_ = std::make_unique<dstorm::Allreduce>(group().shared_from_this(), call_,
                                                     segment_.options().kind, bytes);
  } catch (const dstorm::PeerError& error) {  // one that made it has died; the others are alike
    group().check_standing();                 // or this one was evicted
    throw dstorm::BegunAnew(error.what());
  }
}

// If ranks are late, this fails within the limit and names them. No rank ends the mailboxes that
// are to be made anew before all live ones are out of its rounds: to the others it would have
// closed the vector, and they would go on without it. If this rank has none, because making them
// has failed here, it tells those that may have them (Group::is_begun_anew).
void MessageAllreduce::meet(const dstorm::Deadline& deadline) {
  const bool is_anew = is_made_anew_ || lacks_it_;
  try {
    group().exchange(call_ + ", step 0" + (is_anew ? " again" : ""), {}, deadline);
  } catch (const dstorm::BegunAnew&) {
    have_met_ = true;  // others have met before, and are at a later step
    return;
  }
  have_met_ = true;
}

dstorm::Stats MessageAllreduce::stats() const {
  dstorm::Stats stats = stats_;
  if (allreduce_ != nullptr) add_traffic(stats, allreduce_->stats());
  return stats;
}

void MessageAllreduce::shut() noexcept {
  if (allreduce_ != nullptr) allreduce_->shut();
  group().abandon(call_);
}

void MessageAllreduce::reset() {
  end_mailboxes();
  have_met_ = lacks_it_ = false;
  calls_ = own_exchange_ = 0;
}

void MessageAllreduce::end_mailboxes() {
  stats_ = stats();
  allreduce_.reset();
  is_made_anew_ = false;
}

}  // namespace vol
