#include "dstorm/remote/net/handshake.hpp"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "dstorm/errors.hpp"

namespace dstorm::net {
namespace {

constexpr std::array<char, 4> kMagic = {'M', 'A', 'L', 'T'};
constexpr std::uint32_t kVersion = 4;  // of this handshake and of all that follows it
constexpr std::uint32_t kByteOrder = 0x01020304;
constexpr std::byte kTlsAlert{0x15};  // the first byte of such a record
constexpr const char* kCaller = "MALT caller";
constexpr const char* kCallee = "MALT callee";   // as long as kCaller,
constexpr const char* kSession = "MALT frames";  // and so is this one

std::array<std::byte, 32> random_bytes() {
  std::array<std::byte, 32> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw ConfigError(std::string("the system gives no random bytes: ") + std::strerror(errno));
  }
  return bytes;
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  static_assert(std::has_unique_object_representations_v<T>);
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace

Key make_key() { return random_bytes(); }

Handshake Handshake::caller(const KeptKey& key, const Introduction& mine,
                            const Address& listening) {
  Handshake made(key, mine, true, listening);
  made.say(bytes_of(made.mine_));
  return made;
}

Handshake Handshake::callee(const KeptKey& key, std::uint32_t own_rank, const Address& listening) {
  return Handshake(key, Introduction{.rank = 0, .to = own_rank, .number = 0}, false, listening);
}

Handshake::Handshake(const KeptKey& key, const Introduction& introduction, bool calls,
                     const Address& listening)
    : key_(key),
      introduction_(introduction),
      calls_(calls),
      listening_(listening.with_scope_of(Address())),  // a scope means something on one host only
      mine_{kMagic, kVersion, kByteOrder, random_bytes()},
      theirs_{},
      out_{},
      in_{} {
  expect(Expects::kHello, sizeof(Hello));
}

void Handshake::say(std::span<const std::byte> message) {
  std::memcpy(out_.data(), message.data(), message.size());
  out_bytes_ = message.size();
  sent_ = 0;
}

void Handshake::expect(Expects what, std::size_t bytes) {
  expects_ = what;
  in_bytes_ = bytes;
  received_ = 0;
}

void Handshake::refuse(std::string reason) {
  reason_ = std::move(reason);
  expects_ = Expects::kNothing;
}

// The zeros are no key's answer, so the caller knows that it was not merely dropped.
void Handshake::refuse_in_words(std::string reason) {
  say(bytes_of(Mac{}));
  refuse(std::move(reason));
}

void Handshake::give_up(const Stream& stream) {
  std::string what = stream.error().empty() ? "the connection ended" : stream.error();
  what += expects_ == Expects::kAnswer
              ? " before the rank called proved itself; it may be of another job, or another rank"
              : " in the handshake";
  out_bytes_ = sent_;
  is_dropped_ = stream.error().empty() || stream.is_closed_there();
  refuse(std::move(what));
}

Handshake::Step Handshake::advance(Stream& stream) {
  while (flush(stream)) {
    if (expects_ == Expects::kNothing) return reason_.empty() ? Step::kDone : Step::kRefused;
    if (!fill(stream)) break;
  }
  wants_write_ = stream.wants_write() || (sent_ < out_bytes_ && !stream.awaits_peer());
  return Step::kWaiting;
}

bool Handshake::flush(Stream& stream) {
  while (sent_ < out_bytes_) {
    const iovec rest{out_.data() + sent_, out_bytes_ - sent_};
    const Moved moved = stream.send({&rest, 1});
    if (moved.flow != Flow::kOpen) {
      give_up(stream);
    } else if (moved.bytes == 0) {
      return false;
    }
    sent_ += moved.bytes;
  }
  return true;
}

bool Handshake::fill(Stream& stream) {
  while (received_ < in_bytes_) {
    const iovec rest{in_.data() + received_, in_bytes_ - received_};
    const Moved moved = stream.receive({&rest, 1});
    if (moved.flow != Flow::kOpen) {
      give_up(stream);
      return true;
    }
    if (moved.bytes == 0) return false;
    received_ += moved.bytes;
    // Another protocol is recognised at once: the rest of the hello might never arrive.
    if (expects_ == Expects::kHello &&
        std::memcmp(in_.data(), kMagic.data(), std::min(received_, kMagic.size())) != 0) {
      refuse(in_[0] == kTlsAlert ? "the other end uses TLS, and this one does not"
                                 : "what is at the other end does not speak as MALT does");
      return true;
    }
  }
  hear(stream);
  return true;
}

void Handshake::hear(const Stream& stream) {
  switch (expects_) {
    case Expects::kHello:
      return hear_hello(stream);
    case Expects::kProof:
      return hear_proof(stream);
    case Expects::kAnswer:
      return hear_answer(stream);
    case Expects::kNothing:
      return;
  }
}

void Handshake::hear_hello(const Stream& stream) {
  std::memcpy(&theirs_, in_.data(), sizeof(theirs_));
  if (!calls_) say(bytes_of(mine_));  // sent even to another version, which then knows
  if (theirs_.byte_order != kByteOrder) {
    refuse("the other end has another byte order; a job's hosts must have the same");
  } else if (theirs_.version != kVersion) {
    refuse("the other end runs another version of MALT: its protocol is " +
           std::to_string(theirs_.version) + ", this one's " + std::to_string(kVersion));
  } else if (calls_) {
    const Claim mine = claim();
    say(bytes_of(Proof{mine, mac_of(kCaller, mine, stream)}));
    expect(Expects::kAnswer, sizeof(Mac));
  } else {
    expect(Expects::kProof, sizeof(Proof));
  }
}

void Handshake::hear_proof(const Stream& stream) {
  Proof proof{};
  std::memcpy(&proof, in_.data(), sizeof(proof));
  const Mac right = mac_of(kCaller, proof.claim, stream);
  const std::uint32_t own_rank = introduction_.to;
  if (!is_same(right, proof.mac)) {
    refuse_in_words("the caller does not have this job's key, or meant another address than " +
                    listening_.text());
  } else if (proof.claim.to != own_rank) {
    refuse("rank " + std::to_string(proof.claim.rank) + " called rank " +
           std::to_string(proof.claim.to) + ", this is rank " + std::to_string(own_rank));
  } else {
    introduction_ = {proof.claim.rank, proof.claim.to, proof.claim.number};
    say(bytes_of(mac_of(kCallee, proof.claim, stream)));
    expect(Expects::kNothing, 0);
  }
}

void Handshake::hear_answer(const Stream& stream) {
  const Mac right = mac_of(kCallee, claim(), stream);
  if (!is_same(right, std::span(in_).first(right.size()))) {
    const bool is_known = listening_.family() != AF_UNSPEC;
    refuse("what listens " + (is_known ? "at " + listening_.text() : "there") +
           " does not have this job's key");
  } else {
    expect(Expects::kNothing, 0);
  }
}

Mac Handshake::session_key(const Stream& stream) const { return mac_of(kSession, claim(), stream); }

Handshake::Claim Handshake::claim() const {
  return {introduction_.number, introduction_.rank, introduction_.to};
}

Mac Handshake::mac_of(const char* role, const Claim& claim, const Stream& stream) const {
  std::vector<std::byte> message;
  const auto add = [&](std::span<const std::byte> bytes) {
    message.insert(message.end(), bytes.begin(), bytes.end());
  };
  // All parts but the last have a fixed size.
  add(std::as_bytes(std::span(role, std::strlen(kCaller))));
  add(bytes_of(calls_ ? mine_ : theirs_));
  add(bytes_of(calls_ ? theirs_ : mine_));
  add(bytes_of(claim));
  add(stream.binding());
  const std::string address = listening_.text();
  add(std::as_bytes(std::span(address)));
  return authenticate(key_, message);
}

}  // namespace dstorm::net
