// The ranks of a job.
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
#include "dstorm/errors.hpp"
#include "dstorm/host/turn.hpp"
#include "dstorm/membership/membership.hpp"

namespace dstorm {

class Channel;
class Waiter;
struct Doorbell;
namespace host {
struct SegmentShape;
}

struct GroupOptions {
  // What a wait for ranks that live gets, if it has no time limit of its own.
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);
  // Called by a wait that has lasted for `slow_after`, once, with what it misses; may not throw.
  std::function<void(const std::string&)> slow = nullptr;
  std::chrono::nanoseconds slow_after = std::chrono::seconds(30);
  // Who is not heard of for so long has been left out by then, if more than half of all agree, or
  // half with the lowest rank. A rank misses others after three quarters of it, and is cut off when
  // it has found no such majority for twice as long after that. From 0.1 s.
  std::chrono::nanoseconds silence = std::chrono::seconds(5);
  TieRule tie = TieRule::kLowest;
  // "auto": "shm" among ranks that can map one another's memory; between others "verbs" where both
  // sides have an RDMA adapter, else "tcp". Or one of these for all, which is obeyed or refused.
  std::string transport = "auto";
  // Which network to use: the name of an interface, an address or a CIDR; empty: the one that leads
  // to `toward`, a host that all ranks can reach, or else to the other ranks.
  std::string interface = {};
  std::string toward = {};
  // What the ranks of this job alone know: goes into the key by which they know one another.
  std::string secret = {};
  // Called now and then while this rank waits, and after a signal; may throw to end the wait.
  std::function<void()> interrupt = nullptr;
  // Called by a wait that finds its group superseded, again and again until what it waits for has
  // come; may block. True: look again. False: it will never come, as all ranks wait or have gone
  // over; the wait throws Superseded. `is_new`: not called by this wait yet.
  std::function<bool(bool is_new)> superseded = nullptr;
  // Called by a thread of the group's own when epoch() has grown; must neither block nor throw.
  std::function<void()> changed = nullptr;
  // Of the job whose groups follow one another; null: the group is alone.
  std::shared_ptr<Turns> turns = nullptr;
};

// One process's membership in a job. Any thread may call; the calls of a group and of all that is
// made over it go one at a time (turn.hpp). A call waits while another thread's works. It throws
// ConfigError, having changed nothing, while another thread's waits for other ranks or runs a
// function of the user's, and inside such a function. What only tells (rank, size, epoch, alive,
// is_live, route, view) is no such call, nor are leave() and supersede().
class Group : public std::enable_shared_from_this<Group> {
 public:
  // Collective over the bootstrap's members: returns when every one has joined; the other ranks are
  // dead from the start. Throws TimeoutError naming the ranks that did not come, ConfigError if the
  // ranks cannot reach one another. `bootstrap` is not used afterwards.
  static std::shared_ptr<Group> join(Bootstrap& bootstrap, GroupOptions options = {});
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const noexcept;
  int size() const noexcept;
  // Of the membership that the live ranks have agreed on; grows soon after ranks have died, left or
  // been left out.
  std::uint32_t epoch() const noexcept;
  // The membership itself, as far as this rank has agreed to it.
  View view() const;
  // The ranks that have not died, left or been left out, sorted.
  std::vector<int> alive() const;
  bool is_live(int rank) const noexcept;
  // It has left the job in good order.
  bool has_left(int rank) const noexcept;
  // The others go on without it, though it may live and write: nothing of it counts any more.
  bool is_left_out(int rank) const noexcept;
  // Whether this has happened to any rank.
  bool has_left_out() const noexcept;

  // Returns when every live rank has called it. Throws TimeoutError.
  void barrier(std::optional<std::chrono::nanoseconds> timeout = std::nullopt);

  // Collective over the live ranks: everyone's bytes, by rank; nothing from the dead. `what` says
  // what the caller is doing ("barrier", "segment 'w', step 2"): ranks that do different things at
  // once all get a ConfigError that says who does what. At most kMostExchanged bytes.
  // After a TimeoutError the same is to be called again, for which what was posted then counts. A
  // call of several exchanges gives each a step's name: where it begins anew and others went on to
  // a later step, it fails on all, and works when all call it again.
  std::vector<std::optional<Bytes>> exchange(
      std::string_view what, std::span<const std::byte> mine,
      std::optional<std::chrono::nanoseconds> timeout = std::nullopt);
  static constexpr std::size_t kMostExchanged = 768;

  // Leaves the job: the others see this rank as gone, and whatever still uses the group throws
  // ConfigError, also a call that waits. Not collective. Idempotent; the destructor does it too.
  // Any thread, at any time.
  void leave() noexcept;
  bool has_left() const noexcept;
  // Whether this process is a fork of the rank's: to it the group is closed, and it leaves nothing.
  bool is_forked() const noexcept;
  // Throws ConfigError after leave() and in a forked process, and PeerError if this rank has been
  // left out or cut off; check_open() also Superseded.
  void check_standing() const;
  void check_open() const;

  // Membership only shrinks within a group. To let ranks back in, the live ones and those make a
  // new group, and go over to it. This begins it on the whole host: waits may throw Superseded, and
  // so do calls at which a round of the loop may begin. `call` is not 0 and, after a restore(), not
  // one of before. Any thread.
  void supersede(std::uint32_t call = 1) noexcept;
  // By which call, the first since the group was made or restored; 0: it is not.
  std::uint32_t superseded_by() const noexcept;
  bool is_superseded() const noexcept { return superseded_by() != 0; }
  // Nothing comes of it: the group goes on.
  void restore() noexcept;
  // In a superseded group, whether a call for this segment is one that those who come back can
  // begin with too: of the segment that was made first, when the end of a round of it has been kept
  // for them; or of any, if no such call comes.
  bool may_go_over_at(const std::string& segment) noexcept;
  // In a superseded group: what a gather or an allreduce of this segment left has been kept. Holds
  // until another rank of the host restores the group.
  void keep_round(const std::string& segment) noexcept;
  // Waits in a superseded group, where nobody rings: false when the time is up.
  bool await(const std::function<bool()>& ready, std::chrono::nanoseconds timeout) const;
  // To how many exchanges this rank has posted.
  std::uint64_t posted() const noexcept;
  // When nobody posts any more, and all have told one another these numbers: waits until everything
  // has come here. Throws TimeoutError.
  void await_posts(std::span<const std::uint64_t> by_rank, std::chrono::nanoseconds timeout) const;

  // A name that only one segment at a time has. Throws ConfigError if it is taken.
  void add_name(const std::string& name);
  void remove_name(const std::string& name) noexcept;

  std::chrono::nanoseconds timeout() const noexcept;
  Waiter& waiter() noexcept;
  const std::shared_ptr<Turns>& turns() const noexcept;

  // How this rank reaches `rank`, and why so.
  struct Route {
    std::string_view transport;  // "shm", "verbs", "tcp"; "self" for this rank
    std::string why;
  };
  Route route(int rank) const;
  // Whether all ranks share one memory.
  bool is_one_host() const noexcept;

  // Collective: the memory and the connections of a new segment. See Channel.
  std::unique_ptr<Channel> open_channel(std::string_view what, const host::SegmentShape& shape);

 private:
  Group();
  bool has_posted(int rank, std::uint64_t number) const noexcept;
  void await_posts_of(std::uint64_t number, std::string_view what, std::chrono::nanoseconds limit);
  std::vector<std::optional<Bytes>> posts_of(std::uint64_t number) const;
  std::string last_calls(const std::vector<int>& ranks) const;

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dstorm
