#include "vol/ps/server_thread.hpp"

#include <optional>

#include "dstorm/host/quiet_thread.hpp"
#include "vol/ps/server.hpp"

namespace vol::ps {

ServerThread::ServerThread(std::shared_ptr<dstorm::Group> group, const TableOptions& options)
    : group_(std::move(group)),
      options_(options),
      thread_(dstorm::start_quiet_thread([this] { run(); })) {}

void ServerThread::stop() noexcept {
  if (!thread_.joinable()) return;
  if (group_->is_forked()) return thread_.detach();  // the thread is the rank's
  group_->leave();
  thread_.join();
}

void ServerThread::run() {
  std::optional<Server> server;
  try {
    server.emplace(group_, options_);
  } catch (...) {
    group_->leave();
    made_.set_exception(std::current_exception());
    return;
  }
  made_.set_value();
  try {
    server->run();
  } catch (const std::exception&) {
    // The group has been left, or this rank was evicted, or has found damaged memory: for the other
    // ranks this server is dead from now on, and so it is for this rank's client.
    group_->leave();
  }
}

}  // namespace vol::ps
