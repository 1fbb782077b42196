#include "learn/linear.hpp"

#include <algorithm>
#include <cmath>

#include "learn/linear_check.hpp"
#include "learn/linear_train.hpp"

namespace learn {
namespace {

void check(const LinearOptions& options) {
  const auto at_least_0 = [](double value) { return std::isfinite(value) && value >= 0; };
  require(at_least_0(options.epsilon), "epsilon", options.epsilon, "at least 0");
  require(at_least_0(options.alpha), "alpha", options.alpha, "at least 0");
  require(options.l1_ratio >= 0 && options.l1_ratio <= 1, "l1_ratio", options.l1_ratio,
          "from 0 to 1");
  require(at_least_0(options.power_t), "power_t", options.power_t, "at least 0");
  require(options.average_from >= 1, "average_from", static_cast<double>(options.average_from),
          "at least 1, the first step");
  require(options.outputs >= 1, "outputs", options.outputs, "at least 1");
  check_class_weights(options);
  if (options.rate == Rate::kOptimal) {
    require(options.alpha > 0, "alpha", options.alpha,
            "above 0 for the optimal rate, which is 1 / (alpha t); give alpha or another rate");
  } else {
    require(std::isfinite(options.eta0) && options.eta0 > 0, "eta0", options.eta0, "above 0");
  }
  if (options.loss == Loss::kSoftmax) {
    require(options.outputs >= 2, "outputs", options.outputs,
            "at least 2 for softmax, one for each class");
  }
}

Pace pace_of(const LinearOptions& options) {
  Pace pace;
  pace.eta0 = options.eta0;
  pace.power_t = options.power_t;
  pace.alpha = options.alpha;
  pace.average_from = options.average_from;
  if (options.rate == Rate::kOptimal) {
    // The first step is as long as a typical weight, 1 / alpha^(1/4); t0 follows from that.
    pace.rate = Pace::Rate::kOptimal;
    pace.first = std::sqrt(std::sqrt(options.alpha)) / options.alpha;
  } else if (options.rate == Rate::kInverseScaling) {
    pace.rate = Pace::Rate::kInverseScaling;
  }
  if (options.rate != Rate::kAdaGrad) {  // AdaGrad's penalty goes by each weight's own rate
    pace.l1 = options.alpha * options.l1_ratio;
    pace.l2 = options.alpha - pace.l1;
  }
  return pace;
}

}  // namespace

template <class T>
Linear<T>::Linear(const LinearOptions& options, std::int64_t features, LinearArrays<T> arrays,
                  std::int64_t steps)
    : options_(options), features_(features), arrays_(arrays), pace_(pace_of(options)) {
  check(options);
  require(features >= 0, "features", static_cast<double>(features), "at least 0");
  require(steps >= 0, "steps", static_cast<double>(steps), "at least 0");
  const std::size_t count = weights_of(features, options.outputs);
  constexpr auto kShape = "(features + 1) * outputs";
  check_length("weights", arrays.weights.size(), count, kShape);
  if (!arrays.average.empty()) check_length("average", arrays.average.size(), count, kShape);
  const bool adagrad = options.rate == Rate::kAdaGrad;
  check_length("squares", arrays.squares.size(), adagrad ? count : 0,
               adagrad ? kShape : "as the rate is not AdaGrad's");
  clock_.steps = steps;
  clock_.folded = static_cast<double>(std::max(std::int64_t{1}, clock_.averaged(pace_)));
  if (adagrad && options.alpha > 0) touched_.assign(static_cast<std::size_t>(features), steps);
  if (pace_.l1 > 0) charged_.assign(count, T{0});
}

template <class T>
Model<T> Linear<T>::model() {
  const auto data = [](auto& values) { return values.empty() ? nullptr : values.data(); };
  const double l1 = options_.alpha * options_.l1_ratio;
  return {arrays_.weights.data(),
          data(arrays_.average),
          data(arrays_.squares),
          data(charged_),
          data(touched_),
          static_cast<std::size_t>(features_),
          static_cast<std::size_t>(options_.outputs),
          options_.eta0,
          options_.alpha - l1,
          l1};
}

template <class T>
template <class Matrix>
double Linear<T>::train_rows(const Matrix& matrix, const Targets<T>& targets, const Rows& rows) {
  check_features(matrix.features, features_);
  check_examples(matrix, targets, rows);
  const Lesson lesson{options_.loss, options_.epsilon, options_.intercept, pace_,
                      options_.class_weights};
  return train_on(matrix, targets, rows, model(), lesson, clock_);
}

template <class T>
double Linear<T>::train(const Csr<T>& matrix, const Targets<T>& targets, const Rows& rows) {
  return train_rows(matrix, targets, rows);
}

template <class T>
double Linear<T>::train(const Dense<T>& matrix, const Targets<T>& targets, const Rows& rows) {
  return train_rows(matrix, targets, rows);
}

template <class T>
bool Linear<T>::finish() {
  const Model<T> all = model();
  catch_up(all, clock_);
  fold(all, pace_, clock_);
  return std::all_of(arrays_.weights.begin(), arrays_.weights.end(),
                     [](T weight) { return std::isfinite(weight); });
}

template class Linear<float>;
template class Linear<double>;

}  // namespace learn
