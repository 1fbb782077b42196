// Where a rank listens, and which of a host's addresses that should be.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dstorm/host/fork.hpp"

namespace dstorm::tcp {

// An IPv4 or IPv6 socket address, or none. Fixed size, no pointers: it crosses process borders as
// bytes. The scope of a link-local IPv6 address is the number of an interface of the host that made
// it; on another host it means nothing.
class Address {
 public:
  Address() = default;
  // nullopt if it is null or of another family.
  static std::optional<Address> from(const sockaddr* address);
  // A numeric address ("10.0.0.5", "fe80::1%eth0"); nullopt if `host` is none.
  static std::optional<Address> parse(const std::string& host, std::uint16_t port = 0);

  std::string text() const;  // "10.0.0.5:41000", "[fe80::1%eth0]:41000"
  std::string host() const;  // "10.0.0.5", "fe80::1%eth0"
  const sockaddr* get() const noexcept { return &any_; }
  socklen_t size() const noexcept;
  int family() const noexcept { return any_.sa_family; }  // AF_UNSPEC: none
  std::uint16_t port() const noexcept;
  std::span<const std::uint8_t> ip() const noexcept;  // its 4 or 16 bytes
  bool is_loopback() const noexcept;
  bool is_link_local() const noexcept;

  Address with_port(std::uint16_t port) const noexcept;
  // As it is reached from `local`, an address of this host: a link-local address lies on the link
  // of `local`.
  Address with_scope_of(const Address& local) const noexcept;

  bool operator==(const Address& other) const noexcept;

 private:
  union {
    sockaddr any_;
    sockaddr_in v4_;
    sockaddr_in6 v6_{};
  };
};

// One address of an interface.
struct Interface {
  std::string name;
  Address address;  // port 0
  int prefix_bits;
  bool is_loopback;
};

// The addresses of this host's interfaces that are up and have a carrier. Throws ConfigError.
std::vector<Interface> interfaces();

// What MALT_INTERFACE says: an interface's name, an address or a network ("eth1", "10.0.0.5",
// "10.0.0.0/8", "fd00::/8"). Throws ConfigError that lists what there is.
Address address_of(std::string_view wanted);

// The local address that packets towards `host` (a name or a numeric address) leave from; nullopt
// if the name is unknown or there is no route. Sends nothing to the host; may ask the name server.
std::optional<Address> address_toward(const std::string& host);

// Of `mine`, this host's, the address by which another host, which has `theirs`, reaches this one:
// the one on a network both are on, IPv4 first; else the one the route towards theirs leaves from;
// else a link-local one. An address that both have (the bridge of every host's containers) does not
// join them, unless they have all in common and so are one host. nullopt if there is none.
std::optional<Address> choose_address(const std::vector<Interface>& mine,
                                      const std::vector<Interface>& theirs);

// A listening socket that does not block, and where it listens (port 0: the system chooses).
// Throws ConfigError.
std::pair<UnforkedDescriptor, Address> listen_at(const Address& at);

}  // namespace dstorm::tcp
