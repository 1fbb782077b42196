#include "dstorm/remote/transport/origin.hpp"

namespace dstorm::remote {

void Answers::put(const FrameHead& head, std::span<const std::byte> body) {
  const auto bytes = std::as_bytes(std::span(&head, 1));
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  bytes_.insert(bytes_.end(), body.begin(), body.end());
}

void Answers::put_proved(const net::Key& key, const net::Introduction& call, FrameKind kind,
                         std::uint32_t segment, std::span<const std::byte> body) {
  const FrameHead head{kind, segment, body.size() + sizeof(net::Mac)};
  put(head, body);
  const net::Mac proof = prove(key, head, body, call);
  const auto bytes = std::as_bytes(std::span(proof));
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

void Answers::send(net::Stream& stream) {
  while (at_ < bytes_.size()) {
    const iovec part{bytes_.data() + at_, bytes_.size() - at_};
    const net::Moved moved = stream.send({&part, 1});
    if (moved.bytes == 0) return;  // bytes sent before the sender ended are still to be read
    at_ += moved.bytes;
  }
  bytes_.clear();
  at_ = 0;
}

}  // namespace dstorm::remote
