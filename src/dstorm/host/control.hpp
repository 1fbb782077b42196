// The memory every rank of a host maps first: who is there, on this host and on others, and a board
// on which the ranks post bytes to one another when they make segments or meet at a barrier.
// Nothing on the data path but doorbells. What ranks of other hosts write in theirs is copied here.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dstorm/bootstrap.hpp"
#include "dstorm/group.hpp"
#include "dstorm/host/descriptor.hpp"
#include "dstorm/host/memory.hpp"
#include "dstorm/host/wait.hpp"
#include "dstorm/membership/record.hpp"
#include "dstorm/slot/copies.hpp"
#include "dstorm/slot/layout.hpp"

namespace dstorm::host {

enum class State : std::uint32_t {
  kAbsent = 0,
  kAlive = 1,
  kDead = 2,     // its process has ended
  kLeft = 3,     // it has said goodbye
  kEvicted = 4,  // the others go on without it, though its process may live
  kCutOff = 5,   // of a rank here: it found too few of the others, and stopped
};

struct Notice {  // one rank's post for one exchange
  std::uint32_t what_bytes;
  std::uint32_t bytes;
  char what[120];
  std::byte data[Group::kMostExchanged];
};

struct alignas(kLine) Board {
  std::atomic<std::uint64_t> posted;  // the number of the last exchange posted to
  alignas(kLine) Notice notices[2];   // by the exchange's parity
};

// One rank's share of the control memory, on cache lines of its own. The board is the rank's own, or
// the first copy of that of a rank of another host (copies.hpp).
struct alignas(kLine) Member : Board {
  Doorbell bell;
  alignas(kLine) std::atomic<State> state;
  // Of a rank of another host: the number of the connection by which its writes come here now, and
  // when that was last heard of (Clock, in nanoseconds).
  std::atomic<std::uint64_t> link;
  std::atomic<std::int64_t> heard;
};

struct alignas(kLine) ControlHeader {
  Token token;
  std::uint32_t size;
  std::atomic<std::uint32_t> epoch;
  std::atomic<std::uint32_t> superseded;  // 1: the ranks go over to another group
};

// Which ranks share memory, and so are "on one host" to MALT.
enum class Sharing : std::uint8_t {
  kPossible,  // those that can map one another's memory
  kAll,       // all, or it is an error
  kNone,      // each rank is a host of its own
};

class Control {
 public:
  // Collective, through the bootstrap.
  Control(Bootstrap& bootstrap, Sharing sharing, std::chrono::nanoseconds timeout);

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  int cores() const noexcept { return cores_; }  // that the ranks of this host may run on, together
  // The ranks that the group was made with, sorted. The others are dead, and of no host; is_local()
  // is true of them everywhere.
  const std::vector<int>& members() const noexcept { return members_; }
  bool is_member(int rank) const {
    return std::binary_search(members_.begin(), members_.end(), rank);
  }

  // The members of each host, sorted; hosts by their lowest rank.
  const std::vector<std::vector<int>>& hosts() const noexcept { return hosts_; }
  int host_of(int rank) const { return host_of_[static_cast<std::size_t>(rank)]; }
  int own_host() const { return host_of(rank_); }
  bool is_local(int rank) const { return host_of(rank) == own_host(); }
  // The members of this host; and those but this one.
  const std::vector<int>& locals() const { return hosts_[static_cast<std::size_t>(own_host())]; }
  const std::vector<int>& neighbours() const noexcept { return neighbours_; }

  // Of a rank of this host.
  pid_t pid(int rank) const { return pids_[static_cast<std::size_t>(rank)]; }
  // A descriptor that becomes readable when the rank's process ends; -1 for this rank.
  int pidfd(int rank) const { return pidfds_[static_cast<std::size_t>(rank)].get(); }

  State state(int rank) const noexcept {
    return member(rank).state.load(std::memory_order_acquire);
  }
  bool is_live(int rank) const noexcept { return state(rank) == State::kAlive; }
  // The others go on without it, though its process may live.
  bool is_left_out(int rank) const noexcept {
    const State known = state(rank);
    return known == State::kEvicted || known == State::kCutOff;
  }
  // Marks a live rank, or as dead one that was left out; false if that is not what it was. Any thread.
  bool mark(int rank, State state) noexcept;
  std::uint32_t epoch() const noexcept { return header().epoch.load(std::memory_order_acquire); }
  void raise_epoch(std::uint64_t epoch) noexcept;  // never back
  std::atomic<std::uint32_t>& superseded() const noexcept { return header().superseded; }
  // Where the rank stands in the membership, as far as this host has heard.
  const RecordFormat& record_format() const noexcept { return format_; }
  RecordFormat::Cell record(int rank) const noexcept;
  Doorbell& bell(int rank) noexcept { return member(rank).bell; }
  // Rings those of `ranks` that are on this host, after something they may be waiting for.
  void ring(std::span<const int> ranks) noexcept;
  Member& member(int rank) const noexcept;
  // What a rank has posted, as far as it is known here; the board changes only as C6 allows. For
  // the rank's own thread.
  const Board& board(int rank) noexcept;
  // Of a rank of another host. Each copy but the first is used after it has been reserved, which
  // throws ConfigError if there is no memory for it.
  CopyTable board_table(int rank) const noexcept;
  Board& board_copy(int rank, std::size_t copy) const noexcept;
  void reserve_board(int rank, std::size_t copy) const;

 private:
  ControlHeader& header() const noexcept {
    return *reinterpret_cast<ControlHeader*>(memory_.data());
  }
  void watch(int rank);
  std::size_t records_at(int rank) const noexcept;
  std::size_t tables_at(int rank) const noexcept;
  std::size_t boards_at(int rank) const noexcept;

  int rank_;
  int size_;
  std::vector<int> members_;
  RecordFormat format_;
  int cores_ = 1;
  std::vector<std::vector<int>> hosts_;
  std::vector<int> host_of_;
  std::vector<int> neighbours_;
  std::vector<pid_t> pids_;
  std::vector<Descriptor> pidfds_;
  std::vector<std::size_t> board_read_;  // by rank: the copy
  Memory memory_;
};

}  // namespace dstorm::host
