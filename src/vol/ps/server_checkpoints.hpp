// A server's side of checkpoints (P13, in server.hpp).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "vol/ps/held_ranges.hpp"
#include "vol/ps/hot_pulls.hpp"
#include "vol/ps/replication.hpp"
#include "vol/ps/server_state.hpp"

namespace vol::ps {

class ServerCheckpoints {
 public:
  ServerCheckpoints(ServerState& state, HeldRanges& held, Replication& replication, HotPulls& hot)
      : state_(state), held_(held), replication_(replication), hot_(hot) {}

  // A question of this rank's client.
  void take(const Head& head, std::span<const std::byte> body);
  // Answers the client that waits, once this server knows of the clocks and deaths (P13 (a)).
  void answer_await();

 private:
  struct Await {
    std::uint64_t id;
    std::vector<std::uint64_t> clocks;  // by client; or kIsDead
  };

  std::vector<std::uint64_t> read_clocks(std::span<const std::byte> body) const;
  void answer_read(const Head& head);
  void write(const Head& head, std::span<const std::byte> body);
  void end_writing(const Head& head);
  void continue_from(std::span<const std::uint64_t> clocks);
  void acknowledge(std::uint64_t id) { state_.writer.answer(Head::Kind::kAck, state_.own, id); }

  ServerState& state_;
  HeldRanges& held_;
  Replication& replication_;
  HotPulls& hot_;
  std::optional<Await> await_;
};

}  // namespace vol::ps
