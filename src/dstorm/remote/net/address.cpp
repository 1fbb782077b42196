// Addresses of this host, and which of them another host can reach. The system answers three
// questions: getifaddrs() lists the interfaces, getaddrinfo() turns a name into addresses, and a
// datagram socket that is connected to an address, without sending anything, shows the local
// address from which packets leave towards it. choose_address() then prefers an address on a
// network that both hosts are on, then one from which a route leads to the other host, then a
// link-local one.
#include "dstorm/remote/net/address.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "dstorm/errors.hpp"

namespace dstorm::net {
namespace {

using Resolved = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Resolved resolve(const std::string& host, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) found = nullptr;
  return {found, &freeaddrinfo};
}

// Whether the first `bits` bits of both addresses are the same.
bool share_prefix(const Address& a, const Address& b, int bits) {
  if (a.family() != b.family()) return false;
  const auto at = [](const Address& address, int i) {
    return address.ip()[static_cast<std::size_t>(i)];
  };
  for (int i = 0; i < bits / 8; ++i) {
    if (at(a, i) != at(b, i)) return false;
  }
  return bits % 8 == 0 || ((at(a, bits / 8) ^ at(b, bits / 8)) >> (8 - bits % 8)) == 0;
}

// The preference among addresses: the lowest value is the best to be reached at.
int rank_of(const Address& address) {
  if (address.is_loopback()) return 3;
  if (address.is_link_local()) return 2;
  return address.family() == AF_INET6 ? 1 : 0;
}

// The best address of `all` for which `fits` holds.
template <class Fits>
std::optional<Address> best_of(const std::vector<Interface>& all, Fits&& fits) {
  std::optional<Address> best;
  for (const Interface& interface : all) {
    if (!fits(interface)) continue;
    if (!best || rank_of(interface.address) < rank_of(*best)) best = interface.address;
  }
  return best;
}

bool has(const std::vector<Interface>& all, const Interface& wanted) {
  const auto same = [&](const Interface& one) {
    return share_prefix(one.address, wanted.address,
                        static_cast<int>(wanted.address.ip().size()) * 8);
  };
  return std::any_of(all.begin(), all.end(), same);
}

bool has_all(const std::vector<Interface>& all, const std::vector<Interface>& wanted) {
  return std::all_of(wanted.begin(), wanted.end(),
                     [&](const Interface& one) { return has(all, one); });
}

std::optional<Address> address_toward(const Address& there) {
  const Descriptor socket(::socket(there.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  // Any port will do: connecting a datagram socket only selects the route.
  const Address to = there.with_port(9);
  if (!socket || ::connect(socket.get(), to.get(), to.size()) != 0) return std::nullopt;
  sockaddr_storage local{};
  socklen_t bytes = sizeof(local);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local), &bytes) != 0) {
    return std::nullopt;
  }
  const auto found = Address::from(reinterpret_cast<const sockaddr*>(&local));
  return found ? std::optional(found->with_port(0)) : std::nullopt;
}

[[noreturn]] void throw_not_here(std::string_view wanted, const std::vector<Interface>& all,
                                 const std::string& why) {
  std::string list;
  for (const Interface& one : all) {
    list += (list.empty() ? "" : ", ") + one.name + " " + one.address.host() + "/" +
            std::to_string(one.prefix_bits);
  }
  throw ConfigError("MALT_INTERFACE is '" + std::string(wanted) + "', " + why +
                    "; it takes an interface or a network (CIDR) that this host has: " +
                    (list.empty() ? "none is up" : list));
}

}  // namespace

std::optional<Address> Address::from(const sockaddr* address) {
  Address made;
  if (address == nullptr) return std::nullopt;
  // Field by field, because the bytes that the system leaves in the padding are not part of an
  // address.
  if (address->sa_family == AF_INET) {
    sockaddr_in given{};
    std::memcpy(&given, address, sizeof(given));
    made.v4_.sin_family = AF_INET;
    made.v4_.sin_port = given.sin_port;
    made.v4_.sin_addr = given.sin_addr;
    return made;
  }
  if (address->sa_family == AF_INET6) {
    sockaddr_in6 given{};
    std::memcpy(&given, address, sizeof(given));
    made.v6_.sin6_family = AF_INET6;
    made.v6_.sin6_port = given.sin6_port;
    made.v6_.sin6_addr = given.sin6_addr;
    made.v6_.sin6_scope_id = given.sin6_scope_id;
    return made;
  }
  return std::nullopt;
}

std::optional<Address> Address::parse(const std::string& host, std::uint16_t port) {
  const Resolved found = resolve(host, AI_NUMERICHOST);
  const auto address = found ? from(found->ai_addr) : std::nullopt;
  return address ? std::optional(address->with_port(port)) : std::nullopt;
}

socklen_t Address::size() const noexcept {
  if (family() == AF_INET) return sizeof(v4_);
  return family() == AF_INET6 ? sizeof(v6_) : 0;
}

std::uint16_t Address::port() const noexcept {
  return ntohs(family() == AF_INET ? v4_.sin_port : v6_.sin6_port);
}

std::span<const std::uint8_t> Address::ip() const noexcept {
  if (family() == AF_INET) {
    return {reinterpret_cast<const std::uint8_t*>(&v4_.sin_addr), sizeof(v4_.sin_addr)};
  }
  if (family() == AF_INET6) return {v6_.sin6_addr.s6_addr, sizeof(v6_.sin6_addr)};
  return {};
}

bool Address::is_loopback() const noexcept {
  if (family() == AF_INET) return ip()[0] == IN_LOOPBACKNET;
  return family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6_.sin6_addr);
}

bool Address::is_link_local() const noexcept {
  if (family() == AF_INET) return ip()[0] == 169 && ip()[1] == 254;  // RFC 3927
  return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6_.sin6_addr);
}

std::string Address::host() const {
  if (family() == AF_UNSPEC) return "no address";
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(family(), ip().data(), text, sizeof(text));
  std::string host = text;
  if (family() == AF_INET6 && v6_.sin6_scope_id != 0) {
    char name[IF_NAMESIZE] = {};
    const bool known = if_indextoname(v6_.sin6_scope_id, name) != nullptr;
    host += "%" + (known ? std::string(name) : std::to_string(v6_.sin6_scope_id));
  }
  return host;
}

std::string Address::text() const {
  if (family() == AF_UNSPEC) return host();
  const std::string port_text = ":" + std::to_string(port());
  return family() == AF_INET ? host() + port_text : "[" + host() + "]" + port_text;
}

Address Address::with_port(std::uint16_t port) const noexcept {
  Address changed = *this;
  if (family() == AF_INET) changed.v4_.sin_port = htons(port);
  if (family() == AF_INET6) changed.v6_.sin6_port = htons(port);
  return changed;
}

Address Address::with_scope_of(const Address& local) const noexcept {
  Address changed = *this;
  if (family() == AF_INET6 && is_link_local()) {
    changed.v6_.sin6_scope_id = local.family() == AF_INET6 ? local.v6_.sin6_scope_id : 0;
  }
  return changed;
}

bool Address::operator==(const Address& other) const noexcept {
  return family() == other.family() && port() == other.port() &&
         std::equal(ip().begin(), ip().end(), other.ip().begin()) &&
         (family() != AF_INET6 || v6_.sin6_scope_id == other.v6_.sin6_scope_id);
}

std::vector<Interface> interfaces() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) {
    throw ConfigError(std::string("cannot list this host's network interfaces: ") +
                      std::strerror(errno));
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first, &freeifaddrs);
  std::vector<Interface> all;
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    const auto address = Address::from(one->ifa_addr);
    // The family of a mask is not always filled in; it is that of the address.
    if (!address || one->ifa_netmask == nullptr) continue;
    constexpr unsigned kUsable = IFF_UP | IFF_RUNNING;
    if ((one->ifa_flags & kUsable) != kUsable) continue;
    sockaddr_storage mask{};
    std::memcpy(&mask, one->ifa_netmask, address->size());
    mask.ss_family = static_cast<sa_family_t>(address->family());
    int bits = 0;
    const auto mask_address = Address::from(reinterpret_cast<const sockaddr*>(&mask));
    for (const std::uint8_t byte : mask_address->ip()) bits += std::popcount(byte);
    all.push_back({one->ifa_name, *address, bits, (one->ifa_flags & IFF_LOOPBACK) != 0});
  }
  return all;
}

Address address_of(std::string_view wanted) {
  const std::vector<Interface> all = interfaces();
  if (const auto named = best_of(all, [&](const Interface& one) { return one.name == wanted; })) {
    return *named;
  }
  const std::size_t slash = wanted.find('/');
  const auto network = Address::parse(std::string(wanted.substr(0, slash)));
  if (!network) throw_not_here(wanted, all, "which is neither an interface nor a network here");
  const int most = static_cast<int>(network->ip().size()) * 8;
  int bits = most;
  if (slash != std::string_view::npos) {
    const char* end = wanted.data() + wanted.size();
    const auto read = std::from_chars(wanted.data() + slash + 1, end, bits);
    if (read.ec != std::errc() || read.ptr != end || bits < 0 || bits > most) {
      throw_not_here(wanted, all, "whose prefix is not 0 to " + std::to_string(most) + " bits");
    }
  }
  const auto found =
      best_of(all, [&](const Interface& one) { return share_prefix(one.address, *network, bits); });
  if (!found) throw_not_here(wanted, all, "in which this host has no address");
  return *found;
}

std::optional<Address> address_toward(const std::string& host) {
  const Resolved found = resolve(host, 0);
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    const auto there = Address::from(one->ai_addr);
    if (!there) continue;
    if (const auto local = address_toward(*there)) return local;
  }
  return std::nullopt;
}

std::optional<Address> choose_address(const std::vector<Interface>& mine,
                                      const std::vector<Interface>& theirs) {
  const auto any = [](const Interface&) { return true; };
  if (has_all(mine, theirs) && has_all(theirs, mine)) return best_of(mine, any);

  const auto is_joined = [&](const Interface& own) {
    if (own.is_loopback || has(theirs, own)) return false;
    return std::any_of(theirs.begin(), theirs.end(), [&](const Interface& other) {
      return share_prefix(own.address, other.address, std::max(own.prefix_bits, other.prefix_bits));
    });
  };
  const auto joined = best_of(mine, is_joined);
  // Every two hosts have the link-local network in common, whether they are on one link or not.
  if (joined && !joined->is_link_local()) return joined;

  std::optional<Address> routed;
  for (const Interface& other : theirs) {
    if (other.is_loopback || other.address.is_link_local() || has(mine, other)) continue;
    const auto local = address_toward(other.address);
    if (!local || local->is_loopback() || local->is_link_local()) continue;
    if (!routed || rank_of(*local) < rank_of(*routed)) routed = local;
  }
  return routed ? routed : joined;
}

std::pair<UnforkedDescriptor, Address> listen_at(const Address& at) {
  const auto fail = [&](const std::string& what) {
    const int error = errno;
    const char* hint = "; is the address one of this host's?";
    if (error == EMFILE || error == ENFILE) hint = "; raise the limit on open files (ulimit -n)";
    if (error == EADDRINUSE) hint = "; another program has that port: choose another, or port 0";
    if (error == EACCES) hint = "; ports below 1024 are for root: choose another, or port 0";
    throw ConfigError("cannot " + what + " " + at.text() + ": " + std::strerror(error) + hint);
  };
  UnforkedDescriptor socket(
      [&] { return ::socket(at.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  if (!socket) fail("make a socket for");
  const int on = 1;
  // A port that the user chose can be used again as soon as its last owner has ended.
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (at.family() == AF_INET6) {
    setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
  }
  if (::bind(socket.get(), at.get(), at.size()) != 0) fail("bind to");
  // The system lowers it to what it allows (net.core.somaxconn).
  constexpr int kBacklog = 65535;
  if (::listen(socket.get(), kBacklog) != 0) fail("listen at");
  sockaddr_storage bound{};
  socklen_t bytes = sizeof(bound);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &bytes) != 0) {
    fail("find the port of");
  }
  return {std::move(socket), Address::from(reinterpret_cast<const sockaddr*>(&bound)).value()};
}

}  // namespace dstorm::net
