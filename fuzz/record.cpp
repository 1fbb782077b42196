// The records of the other ranks, out of which a rank learns who is in the job.
//
// input: ranks (1 byte), then steps: what happens (1 byte), to whom (1 byte); a record's words, all
// but the checksum
#include <algorithm>

#include "dstorm/membership/membership.hpp"
#include "dstorm/membership/record.hpp"
#include "dstorm/slot/checksum.hpp"
#include "target.hpp"

namespace fuzz {
namespace {

constexpr int kOwn = 1;

// Such as it is, and with a checksum that fits.
std::vector<std::uint64_t> take_words(Input& input, std::size_t count) {
  std::vector<std::uint64_t> words(count);
  for (std::size_t i = 0; i + 1 < count; ++i) words[i] = input.take<std::uint64_t>();
  dstorm::Checksum checksum;
  checksum.add(std::as_bytes(std::span(words).first(count - 1)));
  words.back() = checksum.value();
  return words;
}

void check(const dstorm::Membership& membership, const dstorm::RecordFormat& format, int ranks) {
  using Standing = dstorm::Membership::Standing;
  const std::vector<int>& members = membership.view().members;
  require(std::is_sorted(members.begin(), members.end()), "members are sorted");
  require(std::all_of(members.begin(), members.end(), [&](int r) { return r >= 0 && r < ranks; }),
          "members are ranks of the job");
  require((membership.standing() == Standing::kEvicted) != membership.view().has(kOwn),
          "who is left out is no member");
  const auto words = format.pack(membership.record());
  const auto again = format.unpack(words);
  require(again && format.pack(*again) == words, "what a rank says can be read");
}

}  // namespace

void run(Input input) {
  const int ranks = 2 + input.take<std::uint8_t>() % 70;  // up to two words a set
  dstorm::View first;
  for (int r = 0; r < ranks; ++r) first.members.push_back(r);
  const dstorm::RecordFormat format(ranks);
  std::chrono::milliseconds now{0};
  dstorm::Membership membership({.rank = kOwn, .first = first}, now);
  std::uint64_t epoch = 0;
  while (!input.empty()) {
    const auto what = input.take<std::uint8_t>();
    const int rank = input.take<std::uint8_t>() % ranks;
    now += std::chrono::milliseconds(what);
    switch (what % 5) {
      case 0:
        membership.tick(now);
        break;
      case 1:
        membership.hear(rank, now);
        break;
      case 2:
        membership.reach(rank, what < 128 ? std::nullopt : std::optional(now / 2));
        break;
      case 3:
        membership.bury(rank, now);
        break;
      default:
        if (const auto record = format.unpack(take_words(input, format.words()))) {
          membership.observe(rank, *record, now);
        }
    }
    check(membership, format, ranks);
    require(membership.view().epoch >= epoch, "epochs only grow");
    epoch = membership.view().epoch;
  }
}

}  // namespace fuzz
