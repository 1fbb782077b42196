// A segment: each rank writes updates of up to `slot_bytes` bytes for its out-neighbours
// (scatter), and folds the updates that its in-neighbours have written (gather). Each sender has a
// receive queue of `depth` slots, its mailbox.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dstorm/graph.hpp"
#include "dstorm/group.hpp"
#include "dstorm/policy.hpp"

namespace dstorm {

struct SegmentParts;

struct SegmentOptions {
  std::string name = {};       // in errors; two open segments of a job may not share one
  std::string call = {};       // its name in errors; if empty, "segment 'NAME'"
  std::size_t slot_bytes = 0;  // the largest update
  int depth = 2;               // slots per sender; at staleness 0 under LATEST at least 2
  Policy policy = Policy::kLatest;
  Graph graph = Graph::all();
  std::size_t home_bytes = 0;    // memory per rank that all ranks of the host may read
  std::size_t result_bytes = 0;  // memory for a shared fold
  std::string kind = {};         // content, named by the layer above; must agree between ranks
  // Given if a payload says where the values lie (in a device's memory, say) instead of having
  // them: copies the values of an update of `rank` out, when the update has to leave its slot
  // before it is folded.
  std::function<std::vector<std::byte>(int rank, std::span<const std::byte> payload)> copy_out = {};
  std::size_t most_updates = ~std::size_t{0};  // of a gather; the others stay pending
  // This rank rejoins the job: the others regroup() the segment while this rank makes it.
  bool rejoins = false;
};

// The bytes of memory that a segment with these options takes on a host, in a job of `ranks` ranks
// whose other hosts it reaches over TCP. `locals` are the ranks of the host, sorted.
std::uint64_t memory_of(const SegmentOptions& options, int ranks, const std::vector<int>& locals);

// One update, lying in its sender's slot: valid, and unchanging, while the fold runs.
struct Update {
  int rank;
  std::uint64_t iteration;
  std::span<const std::byte> payload;
  std::uint64_t count;
  std::uint32_t format;
  bool is_stashed = false;  // copied out of its slot (SegmentOptions::copy_out)
};

// The layer above describes a payload by a Tag. The receivers' folds see its values in Update.
struct Tag {
  std::uint64_t count = 0;
  std::uint32_t format = 0;
};

// Counters of the updates this rank has sent. Whenever no gather is in progress,
// sent = folded + overwritten + rejected + pending + to_dead; under QUEUE overwritten is 0. One
// update to three ranks counts three.
struct Stats {
  std::uint64_t sent = 0;
  std::uint64_t folded = 0;
  std::uint64_t overwritten = 0;
  std::uint64_t rejected = 0;
  std::uint64_t pending = 0;
  std::uint64_t to_dead = 0;
  std::uint64_t bytes_out = 0;  // payload bytes sent, counted once per receiver
  std::uint64_t bytes_in = 0;   // payload bytes of updates folded here
  double wait_seconds = 0;      // spent waiting in scatter and gather
  // Taken for the segment on this host, by all its ranks together: slots, words, memory of MALT's
  // own. Grows when updates come from ranks outside of the graph.
  std::uint64_t memory_bytes = 0;
};

// How many in-neighbours a gather waits for, and how long.
struct Quorum {
  double share = 1;  // of the live ones, above 0 and up to 1; rounded up
  // Since the wait for the quorum began; at the end of it, or of the gather's timeout, what has
  // come is folded. None: the timeout, which is an error.
  std::optional<std::chrono::nanoseconds> deadline = std::nullopt;
  // Instead: three times as long as quorums of this segment took lately, longer if it came too
  // soon. None while no quorum has come.
  bool is_automatic = false;
};

struct GatherOptions {
  // 0 is BSP, s > 0 SSP: wait until each live in-neighbour is at most s iterations behind this
  // rank. None: do not wait (ASP).
  std::optional<std::uint64_t> staleness = std::nullopt;
  std::optional<std::chrono::nanoseconds> timeout = std::nullopt;  // the group's if not given
  // Given: then wait until so many have scattered this rank's iteration. Staleness 0 waits for
  // all, and takes none.
  std::optional<Quorum> quorum = std::nullopt;
};

// A segment keeps its group alive. Threads: the functions that change the segment or wait, and
// close(), are calls, which Group orders. Any thread may call stats() and shut(), and destroy the
// segment, at any time; everything else is for the thread whose call is in progress.
class Segment {
 public:
  using Fill = std::function<std::pair<std::size_t, Tag>(std::span<std::byte>)>;
  using Fold = std::function<void(std::span<const Update>)>;

  // Collective over the live ranks, blocking: returns when every live rank has made the segment.
  // Throws ConfigError on every rank if the ranks disagree on any option, if the graph is not
  // strongly connected, or if there is no room; TimeoutError naming the ranks that did not come;
  // and PeerError if the rank that makes a host's memory has died meanwhile.
  Segment(std::shared_ptr<Group> group, SegmentOptions options);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // Collective: moves the segment to another group. The other ranks regroup() theirs at the same
  // time, and rejoining ranks make theirs anew. The updates that live ranks have sent and that are
  // pending come along; iterations and counters go on. A rejoining rank starts at the lowest
  // iteration any other rank had when its current round began, so it takes part in the round that
  // the slowest of them is in.
  // If it throws, the segment can neither send nor gather until another regroup().
  void regroup(std::shared_ptr<Group> group);

  // Writes one update to the out-neighbours of this round and returns those written to. `fill`
  // gets the slot's memory (slot_bytes, 64-byte aligned) and returns (bytes used, Tag). Advances
  // the iteration. If `fill` throws, everything is as before. LATEST never blocks: if receivers
  // are reading every slot at this moment, the update counts as overwritten and the result is
  // empty. QUEUE waits for a slot; a TimeoutError names the ranks that hold them all, and the
  // iteration is as before. `may_lag`: other hosts may get the update together with what this rank
  // sends them next, when it waits, or 0.1 s later, even if this process is killed before.
  template <class Function>
  std::span<const int> scatter(Function&& fill, const Graph* graph = nullptr,
                               bool may_lag = false) {
    return scatter_filled(Fill(std::ref(fill)), graph, may_lag);
  }
  std::span<const int> scatter(std::span<const std::byte> payload, const Graph* graph = nullptr);

  // Folds what has arrived: waits as `options` says, then calls fold(std::span<const Update>) once
  // with the updates in rank order (those of one sender in order of iteration) if there are any,
  // and returns their number. The updates of dead ranks are folded if they arrived; nobody waits
  // for dead ranks. LATEST: at most one update a sender, its newest; the updates it replaces count
  // as overwritten. QUEUE: all of them. At staleness 0 the fold gets exactly the updates of this
  // rank's own iteration (under QUEUE also older ones not folded yet), and gather returns only
  // when the next scatter finds a slot that all receivers have folded, so no update of a BSP round
  // is ever overwritten. If the fold throws, no update counts as folded and all stay pending. A
  // TimeoutError names the in-neighbours waited for; nothing is folded then. With a quorum it
  // waits for that too, after the staleness. Throws ConfigError if the share is out of range, or
  // the staleness is 0.
  template <class Function>
  std::size_t gather(const GatherOptions& options, Function&& fold) {
    return gather_folded(options, Fold(std::ref(fold)));
  }
  // scatter() and gather() for a device that works on after the call has returned: `fill` and
  // `fold` only begin (slot/layout.hpp, S8). When the device has written the payload, or has read
  // the updates, finish_scatter() or finish_gather() has to be called, once, by any thread; they
  // wait for nothing. Before that, the segment may be gathered after begin_scatter(), and every
  // other call on it, except for stats() and shut(), has to wait for the finish: the caller sees
  // to that. begin_scatter() returns nullopt, and there is nothing to finish, where scatter()
  // counts the update as overwritten; begin_gather() returns 0, likewise, if there is nothing to
  // fold.
  template <class Function>
  std::optional<std::span<const int>> begin_scatter(Function&& fill, const Graph* graph = nullptr) {
    return begin_scatter_filled(Fill(std::ref(fill)), graph);
  }
  void finish_scatter() noexcept;
  template <class Function>
  std::size_t begin_gather(const GatherOptions& options, Function&& fold) {
    return begin_gather_folded(options, Fold(std::ref(fold)));
  }
  void finish_gather() noexcept;
  // Whether a finish is still to come. Any thread; one that sees that it has come sees everything
  // that it has stored.
  bool is_scatter_begun() const noexcept;
  bool is_gather_begun() const noexcept;
  // Inside a fold: this update counts as rejected instead of folded.
  void reject(std::size_t update);
  // LATEST: waits until a gather without staleness would find something, until more or fewer than
  // `live` ranks live in the group, or until the group is superseded. Returns false when the time
  // is up.
  bool await_update(std::size_t live, std::chrono::nanoseconds timeout);

  // Waits until ready() is true; returns false when the time is up. ready() must be a cheap look
  // at what other ranks' scatters and gathers change. The time counts in stats().wait_seconds.
  template <class Ready>
  bool wait(Ready&& ready, std::chrono::nanoseconds timeout) {
    return ready() || wait_until(std::ref(ready), timeout);
  }

  // The iteration of this rank's last scatter; 0 before the first.
  std::uint64_t iteration() const noexcept;
  // The iteration up to which everything that `rank` has sent has arrived at this host.
  std::uint64_t clock_of(int rank);
  // The iteration up to which the updates of all live in-neighbours have arrived. Within an epoch
  // no update of that iteration or an earlier one arrives any more (segment/frontier.hpp). Never
  // goes back.
  std::uint64_t frontier();
  // Waits until frontier() is at least `iteration`, or no other rank is live. Throws TimeoutError
  // naming the in-neighbours that did not come; the group's time limit if none is given.
  void wait_for(std::uint64_t iteration,
                std::optional<std::chrono::nanoseconds> timeout = std::nullopt);
  // The ranks that have left the job in good order with fewer scatters than this rank has made.
  std::vector<int> left_behind();
  // Whether this rank has begun to scatter, gather or fold here.
  bool is_used() const noexcept;

  struct Round {  // a graph in one round, as this rank sees it
    std::vector<int> out, in;
    std::vector<double> weights;  // the mixing weight of each of `in`
  };
  // The round of this rank's last scatter; round 0 before the first.
  const Round& round() const noexcept;
  // Round `number` of the segment's own graph, drawn among the members that the job had at this
  // rank's last scatter.
  Round round(std::uint64_t number) const;
  const std::vector<int>& in_neighbours() const { return round().in; }
  const std::vector<int>& out_neighbours() const { return round().out; }
  const std::vector<double>& weights() const { return round().weights; }
  const std::vector<int>& peers() const noexcept;  // all other ranks, sorted
  // The ranks the graph is drawn among: all, or those that were still members when this rank last
  // scattered.
  const std::vector<int>& members() const noexcept;
  bool is_repaired() const noexcept;  // whether these are fewer than all

  Stats stats() const;  // reads what the receivers have noted in shared memory; asks no rank
  const SegmentOptions& options() const noexcept;
  Group& group() const noexcept;
  Turns& turns() const noexcept;  // the group's

  // Leaves the segment: the other ranks no longer wait for this rank here. Not collective;
  // idempotent.
  void close();
  // As close(). Any thread may call it at any time.
  void shut() noexcept;
  // As shut(), for destructors: but the others go on to wait for a rank that has made no call here.
  // An exception may have taken its segment from the program, whose part the others' results would
  // lack without a word.
  void drop() noexcept;
  bool is_closed() const noexcept;

  // For the layers of this library above dStorm: see dstorm/segment/parts.hpp.
  SegmentParts& parts() noexcept { return *parts_; }
  const SegmentParts& parts() const noexcept { return *parts_; }

 private:
  std::span<const int> scatter_filled(const Fill& fill, const Graph* graph, bool may_lag);
  bool wait_until(const std::function<bool()>& ready, std::chrono::nanoseconds timeout);
  std::size_t gather_folded(const GatherOptions& options, const Fold& fold);
  std::optional<std::span<const int>> begin_scatter_filled(const Fill& fill, const Graph* graph);
  std::size_t begin_gather_folded(const GatherOptions& options, const Fold& fold);

  std::unique_ptr<SegmentParts> parts_;
};

}  // namespace dstorm
