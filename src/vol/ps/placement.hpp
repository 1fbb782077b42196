// Which server holds which rows of a table: ranges of rows are placed by rendezvous hashing
// (Thaler, Ravishankar, "Using name-based mappings to increase hit rates", 1998).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace vol::ps {

// Every rank computes the same. Each range has an order of all servers; the first of them that is
// live is its primary, the next `replicas` live ones hold copies. So when a server dies, only the
// ranges that it held move, and each to the server that is next in its own order.
class Placement {
 public:
  // `rows` is above 0, and `servers` is sorted. The ranges are those of a table on `most` servers,
  // whichever of them are there. There are fewer replicas if there are not so many servers.
  // `owners`: for each range the server that comes first in its order while it is there, whatever
  // its hash. There are then so many ranges, each of the same power of two of rows but the last.
  Placement(std::int64_t rows, std::vector<int> servers, int replicas, int most,
            std::span<const int> owners = {});
  // The rows of a range, as a power of two, without owners.
  static int shift_of(std::int64_t rows, int most);

  std::int64_t rows() const { return rows_; }
  int servers() const { return static_cast<int>(servers_.size()); }
  int replicas() const { return replicas_; }
  std::size_t ranges() const { return orders_.size() / servers_.size(); }
  std::size_t range_of(std::int64_t row) const { return static_cast<std::size_t>(row >> shift_); }
  std::int64_t first_row(std::size_t range) const {
    return static_cast<std::int64_t>(range) << shift_;
  }
  // One past the last row of the range.
  std::int64_t end_row(std::size_t range) const;

  // Place `place` in the order of the range; 0 is its first primary.
  int server(std::size_t range, int place) const {
    return orders_[range * servers_.size() + static_cast<std::size_t>(place)];
  }
  int place_of(std::size_t range, int server) const;
  // The primary, then the live servers that hold copies.
  template <class Live>
  std::vector<int> holders(std::size_t range, Live&& live) const {
    std::vector<int> found;
    for (int place = 0; place < servers() && static_cast<int>(found.size()) <= replicas_; ++place) {
      if (live(server(range, place))) found.push_back(server(range, place));
    }
    return found;
  }
  // The primary; -1 if no server is live.
  template <class Live>
  int primary(std::size_t range, Live&& live) const {
    for (int place = 0; place < servers(); ++place) {
      if (live(server(range, place))) return server(range, place);
    }
    return -1;
  }
  // The server that this one, which is live, asks for hot rows of the range (P12): itself if it is
  // the first.
  template <class Live>
  int parent(std::size_t range, int server, int fan_out, Live&& live) const {
    std::vector<int> before;
    for (int place = 0; this->server(range, place) != server; ++place) {
      if (live(this->server(range, place))) before.push_back(this->server(range, place));
    }
    if (before.empty()) return server;
    return before[(before.size() - 1) / static_cast<std::size_t>(fan_out)];
  }

 private:
  std::int64_t rows_;
  std::vector<int> servers_;
  int replicas_;
  int shift_ = 0;            // a range has 1 << shift_ rows
  std::vector<int> orders_;  // by range and place
};

}  // namespace vol::ps
