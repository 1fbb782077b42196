// Where libFuzzer, or replay.cpp, comes in.
#include "target.hpp"

// NOLINTNEXTLINE(readability-identifier-naming): the name libFuzzer looks for.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::run(fuzz::Input(std::as_bytes(std::span(data, size))));
  return 0;
}
