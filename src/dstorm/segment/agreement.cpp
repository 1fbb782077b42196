#include "dstorm/segment/agreement.hpp"

#include <algorithm>
#include <map>

namespace dstorm {
namespace {

constexpr int kMostDepth = 1024;

// The options that every rank must have alike, as text, so that an error can show a difference. The
// first kGiven are as the program gives them; the others follow from its arguments.
constexpr std::size_t kGiven = 4;
std::vector<std::pair<std::string, std::string>> agreed_options(const SegmentOptions& options) {
  return {{"kind", options.kind},
          {"depth", std::to_string(options.depth)},
          {"policy", options.policy == Policy::kLatest ? "latest" : "queue"},
          {"graph", options.graph.name()},
          {"slot_bytes", std::to_string(options.slot_bytes)},
          {"the checksum of the graph's edges", std::to_string(options.graph.fingerprint())},
          {"the size of MALT's own memory for it, in bytes,", std::to_string(options.home_bytes)},
          {"result_bytes", std::to_string(options.result_bytes)}};
}

using Values = std::map<std::string, std::vector<int>>;  // each value's ranks

// Reads what a rank has posted: a line for each option.
void add_post(std::string_view text, int rank, std::map<std::string, Values>& seen) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    const std::size_t tab = std::min(line.find('\t'), line.size());
    const std::string_view value = line.substr(std::min(tab + 1, line.size()));
    seen[std::string(line.substr(0, tab))][std::string(value)].push_back(rank);
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
}

}  // namespace

std::string describe(const SegmentOptions& options) {
  return options.call.empty() ? "segment '" + options.name + "'" : options.call;
}

void check_options(const SegmentOptions& options, int ranks) {
  const std::string what = describe(options);
  if (options.depth < 1 || options.depth > kMostDepth) {
    throw ConfigError(what + ": depth is " + std::to_string(options.depth) +
                      "; it must be from 1 to " + std::to_string(kMostDepth));
  }
  if (options.slot_bytes == 0) throw ConfigError(what + " has 0 bytes; a vector needs an element");
  const double total = static_cast<double>(options.slot_bytes) * options.depth * ranks;
  if (total > 1e15) {
    throw ConfigError(what + " needs ranks x depth x bytes = " + std::to_string(ranks) + " x " +
                      std::to_string(options.depth) + " x " + std::to_string(options.slot_bytes) +
                      " bytes, which no machine has");
  }
  options.graph.check(ranks);
}

void check_agreement(const SegmentOptions& options, Group& group) {
  std::string mine;
  for (const auto& [key, value] : agreed_options(options)) mine += key + "\t" + value + "\n";
  mine.resize(std::min(mine.size(), Group::kMostExchanged));
  const auto posts = group.exchange(describe(options) + ", step 1",
                                    std::as_bytes(std::span(mine.data(), mine.size())));
  std::map<std::string, Values> seen;
  for (std::size_t r = 0; r < posts.size(); ++r) {
    if (!posts[r]) continue;
    add_post({reinterpret_cast<const char*>(posts[r]->data()), posts[r]->size()},
             static_cast<int>(r), seen);
  }
  std::string differences;
  for (std::size_t i = 0; const auto& [key, own] : agreed_options(options)) {
    if (i++ == kGiven && !differences.empty()) break;
    const Values& values = seen[key];
    if (values.size() < 2) continue;
    differences += (differences.empty() ? "" : "; ") + key + " is";
    std::string separator = " ";
    for (const auto& [value, ranks] : values) {
      differences += separator + value + " on " + describe_ranks(ranks);
      separator = ", ";
    }
  }
  if (!differences.empty()) {
    throw ConfigError("vector '" + options.name + "' is not the same on all ranks: " + differences +
                      "; every rank must make its vectors in the same order with the same options");
  }
}

}  // namespace dstorm
