// The ranks for which a call of a client waits, as its errors name them.
#include <algorithm>
#include <utility>

#include "dstorm/errors.hpp"
#include "vol/ps/client.hpp"

namespace vol::ps {

std::vector<int> Client::awaited() const {
  std::vector<int> asked;    // for an answer that has not come
  std::vector<int> holders;  // of copies, for which those may wait
  for (const auto& [id, sent] : sent_) {
    asked.push_back(sent.to);
    const std::vector<int> copies = copies_of(sent);
    holders.insert(holders.end(), copies.begin(), copies.end());
  }
  for (const auto& [id, part] : pull_.parts) asked.push_back(part.to);

  // A server that leaves a message lying is to blame, but for this rank's own one: it runs as this
  // client does, unless it waits for copies. If no server does, an answer waits for copies.
  std::vector<int> ranks = asked;
  ranks.insert(ranks.end(), holders.begin(), holders.end());
  for (int server = 0; server < servers_ && asked.empty(); ++server) {  // for room: P5, owes_
    if (live_[static_cast<std::size_t>(server)]) ranks.push_back(server);
  }
  const auto is_own = [this](int server) { return server == mail_.rank(); };
  std::erase_if(
      ranks, [&](int server) { return is_own(server) || mail_.has_taken_all(servers_ + server); });
  if (ranks.empty()) ranks = holders.empty() ? asked : holders;
  if (ranks.empty() && !mail_.has_taken_all(servers_ + mail_.rank())) return {mail_.rank()};
  if (!std::ranges::all_of(ranks, is_own)) std::erase_if(ranks, is_own);
  std::ranges::sort(ranks);
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

std::vector<int> Client::copies_of(const Sent& sent) const {
  std::vector<int> copies;
  const std::int64_t last =
      sent.keys.empty() ? sent.row + static_cast<std::int64_t>(sent.count) - 1 : sent.keys.back();
  for (std::size_t range = placement_.range_of(sent.row); range <= placement_.range_of(last);
       ++range) {
    const std::vector<int> holders = placement_.holders(
        range, [this](int server) { return live_[static_cast<std::size_t>(server)]; });
    if (!holders.empty() && holders.front() == sent.to) {
      copies.insert(copies.end(), holders.begin() + 1, holders.end());
    }
  }
  return copies;
}

// The live ranks that have not come to this clock, as far as this rank's server knows.
std::vector<int> Client::behind(std::uint64_t clock) const {
  std::vector<int> ranks = own_server_.behind(clock);
  std::erase_if(ranks, [this](int rank) { return !mail_.is_live(rank) || rank == mail_.rank(); });
  return ranks;
}

std::pair<std::vector<int>, std::string> Client::missing(std::optional<std::uint64_t> clock) const {
  const std::vector<int> behind = clock ? this->behind(*clock) : std::vector<int>();
  if (!behind.empty()) {
    const bool is_close = *clock == kIsDead;
    return {behind, dstorm::describe_ranks(behind) +
                        (is_close ? " did not close it"
                                  : " did not come to clock " + std::to_string(*clock))};
  }
  const std::vector<int> servers = awaited();  // none: other clients have to call it first
  if (servers.empty()) return {{}, "some other rank has not come so far"};
  return {servers, dstorm::describe_ranks(servers) + " did not answer"};
}

}  // namespace vol::ps
