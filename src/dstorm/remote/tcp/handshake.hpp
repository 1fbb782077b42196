// How a new connection proves to both ends that the other has the job's key: a mutual
// challenge-response with HMAC-SHA256.
//
//   caller -> callee  Hello{nonce c}
//   callee -> caller  Hello{nonce s}
//   caller -> callee  Introduction, HMAC(key, "caller", both hellos, Introduction, address, binding)
//   callee -> caller                HMAC(key, "callee", the same)
//
// - The nonces are fresh, so nothing recorded earlier is of use; the roles differ, so neither is an
//   end's own proof. The address is the one called, the binding that of the TLS connection (zeros
//   without): a proof is good for one place and one connection.
// - The callee sends nothing that depends on the key before the caller's proof holds.
// - Each end takes exactly the handshake's bytes off the stream; what follows is the caller's.
// It tells who is at the other end. Only TLS keeps what follows from those on the way.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "dstorm/remote/tcp/address.hpp"
#include "dstorm/remote/tcp/kept_key.hpp"
#include "dstorm/remote/tcp/stream.hpp"

namespace dstorm::tcp {

using Mac = std::array<std::byte, 32>;

Key make_key();  // random; throws ConfigError if the system gives no random bytes
Mac authenticate(const Key& key, std::span<const std::byte> message);  // HMAC-SHA256

// Who calls whom, as the caller says it.
struct Introduction {
  std::uint32_t rank;
  std::uint32_t to;
  std::uint64_t number;  // grows with each of the caller's calls
};

class Handshake {
 public:
  // `listening`: the address called, as the callee has it too.
  static Handshake caller(const KeptKey& key, const Introduction& mine, const Address& listening);
  static Handshake callee(const KeptKey& key, std::uint32_t own_rank, const Address& listening);

  enum class Step { kWaiting, kDone, kRefused };
  // As far as it goes without blocking. After kRefused the stream is of no use.
  Step advance(Stream& stream);
  // After kWaiting: wait until the stream's fd is writable if true, readable if not.
  bool wants_write() const noexcept { return wants_write_; }

  // After kDone, of the callee: proved by the caller, and for this rank.
  const Introduction& introduction() const noexcept { return introduction_; }
  // After kRefused, one line.
  const std::string& reason() const noexcept { return reason_; }

 private:
  using Nonce = std::array<std::byte, 32>;
  // The same in every version from its first byte to its last, so that any two can tell that they
  // differ.
  struct Hello {
    std::array<char, 4> magic;
    std::uint32_t version;
    std::uint32_t byte_order;
    Nonce nonce;
  };
  struct Claim {  // an Introduction without padding
    std::uint64_t number;
    std::uint32_t rank, to;
  };
  struct Proof {
    Claim claim;
    Mac mac;
  };
  enum class Expects { kHello, kProof, kAnswer, kNothing };

  Handshake(const KeptKey& key, const Introduction& introduction, bool calls,
            const Address& listening);
  void say(std::span<const std::byte> message);
  void expect(Expects what, std::size_t bytes);
  bool flush(Stream& stream);  // false: something is left to be sent
  bool fill(Stream& stream);   // false: something is left to be received
  void hear(const Stream& stream);
  void hear_hello(const Stream& stream);
  void hear_proof(const Stream& stream);
  void hear_answer(const Stream& stream);
  Claim claim() const;
  Mac mac_of(const char* role, const Claim& claim, const Stream& stream) const;
  void refuse(std::string reason);
  void give_up(const Stream& stream);

  KeptKey key_;
  Introduction introduction_;
  bool calls_;
  Address listening_;
  Hello mine_;
  Hello theirs_;
  Expects expects_;
  std::array<std::byte, sizeof(Proof)> out_;  // [sent_, out_bytes_) is to be sent
  std::array<std::byte, sizeof(Proof)> in_;   // [0, received_) of in_bytes_ is there
  std::size_t out_bytes_ = 0, sent_ = 0, in_bytes_ = 0, received_ = 0;
  bool wants_write_ = false;
  std::string reason_;
};

}  // namespace dstorm::tcp
