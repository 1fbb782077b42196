// The messages between a rank and its witness, and from the witness to others. The program of the
// witness includes this header too, so nothing here needs a library.
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

// The bytes that prove that the rank has ended; see token_of().
using WitnessToken = std::array<std::byte, 40>;

// The first message over the control socket.
struct WitnessOrder {
  WitnessToken token;
  std::uint32_t hosts;     // in the job; they are numbered from 0
  std::uint32_t own_host;  // the rank's own, which asks nothing
  std::uint64_t limit_ms;  // for how long after the rank's end it answers, at most
};
static_assert(sizeof(WitnessOrder) == 56);

// One byte that may follow.
enum class WitnessWord : char {
  kQuit = 'q',  // the rank has left and all know; the witness ends
  kLeft = 'l',  // the rank has left and not all know; the witness answers as if it had ended
};

// The receipt that a host sends when it has been answered: its number.
using WitnessReceipt = std::uint32_t;

}  // namespace dstorm::remote
