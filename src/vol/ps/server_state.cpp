#include "vol/ps/server_state.hpp"

#include <algorithm>
#include <utility>

namespace vol::ps {

void Clocks::note(std::size_t client, std::uint64_t clock) {
  clocks_[client] = clock;
  told_[client].store(clock, std::memory_order_relaxed);
}

void Clocks::begin(std::span<const std::uint64_t> clocks, const std::vector<int>& clients) {
  for (std::size_t client = 0; client < clocks.size(); ++client) note(client, clocks[client]);
  lowest_ = kBye;
  for (const int client : clients) {
    lowest_ = std::min(lowest_, clocks_[static_cast<std::size_t>(client)]);
  }
}

std::uint64_t Clocks::lowest_of_live(const Members& members) const {
  std::uint64_t lowest = kBye;
  for (std::size_t client = 0; client < clocks_.size(); ++client) {
    if (members.is_client_live(client)) lowest = std::min(lowest, clocks_[client]);
  }
  return lowest;
}

std::vector<int> Clocks::behind(std::uint64_t clock, const std::vector<int>& clients) const {
  std::vector<int> found;
  for (const int client : clients) {
    const auto& reached = told_[static_cast<std::size_t>(client)];
    if (reached.load(std::memory_order_relaxed) < clock) found.push_back(client);
  }
  return found;
}

ServerState::ServerState(std::shared_ptr<dstorm::Group> group, const TableOptions& given)
    : options(given),
      clients(group->size() / 2),
      ranks(given.ranks),
      placement(given.rows, given.ranks, given.replicas, clients, given.owners),
      mail(std::move(group), given.name, kSlotBytes, kDepth),
      own(mail.rank() - clients),
      reader(options, clients, mail),
      writer(options, clients, mail),
      members(clients),
      clocks(static_cast<std::size_t>(clients)) {}

bool ServerState::may_take_over(int server) const {
  if (!members.is_live(server)) return false;
  return !members.is_handing_over ||
         (server != own && !members.leaving[static_cast<std::size_t>(server)]);
}

}  // namespace vol::ps
