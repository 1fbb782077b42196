// Socket addresses, and the choice of the address at which a rank listens.
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

namespace dstorm::net {

// An IPv4 or IPv6 socket address, or none. It has a fixed size and no pointers, so it goes to other
// processes as bytes. The scope of a link-local IPv6 address is the number of an interface of the
// host that made the address; on another host it means nothing.
class Address {
 public:
  Address() = default;
  // Returns nullopt if `address` is null or of another family.
  static std::optional<Address> from(const sockaddr* address);
  // Parses a numeric address ("10.0.0.5", "fe80::1%eth0"). Returns nullopt if `host` is none.
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
  // This address as it is reached from `local`, an address of this host: a link-local address is
  // then on the link of `local`.
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

// The address that MALT_INTERFACE selects. `wanted` is the name of an interface, an address or a
// network ("eth1", "10.0.0.5", "10.0.0.0/8", "fd00::/8"). Throws ConfigError that lists the
// addresses there are.
Address address_of(std::string_view wanted);

// The local address that packets to `host` (a name or a numeric address) leave from; nullopt if the
// name is unknown or there is no route. Sends nothing to the host, but may ask the name server and
// block meanwhile.
std::optional<Address> address_toward(const std::string& host);

// The address among `mine`, the addresses of this host, by which another host with the addresses
// `theirs` reaches this one. It is an address on a network that both hosts are on, IPv4 first; or
// else the one from which the route to the other host leaves; or else a link-local one. An address
// that both hosts have (such as the bridge of each host's containers) does not join them, unless
// all their addresses are the same and they are one host. Returns nullopt if there is none.
std::optional<Address> choose_address(const std::vector<Interface>& mine,
                                      const std::vector<Interface>& theirs);

// Makes a listening socket that does not block, and returns it with the address it listens at (port
// 0: the system chooses one). Throws ConfigError.
std::pair<UnforkedDescriptor, Address> listen_at(const Address& at);

}  // namespace dstorm::net
