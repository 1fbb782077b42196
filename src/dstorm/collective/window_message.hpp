// The messages by which a window (window.hpp) writes to another host. They come from another
// process, so a receiver reads them here and nowhere else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

namespace dstorm {

struct WindowMessage {
  enum class Kind : std::uint64_t {
    kPut = 1,     // `body` goes to the offset `value`
    kSignal = 2,  // the sender has sent `value` signals
    kEnd = 3,     // the sender has put all that it puts
  };
  struct Head {
    Kind kind;
    std::uint64_t value;
  };

  Head head;
  std::span<const std::byte> body;

  // Nothing if the message is not valid for a window of so many bytes.
  static std::optional<WindowMessage> read(std::span<const std::byte> message,
                                           std::size_t window_bytes) {
    if (message.size() < sizeof(Head)) return std::nullopt;
    WindowMessage read{{}, message.subspan(sizeof(Head))};
    std::memcpy(&read.head, message.data(), sizeof(Head));
    switch (read.head.kind) {
      case Kind::kPut:
        if (read.head.value > window_bytes || read.body.size() > window_bytes - read.head.value) {
          return std::nullopt;
        }
        return read;
      case Kind::kSignal:
      case Kind::kEnd:
        return read;
    }
    return std::nullopt;
  }
};

}  // namespace dstorm
