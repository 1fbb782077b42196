// What a rank and its witness say to each other, and what the witness says to others. For the program that
// the witness is, too, so nothing here needs a library.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace dstorm::remote {

// The descriptors with which the witness is started.
inline constexpr int kWitnessControl = 0;   // its end of a stream socket to the rank
inline constexpr int kWitnessListener = 1;  // the rank's listening socket
inline constexpr int kWitnessNowhere = 2;   // /dev/null
inline constexpr int kWitnessRank = 3;      // a pidfd of the rank

// What proves that the rank has ended; see token_of().
using WitnessToken = std::array<std::byte, 40>;

// The first thing that comes over the control socket.
struct WitnessOrder {
  WitnessToken token;
  std::uint32_t hosts;     // of the job: they have the numbers below this
  std::uint32_t own_host;  // which asks nothing
  std::uint64_t limit_ms;  // for how long after the rank's end it answers, at most
};
static_assert(sizeof(WitnessOrder) == 56);

// What may follow: one byte.
enum class WitnessWord : char {
  kQuit = 'q',  // the rank has left, and all know: there is nothing to say
  kLeft = 'l',  // the rank has left, and not all know: as if it had ended
};

// What a host that has been answered says: its number.
using WitnessReceipt = std::uint32_t;

}  // namespace dstorm::remote
