// The control memory: the memory that every rank of a host maps first. It says which ranks are
// there, on this host and on others, and has a notice board on which ranks post bytes to one
// another when they make segments or meet at a barrier. Only the doorbells in it are on the data
// path. Words that ranks of other hosts write into their own control memory are copied here.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
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
  kCutOff = 5,   // a rank of this host: it found no majority, and stopped
};

struct Notice {  // the post of one rank for one exchange
  std::uint32_t what_bytes;
  std::uint32_t bytes;
  char what[120];
  std::byte data[Group::kMostExchanged];
};

struct alignas(kLine) Board {
  std::atomic<std::uint64_t> posted;     // the number of the last exchange posted to
  std::atomic<std::uint64_t> abandoned;  // that of the last one given up (Group::abandon)
  alignas(kLine) Notice notices[2];      // used in turn: exchange n uses notices[n % 2]
};

// One rank's part of the control memory, on cache lines of its own. The board in it is the rank's
// own; for a rank of another host it is the first copy of that rank's board (slot/copies.hpp).
struct alignas(kLine) Member : Board {
  Doorbell bell;
  alignas(kLine) std::atomic<State> state;
  // For a rank of another host: the number of the connection by which its writes arrive now, and
  // the time at which something last arrived (Clock, in nanoseconds).
  std::atomic<std::uint64_t> link;
  std::atomic<std::int64_t> heard;
};

struct alignas(kLine) ControlHeader {
  Token token;
  std::uint32_t size;
  std::atomic<std::uint32_t> epoch;
  std::atomic<std::uint32_t> superseded;  // not 0: the ranks move to another group
};

// Which ranks share memory, and so count as one host.
enum class Sharing : std::uint8_t {
  kPossible,  // the ranks that can map one another's memory
  kAll,       // all ranks; join() fails if they cannot
  kNone,      // each rank is a host by itself
};

class Control {
 public:
  // Collective, through the bootstrap, blocking. Throws ConfigError if the ranks cannot share
  // memory as asked, and TimeoutError.
  Control(Bootstrap& bootstrap, Sharing sharing, const Deadline& deadline);

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  // The number of cores on which the ranks of this host, together, may run.
  int cores() const noexcept { return cores_; }
  // The ranks that the group was made with, sorted. Other ranks are dead from the start and belong
  // to no host; is_local() is true of them on every host.
  const std::vector<int>& members() const noexcept { return members_; }
  bool is_member(int rank) const {
    return std::binary_search(members_.begin(), members_.end(), rank);
  }

  // The members of each host, sorted; hosts are ordered by their lowest rank.
  const std::vector<std::vector<int>>& hosts() const noexcept { return hosts_; }
  int host_of(int rank) const { return host_of_[static_cast<std::size_t>(rank)]; }
  int own_host() const { return host_of(rank_); }
  bool is_local(int rank) const { return host_of(rank) == own_host(); }
  // Whether it is a member, on this host.
  bool is_here(int rank) const {
    return std::binary_search(locals().begin(), locals().end(), rank);
  }
  // The members of this host; and the same without this rank.
  const std::vector<int>& locals() const { return hosts_[static_cast<std::size_t>(own_host())]; }
  const std::vector<int>& neighbours() const noexcept { return neighbours_; }

  // The process of a rank of this host.
  pid_t pid(int rank) const { return pids_[static_cast<std::size_t>(rank)]; }
  // A descriptor that becomes readable when the rank's process ends; -1 for this rank.
  int pidfd(int rank) const {
    const auto& pidfd = pidfds_[static_cast<std::size_t>(rank)];
    return pidfd ? pidfd->get() : -1;
  }

  State state(int rank) const noexcept {
    return member(rank).state.load(std::memory_order_acquire);
  }
  bool is_live(int rank) const noexcept { return state(rank) == State::kAlive; }
  // Whether `rank` has been evicted or cut off. Its process may live, but the others go on without
  // it.
  bool is_left_out(int rank) const noexcept {
    const State known = state(rank);
    return known == State::kEvicted || known == State::kCutOff;
  }
  // Marks a live rank, or marks an evicted or cut-off rank as dead. Returns false, and changes
  // nothing, if the rank is in another state. Any thread may call it.
  bool mark(int rank, State state) noexcept;
  std::uint32_t epoch() const noexcept { return header().epoch.load(std::memory_order_acquire); }
  void raise_epoch(std::uint64_t epoch) noexcept;  // never lowers it
  std::atomic<std::uint32_t>& superseded() const noexcept { return header().superseded; }
  // The membership record of a rank, as far as this host has received it.
  const RecordFormat& record_format() const noexcept { return format_; }
  RecordFormat::Cell record(int rank) const noexcept;
  Doorbell& bell(int rank) noexcept { return member(rank).bell; }
  // Rings those of `ranks` that are on this host. The caller has changed something they may wait
  // for.
  void ring(std::span<const int> ranks) noexcept;
  Member& member(int rank) const noexcept;
  // The board of a rank, as far as its posts have arrived here. This rank moves from one copy of a
  // board to another only as C6 allows. For the rank's own thread.
  const Board& board(int rank) noexcept;
  // The copies of the board of a rank of another host. Every copy but the first has to be reserved
  // before use; reserve_board() throws ConfigError if there is no memory for it.
  CopyTable board_table(int rank) const noexcept;
  Board& board_copy(int rank, std::size_t copy) const noexcept;
  void reserve_board(int rank, std::size_t copy) const;

 private:
  ControlHeader& header() const noexcept {
    return *reinterpret_cast<ControlHeader*>(memory_.data());
  }
  struct Place;
  std::vector<int> lower_members() const;
  void note_hosts(const std::vector<Place>& places);
  void note_states();
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
  std::vector<std::shared_ptr<const Descriptor>> pidfds_;
  std::vector<std::size_t> board_read_;  // by rank: the copy that this rank reads
  Memory memory_;
};

}  // namespace dstorm::host
