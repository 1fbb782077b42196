#include "dstorm/remote/transport/outbox.hpp"

#include <algorithm>

namespace dstorm::remote {
namespace {

// Small frames are gathered up to this many bytes before they are sent.
constexpr std::size_t kBatch = 64 * 1024;
// Long payloads are gathered up to this many bytes.
constexpr std::size_t kLongBatch = 256 * 1024;
// A payload up to this long is copied among the small frames, which is cheaper than a part of its
// own.
constexpr std::size_t kCopied = 8 * 1024;

}  // namespace

void Outbox::begin() {
  small_.clear();
  pieces_.clear();
  small_at_ = long_bytes_ = 0;
  reading_ = nullptr;
  may_lag_ = true;
}

void Outbox::clear() {
  begin();
  may_lag_ = lags_ = false;
  sent_bytes_ = 0;
}

void Outbox::put_proved(const net::Key& key, const net::Introduction& call, FrameKind kind,
                        std::span<const std::byte> body) {
  const FrameHead head{kind, 0, body.size() + sizeof(net::Mac)};
  put(head);
  put_bytes(body);
  put(prove(key, head, body, call));
}

bool Outbox::put_payload(std::span<const std::byte> payload) {
  if (payload.size() <= kCopied) {
    put_bytes(payload);
    return true;
  }
  pieces_.push_back({small_.size(), payload});
  long_bytes_ += payload.size();
  return false;
}

bool Outbox::make_room(std::uint32_t segment) {
  if (reading_ == nullptr || reading_segment_ != segment) return false;
  std::span<const std::byte>& payload = pieces_.back().payload;
  staged_.assign(payload.begin(), payload.end());
  payload = staged_;
  reading_->let_go();
  reading_ = nullptr;
  return true;
}

bool Outbox::is_full() const noexcept {
  return small_.size() >= kBatch || long_bytes_ >= kLongBatch;
}

std::span<const iovec> Outbox::parts() {
  parts_.clear();
  std::size_t at = small_at_;
  const auto put_small = [&](std::size_t end) {
    if (at < end) parts_.push_back({small_.data() + at, end - at});
    at = end;
  };
  for (const Piece& piece : pieces_) {
    put_small(piece.end);
    parts_.push_back({const_cast<std::byte*>(piece.payload.data()), piece.payload.size()});
  }
  put_small(small_.size());
  return parts_;
}

void Outbox::note_sent(std::size_t bytes) {
  sent_bytes_ += bytes;
  while (bytes > 0) {
    const std::size_t end = pieces_.empty() ? small_.size() : pieces_.front().end;
    const std::size_t of_small = std::min(bytes, end - small_at_);
    small_at_ += of_small;
    bytes -= of_small;
    if (pieces_.empty()) break;
    std::span<const std::byte>& payload = pieces_.front().payload;
    const std::size_t of_payload = std::min(bytes, payload.size());
    payload = payload.subspan(of_payload);
    bytes -= of_payload;
    if (payload.empty()) pieces_.pop_front();
  }
  if (pieces_.empty() && reading_ != nullptr) {
    reading_->let_go();
    reading_ = nullptr;
  }
}

}  // namespace dstorm::remote
