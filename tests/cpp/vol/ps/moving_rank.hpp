// A rank of a table that moves from group to group, for tests with real processes as ranks.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "processes.hpp"
#include "table_rank.hpp"
#include "vol/ps/edition.hpp"

namespace testing_table {

using vol::ps::Brought;
using vol::ps::Edition;

inline constexpr int kMostMovers = 6;

// Steps in which ranks give one another bytes, the same to all of them, also when some die. The
// test says which ranks are dead, after their processes have ended.
class Board {
 public:
  using Given = std::vector<std::optional<std::vector<std::byte>>>;

  Given agree(int step, int own, const std::vector<int>& ranks, std::span<const std::byte> mine) {
    auto& posts = steps_.at(static_cast<std::size_t>(step));
    Post& post = posts.at(static_cast<std::size_t>(own));
    if (mine.size() > post.bytes.size()) throw std::length_error("too many bytes for a step");
    if (!mine.empty()) std::memcpy(post.bytes.data(), mine.data(), mine.size());
    post.size = mine.size();
    post.is_there = true;
    Given given(kMostMovers);
    for (const int rank : ranks) {
      const auto index = static_cast<std::size_t>(rank);
      while (!posts[index].is_there && !is_dead[index]) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
      if (!posts[index].is_there) continue;
      const auto* const from = posts[index].bytes.data();
      given[index].emplace(from, from + posts[index].size);
    }
    return given;
  }

  std::array<std::atomic<bool>, kMostMovers> is_dead{};

 private:
  struct Post {
    std::atomic<bool> is_there;
    std::size_t size;
    std::array<std::byte, 16384> bytes;
  };
  std::array<std::array<Post, kMostMovers>, 48> steps_{};
};

class MovingRank {
  struct Seat {
    std::shared_ptr<dstorm::Group> group;
    std::unique_ptr<ServerThread> server;
    std::unique_ptr<Client> client;
  };

 public:
  MovingRank(Posts& posts, Board& board, int own, const TableOptions& options)
      : rank(own), posts_(posts), board_(board), options_(options) {
    options_.is_superseded = [this] { return is_called.load(); };
    options_.look_again = [](bool) { return false; };
  }

  // Makes the first edition.
  void found(const std::vector<int>& ranks) {
    options_.ranks = ranks;
    begin(0, ranks);
    seat_ = std::move(next_);
  }

  // Goes to edition `number`, from 1 on. `ranks`: those that are to be in it; some may be dead.
  // `while_it_moves` is called when the servers have begun to move ranges. Returns how many ranges
  // have been sent to this rank.
  template <class Act>
  std::size_t move(int number, const std::vector<int>& ranks, Act&& while_it_moves) {
    int step = 8 * (number - 1);
    const vol::ps::Server* before = nullptr;
    Brought mine;
    if (seat_) seat_->client->settle({});
    board_.agree(step++, rank, ranks, {});
    if (seat_) {
      seat_->client->stop_server({});
      before = seat_->server->await_stopped();
      if (before != nullptr) mine = before->brought();
      mine.clock = seat_->client->clock();
      mine.has_closed = seat_->client->has_closed() ? 1 : 0;
      mine.pushes.resize(kMostMovers);
      std::uint64_t& own = mine.pushes[static_cast<std::size_t>(rank)];
      own = std::max(own, seat_->client->last_push());
    }
    const std::vector<std::byte> packed = seat_ ? mine.pack() : std::vector<std::byte>{};
    for (int attempt = 0;; ++attempt) {
      const Board::Given given = board_.agree(step++, rank, ranks, packed);
      std::vector<std::optional<Brought>> brought(kMostMovers);
      options_.ranks.clear();
      for (int each = 0; each < kMostMovers; ++each) {
        const auto& bytes = given[static_cast<std::size_t>(each)];
        if (!bytes) continue;
        options_.ranks.push_back(each);
        if (!bytes->empty()) brought[static_cast<std::size_t>(each)] = Brought::unpack(*bytes);
      }
      const vol::ps::Placement placement(options_.rows, options_.ranks, options_.replicas,
                                         kMostMovers, options_.owners);
      edition_.emplace(brought, placement.ranges());
      begin(4 * number + attempt, options_.ranks, &*edition_, before);
      while_it_moves(attempt);
      const bool has_moved = await_moved();
      const auto word = static_cast<std::byte>(has_moved);
      const Board::Given ends = board_.agree(step++, rank, ranks, {&word, 1});
      const bool is_well = std::ranges::all_of(options_.ranks, [&](int each) {
        const auto& end = ends[static_cast<std::size_t>(each)];
        return end && end->front() == std::byte{1};
      });
      if (is_well) break;
      leave(*next_);
      next_.reset();
    }
    const std::size_t moved = next_->server->moved();
    if (seat_) {
      next_->client->take_over(*seat_->client);
      leave(*seat_);
    }
    seat_ = std::move(next_);
    next_.reset();
    is_called = false;
    return moved;
  }
  std::size_t move(int number, const std::vector<int>& ranks) {
    return move(number, ranks, [](int) {});
  }

  Client& client() { return *seat_->client; }
  // Servers of this edition that are live as far as this rank knows.
  int live() const {
    return static_cast<int>(std::ranges::count_if(
        options_.ranks, [&](int server) { return seat_->group->is_live(kMostMovers + server); }));
  }
  void leave() { leave(*seat_); }
  std::uint64_t add(const std::vector<std::int64_t>& keys, double value) {
    const std::vector<double> gradients(keys.size() * options_.width, value);
    return client().push({keys.data(), 0, keys.size()},
                         reinterpret_cast<const std::byte*>(gradients.data()), {});
  }
  std::vector<double> all() {
    std::vector<double> values(static_cast<std::size_t>(options_.rows) * options_.width);
    client().pull({nullptr, 0, static_cast<std::size_t>(options_.rows)},
                  reinterpret_cast<std::byte*>(values.data()), {});
    return values;
  }

  const int rank;
  std::atomic<bool> is_called{false};  // the ranks move to another group

 private:
  void begin(int generation, const std::vector<int>& ranks, const Edition* edition = nullptr,
             const vol::ps::Server* before = nullptr) {
    std::vector<int> members = ranks;
    for (const int each : ranks) members.push_back(kMostMovers + each);
    next_.emplace();
    std::shared_ptr<dstorm::Group> server_group;
    std::thread joining([&] {
      ForkBootstrap bootstrap(posts_, kMostMovers + rank, 2 * kMostMovers);
      auto next = bootstrap.generation(generation, members);
      server_group = testing_processes::join(next);
    });
    ForkBootstrap bootstrap(posts_, rank, 2 * kMostMovers);
    auto next = bootstrap.generation(generation, members);
    next_->group = testing_processes::join(next);
    joining.join();
    next_->server = std::make_unique<ServerThread>(server_group, options_, edition, before);
    next_->client = std::make_unique<Client>(next_->group, options_, *next_->server, edition);
    next_->server->await_made();
  }
  bool await_moved() {
    while (!next_->server->movers().empty()) {
      for (const int each : options_.ranks) {
        if (!next_->group->is_live(each) || !next_->group->is_live(kMostMovers + each)) {
          return false;
        }
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return true;
  }
  static void leave(Seat& seat) {
    seat.group->leave();
    seat.server->stop();
  }

  Posts& posts_;
  Board& board_;
  TableOptions options_;
  std::optional<Edition> edition_;
  std::optional<Seat> seat_;
  std::optional<Seat> next_;
};

}  // namespace testing_table

namespace vol::ps {  // the tests' namespace

using testing_table::Board;
using testing_table::MovingRank;

}  // namespace vol::ps
