// The exceptions that dStorm throws. Every message names the value, the limit and the way out.
#pragma once

#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace dstorm {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Misuse, or a set-up that cannot work: shapes that differ between ranks, no space, a bad graph.
class ConfigError : public Error {
 public:
  using Error::Error;
};

// A wait reached its time limit. `ranks` are the ranks it was still waiting for.
class TimeoutError : public Error {
 public:
  TimeoutError(const std::string& what, std::vector<int> ranks)
      : Error(what), ranks_(std::move(ranks)) {}
  const std::vector<int>& ranks() const noexcept { return ranks_; }

 private:
  std::vector<int> ranks_;
};

// `ranks` died or left in the middle of something that cannot go on without them, or the others
// have evicted or cut off this rank.
class PeerError : public Error {
 public:
  PeerError(const std::string& what, std::vector<int> ranks)
      : Error(what), ranks_(std::move(ranks)) {}
  const std::vector<int>& ranks() const noexcept { return ranks_; }

 private:
  std::vector<int> ranks_;
};

// The ranks move to another group (Group::supersede). The call that throws this has done nothing,
// and is to be made again in the new group.
class Superseded : public Error {
 public:
  using Error::Error;
};

// `ranks` are in another collective call than this one (Group::exchange).
class OtherCalls : public ConfigError {
 public:
  OtherCalls(const std::string& what, std::vector<int> ranks)
      : ConfigError(what), ranks_(std::move(ranks)) {}
  const std::vector<int>& ranks() const noexcept { return ranks_; }

 private:
  std::vector<int> ranks_;
};

// A call of several exchanges failed on a rank, which has begun it anew, while this rank went on to
// a later step (Group::exchange). It works when all ranks begin it anew.
class BegunAnew : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

// Texts for messages: "rank 3" or "ranks 1, 4, 7"; "1.5 s".
std::string describe_ranks(const std::vector<int>& ranks);
std::string format_seconds(std::chrono::nanoseconds time);

}  // namespace dstorm
