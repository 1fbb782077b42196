// Folds: how a rank combines the updates that have arrived with its own vector.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dstorm/errors.hpp"
#include "dstorm/segment.hpp"

namespace vol {

// The result of a gather, or of an allreduce.
struct Gathered {
  std::size_t count = 0;   // updates folded
  std::vector<int> ranks;  // their senders, in the order of the fold
  std::vector<std::int64_t>
      staleness;              // this rank's iteration less the update's; below 0: sender is ahead
  std::vector<int> rejected;  // senders of updates refused as not finite
  std::vector<int> clipped;   // senders of updates scaled down to max_norm, and then folded

  bool operator==(const Gathered& other) const = default;
};

// A built-in fold, or the user's own. A value, which any thread may copy. It does nothing by
// itself: gather() and allreduce() apply it.
class Fold {
 public:
  enum class Kind : std::uint8_t {
    kAvg,
    kSum,
    kWeighted,
    kReplace,
    kMedian,
    kTrimmedMean,
    kLowest,
    kUser
  };
  // A function that gets this rank's values, which it changes in place, and the updates, all as
  // bytes. Dense<T>::fold makes one of a function over T.
  using Function = std::function<void(std::span<std::byte>, std::span<const dstorm::Update>)>;

  // (own + updates) / (count + 1). For integers it is the exact mean, rounded toward zero; so is
  // every mean that trimmed_mean() and median() take.
  static Fold avg() { return Fold(Kind::kAvg); }
  static Fold sum() { return Fold(Kind::kSum); }  // own + updates; integers wrap
  static Fold weighted() {
    return Fold(Kind::kWeighted);
  }  // by mixing weights; integers: in double
  static Fold replace() { return Fold(Kind::kReplace); }  // the newest update
  // The values of the lowest rank, of this one and the senders. For the start of a loop.
  static Fold lowest() { return Fold(Kind::kLowest); }
  static Fold median() { return Fold(Kind::kMedian); }  // element by element, own among them
  // Element by element, the mean without the floor(fraction * (count + 1)) smallest and as many
  // largest. Throws ConfigError unless 0 <= fraction < 0.5.
  static Fold trimmed_mean(double fraction) {
    if (!(fraction >= 0 && fraction < 0.5)) {
      throw dstorm::ConfigError(
          "TRIMMED_MEAN(" + std::to_string(fraction) +
          "): the fraction cut off at each end must be at least 0 and below 0.5");
    }
    Fold fold(Kind::kTrimmedMean);
    fold.fraction_ = fraction;
    return fold;
  }
  // Copies each update into its sender's row of `rows`, and leaves this rank's values as they are.
  // `rows` has a row as long as the vector for each rank, and must outlive the fold.
  static Fold into_rows(std::span<std::byte> rows) {
    return user([rows](std::span<std::byte> mine, std::span<const dstorm::Update> updates) {
      for (const dstorm::Update& update : updates) {
        const std::size_t begin = static_cast<std::size_t>(update.rank) * mine.size();
        if (begin + mine.size() > rows.size()) {
          throw dstorm::ConfigError("there are " + std::to_string(rows.size()) +
                                    " bytes of rows; rank " + std::to_string(update.rank) +
                                    " needs " + std::to_string(begin + mine.size()));
        }
        std::ranges::copy(update.payload, rows.subspan(begin, mine.size()).begin());
      }
    });
  }
  static Fold user(Function function) {
    Fold fold(Kind::kUser);
    fold.function_ = std::move(function);
    return fold;
  }

  Kind kind() const noexcept { return kind_; }
  double fraction() const noexcept { return fraction_; }
  const Function& function() const noexcept { return function_; }
  const char* name() const noexcept {
    constexpr const char* kNames[] = {"AVG",    "SUM",          "WEIGHTED", "REPLACE",
                                      "MEDIAN", "TRIMMED_MEAN", "LOWEST",   "a user fold"};
    return kNames[static_cast<int>(kind_)];
  }

 private:
  explicit Fold(Kind kind) : kind_(kind) {}

  Kind kind_;
  double fraction_ = 0;
  Function function_;
};

}  // namespace vol
