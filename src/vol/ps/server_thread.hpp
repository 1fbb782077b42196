// The thread in which a rank's server runs.
#pragma once

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "dstorm/group.hpp"
#include "vol/ps/server.hpp"
#include "vol/ps/table.hpp"

namespace vol::ps {

class ServerThread {
 public:
  // Starts the thread, which makes the Server, a collective call: this rank's Client is to be made
  // at the same time. `group` has the server's member of the table's group. `edition` and `before`
  // are as for the Server. Making it may take until the deadline, or as long as the group says.
  ServerThread(std::shared_ptr<dstorm::Group> group, const TableOptions& options,
               const Edition* edition = nullptr, const Server* before = nullptr,
               std::optional<dstorm::Deadline> deadline = std::nullopt);
  ~ServerThread() { stop(); }
  ServerThread(const ServerThread&) = delete;
  ServerThread& operator=(const ServerThread&) = delete;

  // Returns when the server is made. Throws what its constructor threw. To be called once, before
  // the functions below.
  void await_made() { made_.get_future().get(); }
  std::vector<int> movers() const { return server_->movers(); }
  std::size_t moved() const { return server_->moved(); }
  std::vector<int> behind(std::uint64_t clock) const { return server_->behind(clock); }
  void tell_clock(std::uint64_t clock) { server_->tell_clock(clock); }
  // Why the thread has ended by itself; empty if it has not.
  std::string failure() const { return has_failed_ ? failure_ : std::string(); }
  std::uint64_t hot_answers() const { return server_->hot_answers(); }
  // Returns when the client has ended the thread (Client::stop_server). The result is this rank's
  // server, null if its thread has ended by itself. The group is not left. The caller may not hold
  // what a user's update function needs (the GIL).
  const Server* await_stopped();
  // Leaves the group within `limit`, the group's if none is given, and ends the thread. Idempotent.
  // The caller may not hold what a user's update function needs.
  void stop(std::optional<std::chrono::nanoseconds> limit = std::nullopt) noexcept;

 private:
  void run(const Edition* edition, const Server* before, const dstorm::Deadline& deadline);

  std::shared_ptr<dstorm::Group> group_;
  const TableOptions& options_;
  std::promise<void> made_;
  std::unique_ptr<Server> server_;
  std::string failure_;  // written before has_failed_
  std::atomic<bool> has_failed_ = false;
  std::thread thread_;
};

}  // namespace vol::ps
