// SHA-256 (FIPS 180-4). It is here, and not from OpenSSL, so that ranks and launchers can prove the
// job's key on machines without OpenSSL 3, which only TLS needs (openssl.hpp). It computes with
// additions and shifts alone, so its time does not depend on the values that it hashes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace dstorm::net {

// For one thread. All that it holds of the message is wiped when it is destroyed.
class Sha256 {
 public:
  static constexpr std::size_t kBlockBytes = 64;
  using Digest = std::array<std::byte, 32>;

  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(std::span<const std::byte> message);
  Digest finish();  // the last call

 private:
  void compress();  // block_ is full

  std::array<std::uint32_t, 8> state_;
  std::array<std::byte, kBlockBytes> block_{};
  std::size_t block_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
};

}  // namespace dstorm::net
