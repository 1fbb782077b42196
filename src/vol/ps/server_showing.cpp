// The server's side of rows that clients on its host read in place (P9).
#include <cstring>

#include "dstorm/errors.hpp"
#include "dstorm/host/memory.hpp"
#include "vol/ps/server.hpp"

namespace vol::ps {
namespace {

// A table is shown if its values take at most this part of the memory that is available.
constexpr std::size_t kShownPart = 4;

}  // namespace

// Clients read in place what they would get by messages, so not with a codec. All pages of a range
// are backed once it is shown. So a table of far more rows than are ever pushed to is not shown.
void Server::show() {
  if (!mail_.group().is_one_host() || options_.coder(1).is_on()) return;
  const std::size_t bytes = static_cast<std::size_t>(options_.rows) * options_.row_bytes();
  if (bytes > dstorm::host::available_bytes() / kShownPart) return;
  try {
    shown_.emplace(options_, placement_);
  } catch (const dstorm::ConfigError&) {
    return;  // no room: clients pull by messages
  }
  shown_->set_clock(lowest_);
  Head head{};
  head.kind = Head::Kind::kShown;
  const ShownAt at = shown_->at();
  for (int client = 0; client < clients_; ++client) {
    std::byte* const room = mail_.begin(client, kHeadBytes + sizeof(at));
    std::memcpy(room, &head, sizeof(head));
    std::memcpy(room + kHeadBytes, &at, sizeof(at));
    mail_.end();
  }
}

void Server::hide() noexcept {
  for (const Held& held : held_) {
    if (held.range != nullptr && (is_stopped_ || held.range.use_count() > 1)) held.range->hide();
  }
}

// Shows the range before this server first changes it as its primary.
void Server::show(std::size_t range) {
  const Held& held = held_[range];
  if (!held.is_primary || !shown_ || is_full_ || held.range->is_shown()) return;
  try {
    held.range->show(shown_->reserve(range));
  } catch (const dstorm::ConfigError&) {
    is_full_ = true;  // clients pull this range by messages
  }
}

void Server::apply(std::size_t range, const Rows& rows, const std::byte* gradients) {
  show(range);
  held_[range].range->apply(rows, gradients);
}

}  // namespace vol::ps
