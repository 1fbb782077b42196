#include "dstorm/collective/collectors.hpp"

#include <map>

namespace dstorm {

Collectors::Collectors(std::size_t members, std::size_t parts, const std::vector<int>& hosts)
    : members_(members) {
  std::map<int, std::vector<std::size_t>> members_of;
  for (std::size_t i = 0; i < hosts.size(); ++i) members_of[hosts[i]].push_back(i);
  if (members_of.size() < 2 || members_of.size() == members) return;
  hosts_ = members_of.size();
  host_of_.resize(members);
  std::vector<std::vector<std::size_t>> by_host;
  for (auto& [number, there] : members_of) {
    for (const std::size_t i : there) host_of_[i] = by_host.size();
    by_host.push_back(std::move(there));
  }
  std::vector<std::size_t> turns(hosts_);
  table_.reserve(parts * hosts_);
  for (std::size_t part = 0; part < parts; ++part) {
    for (std::size_t host = 0; host < hosts_; ++host) {
      const std::vector<std::size_t>& there = by_host[host];
      const bool is_owners = host == host_of_[owner(part)];
      table_.push_back(is_owners ? owner(part) : there[turns[host]++ % there.size()]);
    }
  }
  for (const auto& there : by_host) sizes_.push_back(there.size());
}

std::size_t Collectors::senders(std::size_t part, std::size_t to) const {
  if (!are_by_host()) return members_ - 1;
  const std::size_t of_host = sizes_[host_of_[to]] - 1;
  return owner(part) == to ? of_host + hosts_ - 1 : of_host;
}

}  // namespace dstorm
