#include "vol/ps/server_thread.hpp"

#include "dstorm/host/quiet_thread.hpp"

namespace vol::ps {

ServerThread::ServerThread(std::shared_ptr<dstorm::Group> group, const TableOptions& options,
                           const Edition* edition, const Server* before,
                           std::optional<dstorm::Deadline> deadline)
    : group_(std::move(group)),
      options_(options),
      thread_(dstorm::start_quiet_thread(
          [this, edition, before, limit = deadline ? *deadline : group_->deadline()] {
            run(edition, before, limit);
          })) {}

const Server* ServerThread::await_stopped() {
  if (thread_.joinable()) thread_.join();
  return has_failed_ ? nullptr : server_.get();
}

void ServerThread::stop(std::optional<std::chrono::nanoseconds> limit) noexcept {
  if (group_->is_forked()) {  // the thread is the rank's
    if (thread_.joinable()) thread_.detach();
    return;
  }
  group_->leave(limit);
  if (thread_.joinable()) thread_.join();
}

void ServerThread::run(const Edition* edition, const Server* before,
                       const dstorm::Deadline& deadline) {
  try {
    const dstorm::Group::Within within(*group_, deadline);
    server_ = std::make_unique<Server>(group_, options_, edition, before);
  } catch (...) {
    group_->leave(deadline.left());
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
