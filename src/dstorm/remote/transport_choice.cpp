#include "dstorm/remote/transport_choice.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "dstorm/errors.hpp"
#include "dstorm/host/roll_call.hpp"
#include "dstorm/remote/tcp/change_receiver.hpp"
#include "dstorm/remote/tcp/change_sender.hpp"

namespace dstorm::remote {
namespace {

using std::chrono::milliseconds;
using Host = std::vector<int>;

constexpr milliseconds kLongestProof{5000};

// The result of a rank's proofs: this head, the partners with which they failed, and a Told for
// each of the first few of these.
struct VerdictHead {
  std::uint32_t failed;
  std::uint32_t told;
};
struct Told {
  std::int32_t partner;
  std::uint32_t is_echo;
  char text[504];
};
constexpr std::size_t kMostTold = 4;

// A pair of hosts, the lower first; and the reason why adapters cannot carry updates between them.
using Pair = std::pair<int, int>;
struct Obstacle {
  std::string text;
  bool is_echo;
};
using Obstacles = std::map<Pair, Obstacle>;

Pair pair_of(const host::Control& control, int a, int b) {
  return std::minmax(control.host_of(a), control.host_of(b));
}

// The first of `ranks` that has no adapter of this kind of network.
std::optional<int> lacking(const Host& ranks, const std::vector<AdapterRecord>& adapters,
                           const std::string& network) {
  const auto found = std::find_if(ranks.begin(), ranks.end(), [&](int r) {
    const AdapterRecord& its = adapters[static_cast<std::size_t>(r)];
    return !its.is_there || get_text(its.network) != network;
  });
  return found == ranks.end() ? std::nullopt : std::optional(*found);
}

// The obstacles that are known before anything is tried. Any rank of a host may have to take
// another's place, so all ranks of both hosts need adapters of one kind of network.
Obstacles obstacles_by_kind(const host::Control& control,
                            const std::vector<AdapterRecord>& adapters) {
  Obstacles found;
  const auto& hosts = control.hosts();
  for (std::size_t a = 0; a < hosts.size(); ++a) {
    const std::string network =
        get_text(adapters[static_cast<std::size_t>(hosts[a].front())].network);
    const auto in_a = lacking(hosts[a], adapters, network);
    for (std::size_t b = a + 1; b < hosts.size(); ++b) {
      const auto without = in_a ? in_a : lacking(hosts[b], adapters, network);
      if (!without) continue;
      const AdapterRecord& its = adapters[static_cast<std::size_t>(*without)];
      found[{static_cast<int>(a), static_cast<int>(b)}] = {
          "rank " + std::to_string(*without) +
              (its.is_there ? " has an adapter of another kind of network: "
                            : " uses no adapter: ") +
              get_text(its.text),
          false};
    }
  }
  return found;
}

// The ranks with which `rank` tries its adapter: its first proxy on each other host, and the ranks
// whose first proxy it is.
std::vector<int> partners_of(int rank, const host::Control& control, const Obstacles& obstacles) {
  std::set<int> partners;
  const Host& own = control.hosts()[static_cast<std::size_t>(control.host_of(rank))];
  for (const Host& host : control.hosts()) {
    if (host == own || obstacles.contains(pair_of(control, rank, host.front()))) continue;
    partners.insert(host[first_proxy(rank, host)]);
    for (const int other : host) {
      if (own[first_proxy(other, own)] == rank) partners.insert(other);
    }
  }
  return {partners.begin(), partners.end()};
}

Bytes pack(const std::vector<Proof::Reason>& given) {
  std::vector<Proof::Reason> reasons;  // echoes last
  for (const bool is_echo : {false, true}) {
    std::ranges::copy_if(given, std::back_inserter(reasons),
                         [&](const auto& reason) { return reason.is_echo == is_echo; });
  }
  Bytes bytes;
  const auto put = [&](const auto& record) {
    const auto part = std::as_bytes(std::span(&record, 1));
    bytes.insert(bytes.end(), part.begin(), part.end());
  };
  const std::size_t told = std::min(reasons.size(), kMostTold);
  put(VerdictHead{static_cast<std::uint32_t>(reasons.size()), static_cast<std::uint32_t>(told)});
  for (const auto& reason : reasons) put(std::int32_t{reason.partner});
  for (std::size_t i = 0; i < told; ++i) {
    Told one{reasons[i].partner, reasons[i].is_echo, {}};
    set_text(one.text, reasons[i].text);
    put(one);
  }
  return bytes;
}

// Adds what `rank` reports. If there are several reasons for a pair of hosts, the first one that is
// no echo counts.
void unpack(int rank, const Bytes& bytes, const host::Control& control, Obstacles& obstacles) {
  std::size_t at = 0;
  const auto get = [&](auto& record) {
    if (bytes.size() < at + sizeof(record)) {
      throw ConfigError("rank " + std::to_string(rank) +
                        " sent too few bytes; all ranks must run the same version of MALT");
    }
    std::memcpy(&record, bytes.data() + at, sizeof(record));
    at += sizeof(record);
  };
  const auto add = [&](int partner, const std::string& text, bool is_echo) {
    if (!control.is_member(partner)) return;
    const Pair pair = pair_of(control, rank, partner);
    const auto known = obstacles.find(pair);
    if (known != obstacles.end() && (is_echo || !known->second.is_echo)) return;
    obstacles[pair] = {"rank " + std::to_string(rank) + ": " + text, is_echo};
  };
  VerdictHead head{};
  get(head);
  std::vector<int> failed;
  for (std::uint32_t i = 0; i < head.failed; ++i) {
    std::int32_t partner = 0;
    get(partner);
    failed.push_back(partner);
  }
  for (std::uint32_t i = 0; i < head.told; ++i) {
    Told one{};
    get(one);
    add(one.partner, get_text(one.text), one.is_echo != 0);
  }
  for (const int partner : failed)
    add(partner, "cannot reach rank " + std::to_string(partner), true);
}

// Collective. Tries all pairs of hosts that have no obstacle, and adds the obstacles it finds.
void prove(Bootstrap& bootstrap, const host::Control& control,
           const std::vector<AdapterRecord>& adapters, const Adapter* own, const Deadline& deadline,
           Obstacles& obstacles) {
  const milliseconds limit =
      std::clamp(std::chrono::duration_cast<milliseconds>(deadline.left() / 4), milliseconds(1),
                 kLongestProof);
  std::vector<std::string> texts;
  for (const AdapterRecord& one : adapters) texts.push_back(get_text(one.text));
  std::unique_ptr<Proof> proof;
  if (own != nullptr) {
    proof =
        own->begin_proof(control.rank(), partners_of(control.rank(), control, obstacles), limit);
  }
  const auto offers = bootstrap.allgather(proof ? proof->offer() : Bytes{}, deadline);
  if (proof) proof->connect(offers, texts);
  bootstrap.allgather({}, deadline);
  if (proof) proof->write(texts);
  const auto verdicts =
      bootstrap.allgather(pack(proof ? proof->reasons() : std::vector<Proof::Reason>{}), deadline);
  for (const int r : control.members()) {
    unpack(r, verdicts[static_cast<std::size_t>(r)], control, obstacles);
  }
}

[[noreturn]] void refuse(const host::Control& control, const std::string& transport,
                         const Obstacles& obstacles) {
  constexpr std::size_t kMostNamed = 3;
  std::string text;
  std::size_t named = 0;
  for (const auto& [pair, obstacle] : obstacles) {
    if (named++ == kMostNamed) break;
    text += (text.empty() ? "transport " + transport + " cannot go between " : "; between ") +
            describe_ranks(control.hosts()[static_cast<std::size_t>(pair.first)]) + " and " +
            describe_ranks(control.hosts()[static_cast<std::size_t>(pair.second)]) + ": " +
            obstacle.text;
  }
  if (obstacles.size() > kMostNamed) {
    text += "; and between " + std::to_string(obstacles.size() - kMostNamed) + " pairs more";
  }
  throw ConfigError(text);
}

}  // namespace

TransportChoice choose_transports(Bootstrap& bootstrap, const host::Control& control,
                                  const std::vector<AdapterRecord>& adapters, const Adapter* own,
                                  const AdapterWish& wish, const Deadline& deadline) {
  using Use = AdapterWish::Use;
  const std::size_t hosts = control.hosts().size();
  Obstacles obstacles = obstacles_by_kind(control, adapters);
  if (wish.use == Use::kRequired && !obstacles.empty()) refuse(control, wish.transport, obstacles);
  const std::size_t untried = obstacles.size();
  if (wish.use != Use::kNever && obstacles.size() < hosts * (hosts - 1) / 2) {
    prove(bootstrap, control, adapters, own, deadline, obstacles);
  }
  if (wish.use == Use::kRequired && obstacles.size() > untried) {
    refuse(control, wish.transport, obstacles);
  }

  TransportChoice choice;
  choice.by_adapter.resize(adapters.size());
  choice.why.resize(adapters.size());
  const std::string here = get_text(adapters[static_cast<std::size_t>(control.rank())].text);
  for (const int r : control.members()) {
    if (control.is_local(r)) continue;
    const auto place = static_cast<std::size_t>(r);
    const auto found = obstacles.find(pair_of(control, control.rank(), r));
    choice.by_adapter[place] = wish.use != Use::kNever && found == obstacles.end();
    choice.why[place] = wish.use == Use::kNever ? "the job asks for tcp"
                        : found == obstacles.end()
                            ? "both have an adapter, and writes each way arrived; here " + here
                            : found->second.text;
  }
  return choice;
}

AdapterRecord record_of(const Adapter& adapter) {
  AdapterRecord record{};
  record.is_there = true;
  set_text(record.network, adapter.network());
  set_text(record.text, adapter.describe());
  return record;
}

std::unique_ptr<ChangeSender> make_change_sender(const Route& route) {
  const bool by_adapter = route.settings.by_adapter[static_cast<std::size_t>(route.host.front())];
  if (by_adapter) return route.settings.adapter->make_sender(route);
  return std::make_unique<tcp::ChangeSender>(route);
}

std::unique_ptr<ChangeReceiver> make_change_receiver(const Origin& origin) {
  const bool by_adapter = origin.settings.by_adapter[static_cast<std::size_t>(origin.sender)];
  if (by_adapter) return origin.settings.adapter->make_receiver(origin);
  return std::make_unique<tcp::ChangeReceiver>(origin);
}

}  // namespace dstorm::remote
