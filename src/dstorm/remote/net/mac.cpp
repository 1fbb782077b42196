#include "dstorm/remote/net/mac.hpp"

#include <algorithm>
#include <cstring>

#include "dstorm/remote/net/sha256.hpp"

namespace dstorm::net {
namespace {

// SHA-256 of the key, padded and changed by `change`, and of the message: half of RFC 2104's HMAC.
Mac keyed_hash(const Key& key, std::byte change, std::span<const std::byte> message) {
  static_assert(sizeof(Key) <= Sha256::kBlockBytes);
  std::array<std::byte, Sha256::kBlockBytes> pad;
  pad.fill(change);
  for (std::size_t i = 0; i < key.size(); ++i) pad[i] ^= key[i];
  Sha256 hash;
  hash.add(pad);
  explicit_bzero(pad.data(), pad.size());
  hash.add(message);
  return hash.finish();
}

}  // namespace

Mac authenticate(const Key& key, std::span<const std::byte> message) {
  return keyed_hash(key, std::byte{0x5c}, keyed_hash(key, std::byte{0x36}, message));
}

bool is_same(std::span<const std::byte> left, std::span<const std::byte> right) {
  if (left.size() != right.size()) return false;
  // Volatile, so that the compiler cannot end the loop at the first difference.
  volatile unsigned char difference = 0;
  for (std::size_t i = 0; i < left.size(); ++i) {
    difference = difference | std::to_integer<unsigned char>(left[i] ^ right[i]);
  }
  return difference == 0;
}

}  // namespace dstorm::net
