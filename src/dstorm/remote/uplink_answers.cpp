// The answers of the callee of an uplink: how many of its bytes the callee has taken in, that the
// connection is shared, and those that are for the transport.
#include <algorithm>
#include <cstring>

#include "dstorm/remote/uplink.hpp"

namespace dstorm::remote {
namespace {

// Answers are read into a buffer of at least this size.
constexpr std::size_t kAnswers = 1024;

}  // namespace

void Uplink::take_answers(Clock::time_point now) {
  const std::size_t most = sizeof(FrameHead) + sizeof(net::Mac) +
                           std::max(sizeof(std::uint64_t), changes_->longest_answer());
  answers_.resize(std::max(kAnswers, most));
  while (state_ == State::kUp && !shared_) {
    const iovec part{answers_.data() + answers_end_, answers_.size() - answers_end_};
    const net::Moved moved = stream_->receive({&part, 1});
    if (moved.bytes == 0) {
      if (moved.flow == net::Flow::kEnded && said_goodbye_) {
        hang_up();
        state_ = State::kDone;
      } else if (moved.flow == net::Flow::kEnded) {
        fail("it ended the connection");
      } else if (moved.flow == net::Flow::kFailed) {
        fail(stream_->error());
      }
      return;
    }
    last_heard_ = now;
    answers_end_ += moved.bytes;
    std::size_t begin = 0;
    FrameHead head{};
    while (state_ == State::kUp && !shared_ && answers_end_ - begin >= sizeof(head)) {
      std::memcpy(&head, answers_.data() + begin, sizeof(head));
      if (head.bytes > most - sizeof(head)) return fail("answered with an invalid frame");
      if (answers_end_ - begin < sizeof(head) + head.bytes) break;
      take(head, {answers_.data() + begin + sizeof(head), head.bytes});
      begin += sizeof(head) + head.bytes;
    }
    if (state_ != State::kUp) return;
    std::memmove(answers_.data(), answers_.data() + begin, answers_end_ - begin);
    answers_end_ -= begin;
    if (shared_) {
      const auto rest = answers_.begin() + static_cast<std::ptrdiff_t>(answers_end_);
      shared_->unparsed.assign(answers_.begin(), rest);
      answers_end_ = 0;
    }
  }
}

void Uplink::take(const FrameHead& head, std::span<const std::byte> body) {
  if (head.kind == FrameKind::kTaken && body.size() == sizeof(std::uint64_t)) {
    std::uint64_t taken_in = 0;
    std::memcpy(&taken_in, body.data(), sizeof(taken_in));
    if (taken_in < answered_bytes_ || taken_in > outbox_.sent_bytes()) {
      return fail("answered with an invalid number");
    }
    answered_bytes_ = taken_in;
    turned_away_ = 0;
    return;
  }
  const bool is_for_transport =
      head.kind == FrameKind::kEndpoint || head.kind == FrameKind::kWindow;
  if ((head.kind != FrameKind::kShare && !is_for_transport) || partner_ != nullptr ||
      body.size() < sizeof(net::Mac)) {
    return fail("answered with an invalid frame");
  }
  const auto said = body.first(body.size() - sizeof(net::Mac));
  if (!is_proof(body.last(sizeof(net::Mac)), prove(settings_.key, head, said, call_))) {
    return fail("answered with an address or a number that was changed on the way");
  }
  if (!is_for_transport) return take_share(said);
  try {
    changes_->take(head, said);
  } catch (const Error& error) {
    fail(error.what());
  }
}

void Uplink::take_share(std::span<const std::byte> body) {
  std::uint64_t number = 0;
  if (body.size() != sizeof(number)) return fail("answered with an invalid frame");
  std::memcpy(&number, body.data(), sizeof(number));
  const std::size_t frame_bytes = sizeof(FrameHead) + body.size() + sizeof(net::Mac);
  shared_ = Shared{{call_.to, call_.rank, number}, frame_bytes, {}};
}

}  // namespace dstorm::remote
