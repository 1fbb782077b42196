// Addresses as text, and the interfaces that a rank of another host says it has.
//
// input: the text's length (1 byte), the text, then interfaces: bits of the network (4 bytes),
// address
#include "dstorm/remote/net/address.hpp"

#include <string>
#include <vector>

#include "target.hpp"

namespace fuzz {
namespace {

using dstorm::net::Address;
using dstorm::net::Interface;

void read_text(const std::string& text) {
  if (const auto address = Address::parse(text, 41000)) {
    require(address->size() > 0 && address->port() == 41000, "what is read is an address");
    const std::string host = address->host();
    const auto again = Address::parse(host, 41000);
    // The system takes an interface's number behind any address, its name behind link-local ones.
    const bool is_odd = !address->is_link_local() && host.find('%') != std::string::npos;
    require(is_odd || (again && *again == *address), "an address is read as it is written");
  }
  is_refused([&] { dstorm::net::address_of(text); });
}

// As in a record of a roll call: any bytes, of any family.
Interface take_interface(Input& input) {
  Interface made{"eth0", {}, input.take<std::int32_t>(), false};
  static_assert(std::is_trivially_copyable_v<Address>);
  made.address = input.take<Address>();
  return made;
}

}  // namespace

void run(Input input) {
  const auto length = input.take<std::uint8_t>();
  const std::span<const std::byte> text = input.bytes(length);
  read_text({reinterpret_cast<const char*>(text.data()), text.size()});
  static const std::vector<Interface> mine{{"eth0", Address::parse("10.1.2.3").value(), 24, false},
                                           {"eth1", Address::parse("fd00::7").value(), 64, false},
                                           {"lo", Address::parse("127.0.0.1").value(), 8, true}};
  std::vector<Interface> theirs;
  while (!input.empty()) theirs.push_back(take_interface(input));
  if (const auto chosen = dstorm::net::choose_address(mine, theirs)) {
    require(chosen->size() > 0, "what is chosen is an address");
  }
  for (const Interface& one : theirs) one.address.text();
}

}  // namespace fuzz
