// The part of a linear model that changes with every step, whatever the row: the rate, and the
// penalty and average that are due for all weights together. Internal to linear models.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace learn {

// The options that the clock needs, in the form it computes with.
struct Pace {
  enum class Rate { kConstant, kInverseScaling, kOptimal };
  Rate rate = Rate::kConstant;
  double eta0 = 0;
  double power_t = 0;
  double alpha = 0;
  double first = 0;  // t0 of the optimal rate
  double l2 = 0;     // alpha's parts
  double l1 = 0;
  std::int64_t average_from = 0;
};

struct Clock {
  std::int64_t steps = 0;  // taken so far
  double scale = 1;        // weights = scale * those in the array
  double charge = 0;       // L1 due from each weight since the first step
  // The average of n steps, of which m had been averaged at the last fold, is (array + lag *
  // weights in the array) * max(m, 1) / n.
  double lag = 0;
  double folded = 1;  // max(m, 1)

  double rate(const Pace& pace) const {
    const auto before = static_cast<double>(steps);
    switch (pace.rate) {
      case Pace::Rate::kOptimal:
        return 1 / (pace.alpha * (pace.first + before));
      case Pace::Rate::kInverseScaling:
        return pace.eta0 * std::pow(before + 1, -pace.power_t);
      case Pace::Rate::kConstant:
        break;
    }
    return pace.eta0;
  }

  std::int64_t averaged(const Pace& pace) const {
    return std::max(std::int64_t{0}, steps - pace.average_from + 1);
  }

  // begin_step() adds the penalty of a step before the weights move; end_step() ends it after they
  // have.
  void begin_step(const Pace& pace, double eta) {
    scale *= std::max(0.0, 1 - eta * pace.l2);  // too long a step leaves nothing
    charge += eta * pace.l1;
  }
  void end_step(const Pace& pace) {
    ++steps;
    if (steps >= pace.average_from) lag += scale / folded;
  }
};

}  // namespace learn
