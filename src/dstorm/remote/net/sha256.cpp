#include "dstorm/remote/net/sha256.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace dstorm::net {
namespace {

// The first bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::array<std::uint32_t, 64> kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t big_endian_at(const std::byte* bytes) {
  std::uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word = word << 8 | std::to_integer<std::uint32_t>(bytes[i]);
  return word;
}

void put_big_endian(std::uint64_t value, std::span<std::byte> into) {
  for (auto byte = into.rbegin(); byte != into.rend(); ++byte, value >>= 8) {
    *byte = static_cast<std::byte>(value & 0xff);
  }
}

}  // namespace

// The fractional parts of the square roots of the first eight primes.
Sha256::Sha256()
    : state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
             0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19} {}

Sha256::~Sha256() {
  explicit_bzero(state_.data(), sizeof(state_));
  explicit_bzero(block_.data(), sizeof(block_));
}

void Sha256::add(std::span<const std::byte> message) {
  total_bytes_ += message.size();
  while (!message.empty()) {
    const std::size_t bytes = std::min(message.size(), block_.size() - block_bytes_);
    std::memcpy(block_.data() + block_bytes_, message.data(), bytes);
    block_bytes_ += bytes;
    message = message.subspan(bytes);
    if (block_bytes_ == block_.size()) compress();
  }
}

Sha256::Digest Sha256::finish() {
  const std::uint64_t bits = total_bytes_ * 8;
  block_[block_bytes_++] = std::byte{0x80};
  if (block_bytes_ > block_.size() - sizeof(bits)) {
    std::fill(block_.begin() + static_cast<std::ptrdiff_t>(block_bytes_), block_.end(),
              std::byte{0});
    compress();
  }
  std::fill(block_.begin() + static_cast<std::ptrdiff_t>(block_bytes_), block_.end(), std::byte{0});
  put_big_endian(bits, std::span(block_).last<sizeof(bits)>());
  compress();
  Digest digest{};
  for (std::size_t i = 0; i < state_.size(); ++i) {
    put_big_endian(state_[i], std::span(digest).subspan(4 * i, 4));
  }
  return digest;
}

// FIPS 180-4, section 6.2.2.
void Sha256::compress() {
  std::array<std::uint32_t, 64> words;
  for (std::size_t t = 0; t < 16; ++t) words[t] = big_endian_at(block_.data() + 4 * t);
  for (std::size_t t = 16; t < words.size(); ++t) {
    const std::uint32_t near = words[t - 2];
    const std::uint32_t far = words[t - 15];
    words[t] = (std::rotr(near, 17) ^ std::rotr(near, 19) ^ near >> 10) + words[t - 7] +
               (std::rotr(far, 7) ^ std::rotr(far, 18) ^ far >> 3) + words[t - 16];
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t t = 0; t < words.size(); ++t) {
    const std::uint32_t first = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                                ((e & f) ^ (~e & g)) + kRoundConstants[t] + words[t];
    const std::uint32_t second =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + first;
    d = c;
    c = b;
    b = a;
    a = first + second;
  }
  const std::array<std::uint32_t, 8> added = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state_.size(); ++i) state_[i] += added[i];
  explicit_bzero(words.data(), sizeof(words));
  block_bytes_ = 0;
}

}  // namespace dstorm::net
