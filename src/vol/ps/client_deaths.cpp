// When servers die, a client sends again what they had not answered.
#include <algorithm>
#include <string>
#include <utility>

#include "dstorm/errors.hpp"
#include "vol/ps/client.hpp"

namespace vol::ps {
namespace {

std::string describe(std::int64_t first, std::int64_t last) {
  return "rows " + std::to_string(first) + " to " + std::to_string(last);
}

}  // namespace

void Client::note_lost(std::int64_t row) {
  const std::size_t range = placement_.range_of(row);
  std::vector<int> dead;
  for (int place = 0; place <= placement_.replicas(); ++place) {
    const int server = placement_.server(range, place);
    if (!mail_.is_live(servers_ + server)) dead.push_back(server);
  }
  std::ranges::sort(dead);
  if (dead.empty()) dead = lost_with_;
  std::string text =
      describe(placement_.first_row(range), placement_.end_row(range) - 1) +
      (options_.owners.empty() ? "" : " in the order of the partition") + " are lost with " +
      dstorm::describe_ranks(dead) +
      ", and others may be; with replicas=" + std::to_string(options_.replicas) +
      " a table survives " +
      (options_.replicas == 0 ? "no death"
                              : std::to_string(options_.replicas) + " deaths at a time") +
      "; raise replicas, or restore the table from a checkpoint (malt.restore)";
  const std::string reason = own_server_.failure();
  if (!reason.empty()) text += ". This rank's server ended: " + reason;
  note_failure(text, dead);
}

int Client::primary(std::size_t range) const {
  return placement_.primary(range, [this](int s) { return live_[static_cast<std::size_t>(s)]; });
}

void Client::follow_view() {
  bool has_changed = false;
  for (std::size_t server = 0; server < live_.size(); ++server) {
    if (!live_[server] || mail_.is_live(servers_ + static_cast<int>(server))) continue;
    live_[server] = false;
    shown_[server].reset();
    has_changed = true;
  }
  if (!has_changed) return;
  for (std::size_t range = 0; range < primary_.size(); ++range) primary_[range] = primary(range);
  const auto is_dead = [this](int server) { return !live_[static_cast<std::size_t>(server)]; };
  std::vector<Sent> again;  // in the order of their ids, and so of their numbers for each range
  for (auto each = sent_.begin(); each != sent_.end();) {
    if (!is_dead(each->second.to)) {
      ++each;
      continue;
    }
    again.push_back(std::move(each->second));
    each = sent_.erase(each);
  }
  for (const Sent& sent : again) send_again(sent);
  std::vector<Part> asked;
  for (auto each = pull_.parts.begin(); each != pull_.parts.end();) {
    if (!is_dead(each->second.to)) {
      ++each;
      continue;
    }
    asked.push_back(std::move(each->second));
    each = pull_.parts.erase(each);
  }
  for (const Part& part : asked) send_again(part);
}

// Asks the primaries for hot rows that a server has called lost. It may know of a death of which
// this client does not, and which note_lost would have to name; a primary is asked as this client
// sees it. Returns false if no hot rows were asked for in message `id`.
bool Client::ask_primary(std::uint64_t id) {
  const auto found = pull_.parts.find(id);
  if (found == pull_.parts.end() || !found->second.is_hot) return false;
  Part part = std::move(found->second);
  pull_.parts.erase(found);
  part.is_hot = false;
  send_again(part);
  return true;
}

// A part of the pull in progress whose server has died.
void Client::send_again(const Part& part) {
  for (Part& piece : split(pull_.rows, part.stretches, part.is_hot)) send_pull(std::move(piece));
}

void Client::send_again(const Sent& sent) {
  if (sent.gradients.empty()) return note_lost(sent.row);
  const std::int64_t* const keys = sent.keys.empty() ? nullptr : sent.keys.data();
  send_push({keys, sent.row, sent.count}, sent.gradients.data(), sent.push, sent.clock);
}

}  // namespace vol::ps
