// Where libFuzzer comes in.
#include <sched.h>

#include "target.hpp"

// NOLINTNEXTLINE(readability-identifier-naming): the name libFuzzer looks for.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::run(fuzz::Input(std::as_bytes(std::span(data, size))));
  return 0;
}

// In place of the system's: the peers that the library yields the core to are played by the target
// itself, and another process, such as another target, would keep the core for milliseconds.
int sched_yield() noexcept { return 0; }
