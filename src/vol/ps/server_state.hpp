// The state that the parts of a server share: who is there, how far the clients are, and messages.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "dstorm/collective/mail.hpp"
#include "vol/ps/message_reader.hpp"
#include "vol/ps/message_writer.hpp"
#include "vol/ps/placement.hpp"
#include "vol/ps/table.hpp"

namespace vol::ps {

// The members of the table's group, as far as this server has acted on what it knows of them.
struct Members {
  explicit Members(int clients)
      : live(static_cast<std::size_t>(2 * clients), true),
        leaving(static_cast<std::size_t>(clients)) {}

  std::vector<bool> live;        // by member
  std::vector<bool> leaving;     // by server: it hands over its ranges (P11)
  bool is_handing_over = false;  // so does this server

  bool is_client_live(std::size_t client) const { return live[client]; }
  bool is_live(int server) const { return live[leaving.size() + static_cast<std::size_t>(server)]; }
};

// The clocks of the clients; kBye once one has said bye.
class Clocks {
 public:
  static constexpr std::uint64_t kBye = std::numeric_limits<std::uint64_t>::max();

  explicit Clocks(std::size_t clients) : clocks_(clients), told_(clients) {}

  std::size_t size() const { return clocks_.size(); }
  std::uint64_t of(std::size_t client) const { return clocks_[client]; }
  // Those of an edition, in which these clients take part.
  void begin(std::span<const std::uint64_t> clocks, const std::vector<int>& clients);
  void note(std::size_t client, std::uint64_t clock);
  std::uint64_t lowest_of_live(const Members& members) const;

  // The lowest one of all live clients that this server has acted on.
  std::uint64_t lowest() const { return lowest_; }
  void set_lowest(std::uint64_t clock) { lowest_ = clock; }
  // After how many restores these clocks are (P13 (e)).
  std::uint64_t restores() const { return restores_; }
  void note_restore() { ++restores_; }

  // Those of these clients that have not come to this clock. Any thread may ask.
  std::vector<int> behind(std::uint64_t clock, const std::vector<int>& clients) const;

 private:
  std::vector<std::uint64_t> clocks_;             // by client
  std::vector<std::atomic<std::uint64_t>> told_;  // the same, for other threads
  std::uint64_t lowest_ = 0;
  std::uint64_t restores_ = 0;
};

struct ServerState {
  // Collective: see Server.
  ServerState(std::shared_ptr<dstorm::Group> group, const TableOptions& options);
  ServerState(const ServerState&) = delete;
  ServerState& operator=(const ServerState&) = delete;

  const TableOptions& options;
  const int clients;             // as many as servers
  const std::vector<int> ranks;  // of this edition
  const Placement placement;
  dstorm::Mail mail;
  const int own;  // this server
  MessageReader reader;
  MessageWriter writer;
  Members members;
  Clocks clocks;
  bool is_over = false;  // every live client has said bye, and this rank's has been told so

  // A server that hands over its ranges needs as many holders besides itself as a range has.
  bool may_take_over(int server) const;
};

}  // namespace vol::ps
