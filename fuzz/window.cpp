// A message by which a rank of another host writes into a window.
//
// input: the window's bytes (1 byte), then the message
#include "dstorm/collective/window_message.hpp"

#include <vector>

#include "target.hpp"

namespace fuzz {

void run(Input input) {
  std::vector<std::byte> window(input.take<std::uint8_t>());
  const auto read = dstorm::WindowMessage::read(input.rest(), window.size());
  if (!read || read->head.kind != dstorm::WindowMessage::Kind::kPut || read->body.empty()) return;
  // As the window does, with the sanitizers watching.
  std::memcpy(window.data() + read->head.value, read->body.data(), read->body.size());
}

}  // namespace fuzz
