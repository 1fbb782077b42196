#include "vol/ps/server_thread.hpp"

#include "dstorm/host/quiet_thread.hpp"

namespace vol::ps {

ServerThread::ServerThread(std::shared_ptr<dstorm::Group> group, const TableOptions& options,
                           const Edition* edition, const Server* before)
    : group_(std::move(group)),
      options_(options),
      thread_(dstorm::start_quiet_thread([this, edition, before] { run(edition, before); })) {}

const Server* ServerThread::await_stopped() {
  if (thread_.joinable()) thread_.join();
  return has_failed_ ? nullptr : server_.get();
}

void ServerThread::stop() noexcept {
  if (group_->is_forked()) {  // the thread is the rank's
    if (thread_.joinable()) thread_.detach();
    return;
  }
  group_->leave();
  if (thread_.joinable()) thread_.join();
}

void ServerThread::run(const Edition* edition, const Server* before) {
  try {
    server_ = std::make_unique<Server>(group_, options_, edition, before);
  } catch (...) {
    group_->leave();
    made_.set_exception(std::current_exception());
    return;
  }
  made_.set_value();
  try {
    server_->run();
  } catch (const std::exception& error) {
    // The group has been left, or this rank was evicted, or has found damaged memory: for the other
    // ranks this server is dead from now on, and so it is for this rank's client.
    failure_ = error.what();
    has_failed_ = true;
    group_->leave();
  }
  server_->hide();
}

}  // namespace vol::ps
