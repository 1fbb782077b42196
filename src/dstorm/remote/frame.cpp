#include "dstorm/remote/frame.hpp"

#include <openssl/crypto.h>

#include <cstring>
#include <vector>

namespace dstorm::remote {

tcp::Mac prove(const tcp::Key& key, const FrameHead& head, std::span<const std::byte> body,
               const tcp::Introduction& call) {
  struct Context {
    std::uint64_t number;
    std::uint32_t rank, to;
    FrameHead head;
  } const context{call.number, call.rank, call.to, head};
  std::vector<std::byte> message(sizeof(context) + body.size());
  std::memcpy(message.data(), &context, sizeof(context));
  if (!body.empty()) std::memcpy(message.data() + sizeof(context), body.data(), body.size());
  return tcp::authenticate(key, message);
}

bool is_proof(std::span<const std::byte> given, const tcp::Mac& right) {
  return given.size() == right.size() &&
         CRYPTO_memcmp(given.data(), right.data(), right.size()) == 0;
}

}  // namespace dstorm::remote
