#include "dstorm/remote/transport/frame.hpp"

#include <cstring>
#include <vector>

namespace dstorm::remote {

net::Mac prove(const net::Key& key, const FrameHead& head, std::span<const std::byte> body,
               const net::Introduction& call) {
  struct Context {
    std::uint64_t number;
    std::uint32_t rank, to;
    FrameHead head;
  } const context{call.number, call.rank, call.to, head};
  std::vector<std::byte> message(sizeof(context) + body.size());
  std::memcpy(message.data(), &context, sizeof(context));
  if (!body.empty()) std::memcpy(message.data() + sizeof(context), body.data(), body.size());
  return net::authenticate(key, message);
}

bool is_proof(std::span<const std::byte> given, const net::Mac& right) {
  return net::is_same(given, right);
}

}  // namespace dstorm::remote
