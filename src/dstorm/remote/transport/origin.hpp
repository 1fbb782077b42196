// The connection from which changes of segments come, as downlinks and transports see it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "dstorm/host/control.hpp"
#include "dstorm/remote/net/handshake.hpp"
#include "dstorm/remote/net/stream.hpp"
#include "dstorm/remote/transport/frame.hpp"
#include "dstorm/remote/transport/settings.hpp"
#include "dstorm/slot/copies.hpp"

namespace dstorm::remote {

// The answers that wait to be sent.
class Answers {
 public:
  void put(const FrameHead& head, std::span<const std::byte> body);
  // As put(), with a proof behind the body. `head.bytes` counts it.
  void put_proved(const net::Key& key, const net::Introduction& call, FrameKind kind,
                  std::uint32_t segment, std::span<const std::byte> body);
  // Sends what the connection takes; or gives all of it to `give`.
  void send(net::Stream& stream);
  template <class Give>
  void hand_over(Give&& give) {
    give(std::span<const std::byte>(bytes_));
    bytes_.clear();
  }

 private:
  std::vector<std::byte> bytes_;  // from at_ on
  std::size_t at_ = 0;
};

struct Origin {
  host::Control& control;
  const Settings& settings;
  net::Introduction caller;
  int sender;            // the caller's rank
  std::uint64_t number;  // of the call; 0: there was a newer one already
  Clock::time_point made;
  Answers& answers;

  // Takes a copy to write, or returns nothing while the rank that holds it is likely to release it
  // soon, as a rank does when it sees that its connection has been replaced.
  template <class Prepare>
  std::optional<CopyTable::Taken> take_copy(const CopyTable& table, Prepare&& prepare) const {
    const std::vector<int>& locals = control.locals();
    const auto state = [&](int place) {
      const auto index = static_cast<std::size_t>(place);
      return index < locals.size() ? control.state(locals[index]) : host::State::kDead;
    };
    const bool is_early = Clock::now() - made < settings.suspect_after / 8;
    const auto place = std::lower_bound(locals.begin(), locals.end(), control.rank());
    const CopyTable::Taken taken = table.take(
        number, static_cast<int>(place - locals.begin()),
        [&](int other) { return state(other) == host::State::kDead; },
        [&](int other) { return is_early && state(other) == host::State::kAlive; },
        std::forward<Prepare>(prepare));
    if (taken.outcome == CopyTable::Outcome::kTaken) return taken;
    return std::nullopt;
  }
};

}  // namespace dstorm::remote
