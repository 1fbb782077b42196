// The thread in which a rank's server runs.
#pragma once

#include <future>
#include <memory>
#include <thread>

#include "dstorm/group.hpp"
#include "vol/ps/table.hpp"

namespace vol::ps {

class ServerThread {
 public:
  // Starts the thread, which makes the Server, a collective call: this rank's Client is to be made
  // at the same time. `group` has the server's member of the table's group.
  ServerThread(std::shared_ptr<dstorm::Group> group, const TableOptions& options);
  ~ServerThread() { stop(); }
  ServerThread(const ServerThread&) = delete;
  ServerThread& operator=(const ServerThread&) = delete;

  // Returns when the server is made. Throws what its constructor threw.
  void await_made() { made_.get_future().get(); }
  // Leaves the group and ends the thread. Idempotent. The caller may not hold what a user's update
  // function needs (the GIL).
  void stop() noexcept;

 private:
  void run();

  std::shared_ptr<dstorm::Group> group_;
  const TableOptions& options_;
  std::promise<void> made_;
  std::thread thread_;
};

}  // namespace vol::ps
