// The group: the ranks of one job, what they agree on, and the collective calls they make together.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dstorm/bootstrap.hpp"
#include "dstorm/deadline.hpp"
#include "dstorm/errors.hpp"
#include "dstorm/rdma_options.hpp"
#include "dstorm/view.hpp"

namespace dstorm {

class Channel;
class Graph;
class Recorder;
class Turns;
class Waiter;
struct Doorbell;
namespace host {
struct SegmentShape;
}

struct GroupOptions {
  // The time limit of a wait for live ranks that has no time limit of its own. Above 0.
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);
  // The time limit of join(), if it is a part of a call that has begun. Without one: `timeout`.
  std::optional<Deadline> deadline = std::nullopt;
  // A wait that has lasted for `slow_after` calls `slow` once, with a text that names the ranks it
  // is waiting for. `slow` may not throw.
  std::function<void(const std::string&)> slow = nullptr;
  std::chrono::nanoseconds slow_after = std::chrono::seconds(30);
  // A rank that sends no heartbeat for this long is evicted by the end of that time (of twice that
  // time in a job of ten hosts or more), if more than half of all ranks agree, or half of them
  // including the lowest rank (see `tie`). A rank suspects others after three quarters of the
  // silence. If it then finds no such majority for one and a
  // half times the silence, it is cut off. At least 0.1 s.
  std::chrono::nanoseconds silence = std::chrono::seconds(5);
  TieRule tie = TieRule::kLowest;
  // "auto": ranks that can map one another's memory use "shm"; two others use "verbs" if both have
  // an RDMA adapter, else "tcp". "shm", "verbs" or "tcp": all ranks use that transport, or join()
  // refuses with the reason.
  std::string transport = "auto";
  // Selects the network: the name of an interface, an address or a CIDR. If it is empty, MALT takes
  // the interface that leads to `toward`, a host that all ranks can reach; if that is empty too,
  // the one that leads to the other ranks.
  std::string interface = {};
  std::string toward = {};
  // A secret that only the ranks of this job know. It is part of the key by which ranks recognise
  // one another.
  std::string secret = {};
  // How TCP between hosts is protected; alike on all ranks. Empty: by TLS with a key made from the
  // job's. A folder with cert.pem, key.pem and ca.pem: by TLS with these as well; RDMA, which
  // cannot be encrypted, is then not used. "off": not at all, for a network that the user trusts.
  std::string tls = environment("MALT_TLS");
  RdmaOptions rdma = RdmaOptions::from_environment();
  // A wait calls `interrupt` now and then, and after a signal. It may throw to end the wait.
  std::function<void()> interrupt = nullptr;
  // A wait that finds its group superseded calls `superseded` again and again, until its condition
  // holds. The function may block. It returns true if the wait is to look again, and false if the
  // condition will never hold, because all ranks wait or have moved to the new group; the wait then
  // throws Superseded. `is_new` is true when this wait calls the function for the first time.
  std::function<bool(bool is_new)> superseded = nullptr;
  // A thread of the group calls `changed` when epoch() has grown. It may neither block nor throw.
  std::function<void()> changed = nullptr;
  // Shared by all groups of a job that is a sequence of groups (rejoin); null for a single group.
  std::shared_ptr<Turns> turns = nullptr;
  // Records what this rank does (recorder/recorder.hpp); shared as `turns` is. Null: nothing does.
  std::shared_ptr<Recorder> recorder = nullptr;
};

// One process's membership in a job. Any thread may call. The calls of a group, and of everything
// made over it, go one at a time (host/turn.hpp): a call waits while another thread's call is
// working. A call throws ConfigError, and has changed nothing, while another thread's call waits
// for other ranks or runs a function of the user's, and when it is made inside such a function. The
// queries (rank, size, epoch, alive, is_live, route, view), leave() and supersede() are exempt: any
// thread may call them at any time.
class Group : public std::enable_shared_from_this<Group> {
 public:
  // Collective over the bootstrap's members, blocking: returns when every member has joined. Ranks
  // that are not members are dead from the start. Throws TimeoutError naming the ranks that did not
  // come, and ConfigError if the ranks cannot reach one another. The group does not use `bootstrap`
  // afterwards.
  static std::shared_ptr<Group> join(Bootstrap& bootstrap, GroupOptions options = {});
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const noexcept;
  int size() const noexcept;
  // The number of the membership that the live ranks have agreed on. It grows soon after ranks have
  // died, left the job or been evicted.
  std::uint32_t epoch() const noexcept;
  // The membership itself, as far as this rank has agreed to it.
  View view() const;
  // The ranks that have not died, left the job or been evicted, sorted.
  std::vector<int> alive() const;
  bool is_live(int rank) const noexcept;
  // Whether `rank` has left the job in good order.
  bool has_left(int rank) const noexcept;
  // Whether `rank` has been evicted, or is this rank and has been cut off. An evicted rank's
  // process may still live and write, but nothing that it sends counts any more.
  bool is_left_out(int rank) const noexcept;
  // Whether is_left_out() holds for any rank.
  bool has_left_out() const noexcept;

  // Collective over the live ranks, blocking: returns when every live rank has called it. Throws
  // TimeoutError naming the ranks that did not come.
  void barrier(std::optional<std::chrono::nanoseconds> timeout = std::nullopt);

  // Collective over the live ranks, blocking: returns the bytes of every rank, by rank, and nullopt
  // for the dead. `what` says what the caller is doing ("barrier", "segment 'w', step 2"). If ranks
  // do different things at once, all of them get a ConfigError that says which rank does what.
  // `mine` holds at most kMostExchanged bytes.
  //
  // After a TimeoutError the caller makes the same call again; the bytes that this rank posted the
  // first time count. A call that consists of several exchanges names each one a step. If one rank
  // begins such a call again while others went on to a later step, the call fails on all ranks with
  // BegunAnew, and works when all call it again.
  std::vector<std::optional<Bytes>> exchange(std::string_view what, std::span<const std::byte> mine,
                                             std::optional<Deadline> timeout = std::nullopt);
  static constexpr std::size_t kMostExchanged = 768;

  // Leaves the job: the other ranks see that this rank has left. Everything that still uses the
  // group throws ConfigError, including a call that is waiting. Not collective. Idempotent; the
  // destructor calls it too. Any thread may call it at any time. Between hosts it waits until the
  // others have all that this rank has sent, for at most `limit`, or timeout() if none is given. It
  // then waits for up to a second, and no longer than `limit`, for them to end the connections.
  void leave(std::optional<std::chrono::nanoseconds> limit = std::nullopt) noexcept;
  bool has_left() const noexcept;
  // Whether this process was forked from the rank. In a fork the group is closed, and the fork does
  // not leave the job.
  bool is_forked() const noexcept;
  // Both throw ConfigError after leave() and in a forked process, and PeerError if this rank has
  // been evicted or cut off. check_open() also throws Superseded in a superseded group.
  void check_standing() const;
  void check_open() const;

  // Membership only shrinks within a group. To let a rank rejoin, the live ranks and the rejoining
  // ranks make a new group, and the live ranks move to it. supersede() begins the move on the whole
  // host: from then on waits may throw Superseded, and so may calls at which a round of the loop
  // may begin. `call` identifies the request. It is not 0, and after a restore() it differs from
  // every earlier one. Any thread may call it.
  void supersede(std::uint32_t call = 1) noexcept;
  // The `call` that superseded the group, the first one since the group was made or restored; 0 if
  // the group is not superseded.
  std::uint32_t superseded_by() const noexcept;
  bool is_superseded() const noexcept { return superseded_by() != 0; }
  // Calls the move off: the group goes on as before.
  void restore() noexcept;
  // In a superseded group: whether this rank may move to the new group at this call for `segment`,
  // so that a rejoining rank can begin with the same call. True for the segment that was made
  // first, once the result of one of its rounds has been kept for the rejoining ranks
  // (keep_round()); and for any segment, once so many calls have passed that no such call is
  // expected.
  bool may_go_over_at(const std::string& segment) noexcept;
  // In a superseded group: records that a copy of the result of a gather or an allreduce of
  // `segment` has been kept. The record holds until another rank of the host restores the group.
  void keep_round(const std::string& segment) noexcept;
  // Calls GroupOptions::interrupt: for waits that do not go through waiter(). It may throw.
  void interrupt() const;
  // Waits for `ready` in a superseded group, where no rank rings another. It polls. Returns false
  // when the time is up.
  bool await(const std::function<bool()>& ready, std::chrono::nanoseconds timeout) const;
  // The `what` of the exchange that an exception has ended on this rank, and to which others may
  // come yet; "" if there is none.
  std::string pending() const;
  // This rank has given up the call, and need not repeat it. If it is pending(), the next exchange
  // of another call waits for the others to post, and goes on to the one after that; so do others
  // that are in another call, and for those in this one the next step throws OtherCalls.
  void abandon(std::string_view call);
  // Whether another live rank has begun a call anew that this rank has ended: whether it has posted
  // a step of `call` to the exchange that comes next, other than step 0.
  bool is_begun_anew(std::string_view call) const noexcept;
  // The number of exchanges to which this rank has posted.
  std::uint64_t posted() const noexcept;
  // Of these, the last one to which all live ranks have posted, as far as this rank knows.
  std::uint64_t met() const noexcept;
  // Waits until the exchanges numbered `by_rank` have arrived here from every live rank. To be
  // called when no rank posts any more and all have told one another these numbers. Throws
  // TimeoutError.
  void await_posts(std::span<const std::uint64_t> by_rank, std::chrono::nanoseconds timeout) const;

  // Reserves a name, which only one segment at a time can have. Throws ConfigError if it is taken.
  void add_name(const std::string& name);
  void remove_name(const std::string& name) noexcept;

  // The time limit of a wait that is given none: GroupOptions::timeout, or what is left of the
  // innermost Within.
  std::chrono::nanoseconds timeout() const noexcept;
  // The same limit, with what is left of it: error messages tell the whole one.
  Deadline deadline() const noexcept;
  // For as long as it lives, all waits that are given no limit of their own share one. So a call
  // that makes segments, which takes several waits, keeps within the limit of the call. It is a
  // call of the group, or a part of the one in progress, and throws what those throw.
  class [[nodiscard]] Within {
   public:
    Within(Group& group, const Deadline& deadline);
    ~Within();
    Within(const Within&) = delete;
    Within& operator=(const Within&) = delete;

   private:
    struct Call;
    std::unique_ptr<Call> call_;
  };
  Waiter& waiter() noexcept;
  const std::shared_ptr<Turns>& turns() const noexcept;
  Recorder* recorder() const noexcept;  // null if nothing is recorded

  // How this rank reaches `rank`, and the reason.
  struct Route {
    std::string_view transport;  // "shm", "verbs", "tcp"; "self" for this rank
    std::string why;
  };
  Route route(int rank) const;
  // Whether all ranks share one memory.
  bool is_one_host() const noexcept;

  // Collective: makes the memory and the connections of a new segment. See Channel.
  std::unique_ptr<Channel> open_channel(std::string_view what, const host::SegmentShape& shape,
                                        const Graph& graph);

 private:
  Group();
  bool has_posted(int rank, std::uint64_t number) const noexcept;
  void await_posts_of(std::uint64_t number, std::string_view what, const Deadline& deadline);
  std::vector<std::optional<Bytes>> posts_of(std::uint64_t number, std::string_view what) const;
  void post(std::uint64_t number, std::string_view what, std::span<const std::byte> mine);
  bool is_void(std::uint64_t number, const std::vector<int>& elsewhere) const;
  std::string last_calls(const std::vector<int>& ranks) const;

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dstorm
