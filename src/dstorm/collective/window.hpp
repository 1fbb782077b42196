// A window: memory of each rank of a group into which the other ranks write (put), and signals by
// which they say that they have. The rank that is written to makes no call for it.
//
// Ranks of one host map one another's memory and write there. A put to another host travels in
// messages (mail.hpp), and a thread of the receiver copies it to its place.
//
//  W1 A put is whole when a signal is seen that its sender has sent after it. On one host the
//     sender stores its count of signals after the bytes (release), and the receiver loads it
//     before them (acquire). Between hosts a receiver takes a sender's messages in order (M1).
//  W2 A sender counts its signals and sends the count, which only grows. So a signal that is sent
//     again, after an exception, counts once.
//  W3 One thread at a time uses the mail, the one that has set is_used_. A thread that wants it
//     raises wanted_ and rings; the receiving thread and a waiting one then let go of it at once.
//     Those that wait for signals leave the mail to one of them, which takes in for all.
//  W4 A message is checked, and only then copied (window_message.hpp).
//  W5 A rank of the same host that was stopped in the middle of a put, and evicted, may write the
//     rest of that put when it goes on. Its signals no longer count.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "dstorm/bootstrap.hpp"
#include "dstorm/collective/mail.hpp"
#include "dstorm/collective/window_memory.hpp"
#include "dstorm/collective/window_message.hpp"
#include "dstorm/deadline.hpp"
#include "dstorm/group.hpp"

namespace dstorm {

// Needs a group of its own. Any thread may call. At most one thread at a time signals a rank, or
// waits for its signals.
class Window {
 public:
  struct Place {  // of a window in its rank's memory
    std::size_t first;
    std::size_t bytes;
  };
  static constexpr std::size_t kMostNote = 256;

  // Collective, blocking: returns when all ranks can put. The others write to `place` in this
  // rank's `memory`. All ranks get the `note`, of at most kMostNote bytes, of each. Throws
  // ConfigError on all ranks if one cannot take part, and what the constructor of Segment throws.
  Window(std::shared_ptr<Group> group, std::string name, std::shared_ptr<WindowMemory> memory,
         Place place, std::span<const std::byte> note);
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  const Bytes& note(int rank) const { return peer(rank).note; }
  Place place(int rank) const { return peer(rank).place; }
  // Whether `rank` is on this host, this rank included, so that memory() has its memory.
  bool is_mapped(int rank) const { return peer(rank).memory != nullptr; }
  // The memory of such a rank. It stays mapped as long as anybody holds it.
  const std::shared_ptr<WindowMemory>& memory(int rank) const { return peer(rank).memory; }

  // Writes `bytes` at `offset` of the window of `to`. Returns when `bytes` may be changed: on one
  // host all of it has been written, else all of it is on its way. Throws ConfigError if the window
  // is shorter, PeerError if `to` is dead or has left, and TimeoutError if its host does not take
  // the bytes; then some of them may arrive, also later.
  void put(int to, std::size_t offset, std::span<const std::byte> bytes, const Deadline& deadline);

  // Tells `to` that this rank has sent it `count` signals (W2). Throws as put().
  void signal(int to, std::uint64_t count, const Deadline& deadline);

  // Returns when `from` has sent `count` signals. Throws PeerError if it is dead or has left and
  // has sent fewer, and TimeoutError.
  void await_signals(int from, std::uint64_t count, const Deadline& deadline);

  // Collective: returns when everything that the live ranks have put here has arrived. Throws
  // TimeoutError naming the ranks that did not come. shut() is to follow.
  void close(const Deadline& deadline);

  // Leaves the window and its group: the others' puts to this rank fail. Idempotent; any thread, at
  // any time. Waits `limit` at most until other hosts have what this rank has put there.
  void shut(std::chrono::nanoseconds limit) noexcept;

 private:
  using Head = WindowMessage::Head;
  struct Offer;
  struct Peer {
    Bytes note = {};
    Place place = {};
    std::shared_ptr<WindowMemory> memory = {};  // null: on another host
    std::shared_ptr<WindowMemory> counts = {};  // of the signals to it; as `memory`
    std::atomic<std::uint64_t> signals = 0;     // received from another host
    std::atomic<bool> has_ended = false;        // it has put all that it puts
  };
  using Lock = std::unique_lock<std::mutex>;

  std::vector<Offer> exchange(const std::string& step, const Offer& mine);
  void open(int rank, const Offer& offer);
  Peer& peer(int rank) { return *peers_[static_cast<std::size_t>(rank)]; }
  const Peer& peer(int rank) const { return *peers_[static_cast<std::size_t>(rank)]; }
  std::atomic<std::uint64_t>& count(int of, int from) const;
  std::uint64_t signals_of(int rank) const;
  bool is_gone(int rank) const;
  void check_to(int rank) const;
  void check_open() const;
  template <class Function>
  void use(Lock& lock, Function&& function);
  void check_outside() const;
  void take_over(Lock& lock, const Deadline& deadline);
  void nap(Lock& lock, std::chrono::nanoseconds most, const Deadline& deadline);
  template <class Function>
  void use_for_sending(const Deadline& deadline, Function&& function);
  void send(int to, const Head& head, const Deadline& deadline);
  void send_all(int to, std::size_t offset, std::span<const std::byte> bytes,
                const Deadline& deadline);
  void put_in_mail(int to, const Head& head, std::span<const std::byte> body,
                   const Deadline& deadline);
  void await_room(int to, const Deadline& deadline);
  void take_in();
  void take(int sender, std::span<const std::byte> message);
  void await(const std::function<bool()>& is_done, const std::function<std::vector<int>()>& late,
             bool may_miss, const Deadline& deadline);
  void run();

  const std::shared_ptr<Group> group_;
  const std::string name_;  // in errors: "window 'w'"
  std::vector<std::unique_ptr<Peer>> peers_;
  std::unique_ptr<Mail> mail_;  // W3

  mutable std::mutex mutex_;
  // A forked process, where nobody wakes those that wait for it, never destroys it.
  std::unique_ptr<std::condition_variable> changed_ = std::make_unique<std::condition_variable>();
  bool is_used_ = false;       // the mail, by the thread `user_`
  bool is_receivers_ = false;  // that is the receiving thread
  std::thread::id user_;
  std::atomic<int> wanted_ = 0;   // threads that wait for the mail
  std::atomic<int> waiting_ = 0;  // threads that wait for what arrives
  Clock::time_point used_at_;     // by another thread than the receiving one
  std::string failure_;           // that has ended the receiving thread
  std::atomic<bool> is_shut_ = false;
  std::thread receiver_;  // only between hosts
};

}  // namespace dstorm
