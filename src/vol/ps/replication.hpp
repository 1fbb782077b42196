// Pushes to the ranges that a server is primary of, and the copies of these on other servers (P2 to
// P4, in server.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "vol/ps/held_ranges.hpp"
#include "vol/ps/moves.hpp"
#include "vol/ps/server_state.hpp"

namespace vol::ps {

class Replication {
 public:
  Replication(ServerState& state, HeldRanges& held, Arrivals& arrivals);

  // The pushes of a client that wait for the answers of copies.
  std::size_t unanswered(int client) const { return unanswered_[static_cast<std::size_t>(client)]; }

  void take_push(const Head& head, const Rows& rows, const std::byte* gradients);
  // Messages of another server.
  void take_forward(int from, const Head& head, const Rows& rows, const std::byte* gradients);
  void take_forwarded(int from, std::uint64_t id);
  void take_applied(int from, std::uint64_t clock);
  void take_copy(int from, const Head& head, std::span<const std::byte> body);

  // The range, of which this server is primary from here on; null if it does not have it.
  Held* primary_of(std::size_t range);
  void become_primary(std::size_t range);
  // Applies what was kept for clocks that are over now, here and on the copies (P6).
  void apply_kept();
  // Takes over the ranges of dead primaries, and replaces dead copies.
  void settle();
  void drop_dead_forwards();
  // Answers a message of another server, if its id is not 0.
  void answer_server(int server, std::uint64_t id);
  // Makes all copies of a range anew, and then answers this rank's client's message `id`.
  void copy_anew(std::size_t range, std::uint64_t id);
  // `id`: of a Forwarding; 0: none.
  void send_copy(std::size_t number, const Range& source, int to, std::uint64_t id = 0);

 private:
  struct Answer {  // to a push
    int client;
    std::uint64_t id;
    int missing = 0;         // answers of copies
    std::int64_t lost = -1;  // a row that this server does not have
    std::string failure = {};
  };
  struct Forwarding {
    std::uint64_t id;  // of the message
    std::shared_ptr<Answer> answer;
  };

  // The answer that a client waits for from here on, until answer_if_done() sends it.
  std::shared_ptr<Answer> begin_answer(int client, std::uint64_t id);
  void forward(const Head& head, const Rows& rows, const std::byte* gradients,
               std::span<const Stretch> stretches, int to, const std::shared_ptr<Answer>& answer);
  void answer_if_done(const std::shared_ptr<Answer>& answer);
  // Has the answer wait for that of server `by` to a message; returns the id for the message, which
  // is to be sent before any other one to that server.
  std::uint64_t await_forwarded(int by, const std::shared_ptr<Answer>& answer);
  void settle(std::size_t range);
  // `answer`: waits until the copies are whole.
  void update_copies(std::size_t range, const std::shared_ptr<Answer>& answer = nullptr);

  ServerState& state_;
  HeldRanges& held_;
  Arrivals& arrivals_;
  std::vector<std::size_t> unanswered_;              // by client: Answers
  std::vector<std::deque<Forwarding>> forwardings_;  // by server, in the order of messages
};

}  // namespace vol::ps
