// The handshake by which both ends of a new connection prove to each other that they have the job's
// key: a mutual challenge-response with HMAC-SHA256. Ranks use it between hosts, and the clients of
// the rendezvous (python/malt/_rendezvous) with the launcher.
//
//   caller -> callee  Hello{nonce c}
//   callee -> caller  Hello{nonce s}
//   caller -> callee  Introduction, HMAC(key, "caller", hellos, Introduction, address, binding)
//   callee -> caller                HMAC(key, "callee", the same); zeros: the callee refuses
//
// - The nonces are fresh, so a recording of an earlier handshake is of no use. The roles differ, so
//   no end can send back the other's proof. The address is the one that was called, and the binding
//   is that of the TLS connection (zeros without TLS), so a proof is good for one place and one
//   connection.
// - The callee sends nothing that depends on the key before it has checked the caller's proof.
// - Each end takes exactly the handshake's bytes off the stream. The bytes after it are left to the
//   user of the stream.
// The handshake proves which rank is at the other end. Only TLS, or what the user of the stream
// makes of session_key(), protects the bytes that follow from those on the way.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "dstorm/remote/net/address.hpp"
#include "dstorm/remote/net/kept_key.hpp"
#include "dstorm/remote/net/mac.hpp"
#include "dstorm/remote/net/stream.hpp"

namespace dstorm::net {

Key make_key();  // random; throws ConfigError if the system gives no random bytes

// Which rank calls which, as the caller says.
struct Introduction {
  // `to` of a client of the rendezvous. Its `rank` is its own number, and the rendezvous gives
  // `number` its meaning (_rendezvous/wire.py).
  static constexpr std::uint32_t kRendezvous = 0xffffffff;

  std::uint32_t rank;
  std::uint32_t to;
  std::uint64_t number;  // grows with each of the caller's calls
};

class Handshake {
 public:
  // `listening` is the address that is called, the same at both ends. It is none for the
  // rendezvous, whose clients may know it by another address.
  static Handshake caller(const KeptKey& key, const Introduction& mine, const Address& listening);
  static Handshake callee(const KeptKey& key, std::uint32_t own_rank, const Address& listening);

  enum class Step { kWaiting, kDone, kRefused };
  // Goes on as far as it can without blocking. After kRefused the stream cannot be used.
  Step advance(Stream& stream);
  // After kWaiting: wait until the stream's fd is writable if this is true, readable if not.
  bool wants_write() const noexcept { return wants_write_; }

  // For the callee, after kDone: the caller has proved it, and it is meant for this rank.
  const Introduction& introduction() const noexcept { return introduction_; }
  // After kDone: a key that only these two ends have, for this connection.
  Mac session_key(const Stream& stream) const;
  // After kRefused: the reason, in one line.
  const std::string& reason() const noexcept { return reason_; }
  // After kRefused: the other end closed the connection without a word.
  bool is_dropped() const noexcept { return is_dropped_; }

 private:
  using Nonce = std::array<std::byte, 32>;
  // Hello has this layout in every version, so that any two versions can tell that they differ.
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
  void refuse_in_words(std::string reason);
  void give_up(const Stream& stream);

  KeptKey key_;
  Introduction introduction_;
  bool calls_;
  Address listening_;
  Hello mine_;
  Hello theirs_;
  Expects expects_;
  std::array<std::byte, sizeof(Proof)> out_;  // [sent_, out_bytes_) is to be sent
  std::array<std::byte, sizeof(Proof)> in_;   // [0, received_) of in_bytes_ has arrived
  std::size_t out_bytes_ = 0, sent_ = 0, in_bytes_ = 0, received_ = 0;
  bool wants_write_ = false;
  std::string reason_;
  bool is_dropped_ = false;
};

}  // namespace dstorm::net
