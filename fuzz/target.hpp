// A fuzz target: one file fuzz/<name>.cpp that defines run(), seeds in fuzz/corpus/<name>.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <type_traits>

#include "dstorm/errors.hpp"

namespace fuzz {

// The bytes a target is given, taken from front to back. Past their end all is zeros, so that every
// input means something.
class Input {
 public:
  explicit Input(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <class T>
  T take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    const std::span<const std::byte> part = bytes(sizeof(value));
    if (!part.empty()) std::memcpy(&value, part.data(), part.size());
    return value;
  }
  // At most `most`; fewer at the end.
  std::span<const std::byte> bytes(std::size_t most) {
    const std::span<const std::byte> part = rest_.first(std::min(most, rest_.size()));
    rest_ = rest_.subspan(part.size());
    return part;
  }
  std::span<const std::byte> rest() { return bytes(rest_.size()); }
  bool empty() const { return rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
};

// Feeds the input to the library.
void run(Input input);

// Calls `of` with a zero of the element type that the input names.
template <class Of>
void with_element(Input& input, Of&& of) {
  switch (input.take<std::uint8_t>() % 4) {
    case 0:
      return of(float{});
    case 1:
      return of(double{});
    case 2:
      return of(std::int32_t{});
    default:
      return of(std::int64_t{});
  }
}

// What must hold whatever the input is.
inline void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

// Whether the library refuses what `call` asks of it, which is as good as taking it.
template <class Call>
bool is_refused(Call&& call) {
  try {
    call();
    return false;
  } catch (const dstorm::Error& error) {
    require(*error.what() != '\0', "an error says what is wrong");
    return true;
  }
}

}  // namespace fuzz
