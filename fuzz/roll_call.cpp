// What the other ranks of a job say when they join it: each says what this one says, changed.
//
// input: this rank, the sharing asked for (1 byte each), then changes: roll call and rank (1 byte
// each), place (2 bytes), length (1 byte), the new bytes
#include <chrono>
#include <vector>

#include "dstorm/host/control.hpp"
#include "target.hpp"

namespace fuzz {
namespace {

constexpr int kRanks = 3;
constexpr std::size_t kCalls = 3;

struct Change {
  std::size_t call;
  std::size_t rank;
  std::size_t place;
  std::span<const std::byte> bytes;
};

class Changed final : public dstorm::Bootstrap {
 public:
  Changed(int rank, Input input) : rank_(rank) {
    while (!input.empty()) {
      Change change{};
      change.call = input.take<std::uint8_t>() % kCalls;
      change.rank = input.take<std::uint8_t>() % kRanks;
      change.place = input.take<std::uint16_t>();
      change.bytes = input.bytes(input.take<std::uint8_t>());
      changes_.push_back(change);
    }
  }
  int rank() const override { return rank_; }
  int size() const override { return kRanks; }
  std::vector<dstorm::Bytes> allgather(std::span<const std::byte> mine,
                                       const dstorm::Deadline&) override {
    std::vector all(kRanks, dstorm::Bytes(mine.begin(), mine.end()));
    for (const Change& change : changes_) {
      if (change.call != call_ || change.rank == static_cast<std::size_t>(rank_)) continue;
      dstorm::Bytes& theirs = all[change.rank];
      // A change beyond the end makes the record longer than it is due to be.
      const std::size_t place = change.place % (theirs.size() + 2);
      theirs.resize(std::max(theirs.size(), place));
      const std::size_t fits = std::min(change.bytes.size(), theirs.size() - place);
      std::copy_n(change.bytes.begin(), fits, theirs.begin() + static_cast<std::ptrdiff_t>(place));
    }
    ++call_;
    return all;
  }

 private:
  int rank_;
  std::size_t call_ = 0;
  std::vector<Change> changes_;
};

}  // namespace

void run(Input input) {
  const int rank = input.take<std::uint8_t>() % kRanks;
  const auto sharing = static_cast<dstorm::host::Sharing>(input.take<std::uint8_t>() % 3);
  Changed bootstrap(rank, input);
  is_refused([&] {
    const dstorm::host::Control control(bootstrap, sharing, std::chrono::milliseconds(1));
    std::size_t ranks = 0;
    for (const std::vector<int>& host : control.hosts()) {
      require(!host.empty() && std::is_sorted(host.begin(), host.end()), "a host's ranks, sorted");
      for (const int member : host) {
        require(&control.hosts()[static_cast<std::size_t>(control.host_of(member))] == &host,
                "a rank is of one host");
      }
      ranks += host.size();
    }
    require(ranks == kRanks && control.is_live(rank), "every rank has a host, and this one lives");
    require(control.cores() >= 1, "ranks run on something");
  });
}

}  // namespace fuzz
