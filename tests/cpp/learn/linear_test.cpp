#include "learn/linear.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "dstorm/errors.hpp"
#include "learn/linear_loss.hpp"

namespace learn {
namespace {

constexpr std::int64_t kRows = 60;
constexpr std::int64_t kFeatures = 11;
constexpr std::size_t kWidth = kFeatures;  // as an index

// Rows with a third of their values, or all, and a target for each.
struct Data {
  explicit Data(double density, int classes = 0) {
    std::mt19937 random(7);
    std::normal_distribution<double> normal;
    std::bernoulli_distribution present(density);
    for (std::int64_t i = 0; i < kRows; ++i) {
      double sum = 0;
      for (std::int32_t j = 0; j < kFeatures; ++j) {
        const double value = normal(random);
        dense.push_back(present(random) ? value : 0);
        if (dense.back() == 0) continue;
        columns.push_back(j);
        values.push_back(value);
        sum += j % 2 == 0 ? value : -value;
      }
      starts.push_back(static_cast<std::int64_t>(values.size()));
      targets.push_back(classes > 0 ? static_cast<double>(i % classes) : sum > 0 ? 1 : -1);
    }
  }
  Csr<double> csr() const { return {starts, columns, values, kFeatures}; }
  Dense<double> rows() const { return {dense, kFeatures}; }
  const double* row(std::int64_t i) const { return &dense[static_cast<std::size_t>(i) * kWidth]; }

  std::vector<std::int64_t> starts{0};
  std::vector<std::int32_t> columns;
  std::vector<double> values;
  std::vector<double> dense;
  std::vector<double> targets;
};

LinearOptions options_of(Loss loss, Rate rate = Rate::kConstant) {
  LinearOptions options;
  options.loss = loss;
  options.rate = rate;
  options.alpha = 0.05;
  options.eta0 = 0.1;
  options.intercept = false;
  return options;
}

std::vector<double> trained(const Data& data, const LinearOptions& options) {
  std::vector<double> weights((kWidth + 1) * static_cast<std::size_t>(options.outputs));
  Linear<double> linear(options, kFeatures, {weights});
  linear.train(data.csr(), {data.targets}, {0, kRows});
  EXPECT_TRUE(linear.finish());
  return weights;
}

void expect_near(const std::vector<double>& values, const std::vector<double>& expected) {
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], 1e-9) << i;
}

// The log loss, one step a row, every weight visited every time, and `penalise(w, j)` after each.
using Penalise = std::function<void(double& weight, std::size_t feature)>;
std::vector<double> log_loss_eagerly(
    const Data& data, double eta, const Penalise& penalise,
    const std::function<void(const std::vector<double>&)>& seen = [](const auto&) {}) {
  std::vector<double> weights(kWidth + 1);
  for (std::int64_t i = 0; i < kRows; ++i) {
    const double* x = data.row(i);
    const double y = data.targets[static_cast<std::size_t>(i)];
    const double p = std::inner_product(x, x + kFeatures, weights.begin(), 0.0);
    const double slope = -y / (1 + std::exp(y * p));
    for (std::size_t j = 0; j < kWidth; ++j) {
      weights[j] -= eta * slope * x[j];
      penalise(weights[j], j);
    }
    seen(weights);
  }
  return weights;
}

TEST(Loss, HasTheSlopeOfItsValues) {
  for (int loss = 0; loss < static_cast<int>(Loss::kSoftmax); ++loss) {
    for (const double y : {-1.0, 1.0}) {
      for (int tenth = -30; tenth < 30; ++tenth) {
        const double p = tenth / 10.0 + 0.05;  // away from the corners
        const auto at = [&](double value) {
          return loss_at(static_cast<Loss>(loss), 0.33, y, value);
        };
        const double rise = (at(p + 1e-6).loss - at(p - 1e-6).loss) / 2e-6;
        EXPECT_NEAR(at(p).slope, rise, 1e-6) << "loss " << loss << ", y " << y << ", p " << p;
      }
    }
  }
}

TEST(Loss, HasTheSlopesOfSoftmax) {
  const std::vector<double> values{0.3, -1.2, 2.5};
  const auto loss_of = [](std::vector<double> of) { return softmax_at(1.0, of.data(), 3); };
  std::vector<double> slopes = values;
  EXPECT_NEAR(softmax_at(1.0, slopes.data(), 3), std::log(std::exp(1.5) + 1 + std::exp(3.7)),
              1e-12);
  for (std::size_t k = 0; k < 3; ++k) {
    std::vector<double> above = values;
    std::vector<double> below = values;
    above[k] += 1e-6;
    below[k] -= 1e-6;
    EXPECT_NEAR(slopes[k], (loss_of(above) - loss_of(below)) / 2e-6, 1e-8);
  }
}

TEST(Loss, OfLargeValuesStaysFinite) {
  EXPECT_EQ(loss_at(Loss::kLog, 0, 1, -800).loss, 800);
  EXPECT_EQ(loss_at(Loss::kLog, 0, 1, 800).slope, 0);
  EXPECT_TRUE(std::isnan(loss_at(Loss::kHinge, 0, 1, NAN).loss));
}

// The gradient by differences of the losses, in every weight.
TEST(Gradient, IsTheSlopeOfTheLossesOfItsRows) {
  for (const int outputs : {1, 3}) {
    const Data data(0.4, outputs == 1 ? 0 : outputs);
    LinearOptions options = options_of(outputs == 1 ? Loss::kLog : Loss::kSoftmax);
    options.outputs = outputs;
    options.intercept = true;
    std::vector<double> weights((kWidth + 1) * static_cast<std::size_t>(outputs));
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = std::sin(static_cast<double>(i));
    const std::vector<double> importance(kRows, 0.5);
    const std::vector<std::uint32_t> order{7, 2, 59, 30, 2};
    const Targets<double> targets{data.targets, importance};
    const Rows rows{1, 5, order};
    std::vector<double> unused(weights.size());
    const auto losses_at = [&](const std::vector<double>& at) {
      return add_gradient<double>(data.csr(), targets, rows, options, at, unused);
    };
    std::vector<double> sparse(weights.size(), 1);  // added to, not replaced
    add_gradient<double>(data.csr(), targets, rows, options, weights, sparse);
    std::vector<double> dense(weights.size(), 1);
    add_gradient<double>(data.rows(), targets, rows, options, weights, dense);
    expect_near(dense, sparse);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      std::vector<double> above = weights;
      std::vector<double> below = weights;
      above[i] += 1e-6;
      below[i] -= 1e-6;
      EXPECT_NEAR(sparse[i] - 1, (losses_at(above) - losses_at(below)) / 2e-6, 1e-6) << i;
    }
  }
}

TEST(Linear, WeighsARowInTheOutputOfItsOwnClassAlone) {
  const Data data(0.3, 3);
  LinearOptions options = options_of(Loss::kLog);
  options.outputs = 3;
  options.class_weights = {2, 0.5, 1};
  const std::vector<double> together = trained(data, options);
  std::vector<double> gradient(together.size());
  const std::vector<double> zeros(together.size());
  add_gradient<double>(data.csr(), {data.targets}, {0, kRows}, options, zeros, gradient);

  for (std::size_t k = 0; k < 3; ++k) {  // each class against the rest
    Data alone = data;
    std::vector<double> importance;
    for (double& y : alone.targets) {
      y = y == static_cast<double>(k) ? 1 : -1;
      importance.push_back(y > 0 ? options.class_weights[k] : 1);
    }
    const Targets<double> targets{alone.targets, importance};
    std::vector<double> weights(kWidth + 1);
    std::vector<double> slopes(kWidth + 1);
    Linear<double> linear(options_of(Loss::kLog), kFeatures, {weights});
    linear.train(alone.csr(), targets, {0, kRows});
    ASSERT_TRUE(linear.finish());
    const std::vector<double> start(kWidth + 1);
    add_gradient<double>(alone.csr(), targets, {0, kRows}, options_of(Loss::kLog), start, slopes);
    for (std::size_t j = 0; j <= kWidth; ++j) {
      EXPECT_NEAR(together[j * 3 + k], weights[j], 1e-12);
      EXPECT_NEAR(gradient[j * 3 + k], slopes[j], 1e-12);
    }
  }
}

TEST(Linear, ShrinksAllWeightsAtEachStep) {
  const Data data(0.3);
  const LinearOptions options = options_of(Loss::kLog);
  // Here the weights shrink before the step, and there after it, so the step is longer by that
  // factor.
  const double kept = 1 - options.eta0 * options.alpha;
  const auto expected = log_loss_eagerly(data, options.eta0 / kept,
                                         [&](double& weight, std::size_t) { weight *= kept; });
  expect_near(trained(data, options), expected);
}

TEST(Linear, FoldsAScaleThatBecomesTiny) {
  const Data data(0.3);
  LinearOptions options = options_of(Loss::kLog);
  options.alpha = 9.5;
  const double kept = 1 - options.eta0 * options.alpha;
  const auto expected = log_loss_eagerly(data, options.eta0 / kept,
                                         [&](double& weight, std::size_t) { weight *= kept; });
  expect_near(trained(data, options), expected);
}

// Tsuruoka, Tsujii and Ananiadou 2009, figure 2, with each weight charged at every step.
TEST(Linear, ChargesL1UpToZero) {
  const Data data(1);
  LinearOptions options = options_of(Loss::kLog);
  options.l1_ratio = 1;
  double due = 0;
  std::vector<double> charged(kWidth);
  const auto expected = log_loss_eagerly(data, options.eta0, [&](double& weight, std::size_t j) {
    if (j == 0) due += options.eta0 * options.alpha;
    const double before = weight;
    if (weight > 0) {
      weight = std::max(0.0, weight - (due + charged[j]));
    } else if (weight < 0) {
      weight = std::min(0.0, weight + (due - charged[j]));
    }
    charged[j] += weight - before;
  });
  expect_near(trained(data, options), expected);
}

TEST(Linear, LeavesNoWeightBehindL1) {
  Data data(0.3);
  LinearOptions options = options_of(Loss::kLog);
  options.alpha = 0;
  std::vector<double> weights = trained(data, options);
  options.alpha = 1000;
  options.l1_ratio = 1;
  Linear<double> linear(options, kFeatures, {weights});
  linear.train(data.csr(), {data.targets}, {0, 1});
  ASSERT_TRUE(linear.finish());
  EXPECT_EQ(std::ranges::count(weights, 0), kFeatures + 1);
}

TEST(Linear, TakesAdaGradsStepsAndItsPenalties) {
  const Data data(1);
  LinearOptions options = options_of(Loss::kLog, Rate::kAdaGrad);
  options.l1_ratio = 0.4;
  std::vector<double> squares(kWidth);
  std::vector<double> weights(kWidth + 1);
  for (std::int64_t i = 0; i < kRows; ++i) {
    const double* x = data.row(i);
    const double y = data.targets[static_cast<std::size_t>(i)];
    const double p = std::inner_product(x, x + kFeatures, weights.begin(), 0.0);
    for (std::size_t j = 0; j < kWidth; ++j) {
      const double slope = -y / (1 + std::exp(y * p)) * x[j];
      squares[j] += slope * slope;
      const double rate = options.eta0 / std::sqrt(squares[j]);
      const double moved = weights[j] - rate * slope;
      weights[j] = std::copysign(std::max(0.0, std::abs(moved) - rate * 0.4 * options.alpha) /
                                     (1 + rate * 0.6 * options.alpha),
                                 moved);
    }
  }
  std::vector<double> ours(kWidth + 1);
  std::vector<double> sums(kWidth + 1);
  Linear<double> linear(options, kFeatures, {ours, {}, sums});
  linear.train(data.csr(), {data.targets}, {0, kRows});
  ASSERT_TRUE(linear.finish());
  expect_near(ours, weights);
  sums.pop_back();
  expect_near(sums, squares);
}

TEST(Linear, AveragesTheWeightsOfTheStepsAskedFor) {
  const Data data(0.3);
  LinearOptions options = options_of(Loss::kLog);
  options.average_from = 21;
  const double kept = 1 - options.eta0 * options.alpha;
  std::vector<double> expected(kWidth + 1);
  std::int64_t step = 0;
  log_loss_eagerly(
      data, options.eta0 / kept, [&](double& weight, std::size_t) { weight *= kept; },
      [&](const std::vector<double>& weights) {
        if (++step < 21) return;
        for (std::size_t j = 0; j < kWidth; ++j) expected[j] += weights[j] / (kRows - 20);
      });
  std::vector<double> weights(kWidth + 1);
  std::vector<double> average(kWidth + 1);
  Linear<double> linear(options, kFeatures, {weights, average});
  for (const std::int64_t first : {0, 13, 30, 47}) {  // also after finish()
    const std::int64_t last = first == 0 ? 13 : std::min(first + 17, kRows);
    linear.train(data.csr(), {data.targets}, {first, last});
    ASSERT_TRUE(linear.finish());
  }
  expect_near(average, expected);
}

struct Way {
  const char* name;
  LinearOptions options;
};
std::vector<Way> ways() {
  LinearOptions l1 = options_of(Loss::kHinge, Rate::kOptimal);
  l1.l1_ratio = 0.5;
  l1.intercept = true;
  LinearOptions softmax = options_of(Loss::kSoftmax, Rate::kInverseScaling);
  softmax.outputs = 3;
  LinearOptions adagrad = options_of(Loss::kLog, Rate::kAdaGrad);
  adagrad.outputs = 3;
  adagrad.intercept = true;
  return {{"L2", options_of(Loss::kSquaredHinge)},
          {"elastic net", l1},
          {"softmax", softmax},
          {"AdaGrad", adagrad}};
}

TEST(Linear, GivesTheSameBitsInPieces) {
  for (const Way& way : ways()) {
    SCOPED_TRACE(way.name);
    const Data data(0.3, way.options.outputs > 1 ? way.options.outputs : 0);
    const auto count = (kWidth + 1) * static_cast<std::size_t>(way.options.outputs);
    const bool adagrad = way.options.rate == Rate::kAdaGrad;
    std::vector<double> results[2];
    double losses[2]{};
    for (const bool pieces : {false, true}) {
      std::vector<double> weights(count);
      std::vector<double> average(count);
      std::vector<double> squares(adagrad ? count : 0);
      Linear<double> linear(way.options, kFeatures, {weights, average, squares});
      for (std::int64_t first = 0; first < kRows; first += pieces ? 7 : kRows) {
        losses[pieces] += linear.train(data.csr(), {data.targets},
                                       {first, std::min(kRows, first + (pieces ? 7 : kRows))});
      }
      ASSERT_TRUE(linear.finish());
      EXPECT_EQ(linear.steps(), kRows);
      weights.insert(weights.end(), average.begin(), average.end());
      results[pieces] = weights;
    }
    EXPECT_EQ(results[0], results[1]);
    EXPECT_NEAR(losses[0], losses[1], 1e-9);
  }
}

TEST(Linear, LearnsEachClassAgainstTheRestInOnePass) {
  const Data data(0.3, 3);
  LinearOptions options = options_of(Loss::kHinge, Rate::kOptimal);
  options.intercept = true;
  LinearOptions all = options;
  all.outputs = 3;
  const std::vector<double> together = trained(data, all);
  for (std::size_t k = 0; k < 3; ++k) {
    Data one = data;
    for (double& target : one.targets) target = target == static_cast<double>(k) ? 1 : -1;
    const std::vector<double> alone = trained(one, options);
    for (std::size_t j = 0; j <= kWidth; ++j) EXPECT_NEAR(together[j * 3 + k], alone[j], 1e-9);
  }
}

TEST(Linear, CountsARowAsOftenAsItsWeight) {
  const Data data(0.3);
  const LinearOptions options = options_of(Loss::kSquared);
  std::vector<double> weights(kWidth + 1);
  std::vector<double> of_rows(kRows, 0);
  of_rows[3] = 2;
  Linear<double> linear(options, kFeatures, {weights});
  const double loss = linear.train(data.csr(), {data.targets, of_rows}, {3, 5});
  ASSERT_TRUE(linear.finish());
  EXPECT_DOUBLE_EQ(loss, 1);  // twice (0 - y)^2 / 2
  const double kept = 1 - options.eta0 * options.alpha;
  for (std::size_t j = 0; j < kWidth; ++j) {
    EXPECT_NEAR(weights[j], 2 * options.eta0 * data.targets[3] * data.row(3)[j] * kept, 1e-12);
  }
}

TEST(Linear, TakesDenseRowsAsSparseOnesAndInTheOrderGiven) {
  const Data data(1);
  const LinearOptions options = options_of(Loss::kHinge, Rate::kOptimal);
  std::vector<std::uint32_t> order(kRows);
  shuffle(order, 3);
  std::vector<double> sparse(kWidth + 1);
  std::vector<double> dense(kWidth + 1);
  Linear<double> of_sparse(options, kFeatures, {sparse});
  Linear<double> of_dense(options, kFeatures, {dense});
  of_sparse.train(data.csr(), {data.targets}, {0, kRows, order});
  of_dense.train(data.rows(), {data.targets}, {0, kRows, order});
  ASSERT_TRUE(of_sparse.finish() && of_dense.finish());
  expect_near(dense, sparse);
  std::vector<double> values(kRows);
  std::vector<double> same(kRows);
  decision_values(data.csr(), std::span<const double>(sparse), 1, 0, kRows, std::span(values));
  decision_values(data.rows(), std::span<const double>(sparse), 1, 0, kRows, std::span(same));
  expect_near(values, same);
  EXPECT_NEAR(values[5], std::inner_product(data.row(5), data.row(6), sparse.begin(), 0.0), 1e-12);
  std::ranges::sort(order);
  for (std::uint32_t i = 0; i < kRows; ++i) EXPECT_EQ(order[i], i);
}

TEST(Linear, SaysWhenItHasDiverged) {
  const Data data(0.3);
  LinearOptions options = options_of(Loss::kSquared);
  options.eta0 = 1e300;
  options.alpha = 0;
  std::vector<double> weights(kWidth + 1);
  Linear<double> linear(options, kFeatures, {weights});
  linear.train(data.csr(), {data.targets}, {0, kRows});
  EXPECT_FALSE(linear.finish());
}

void expect_refused(const std::function<void()>& call, const std::string& words) {
  try {
    call();
    ADD_FAILURE() << "taken; expected: " << words;
  } catch (const dstorm::ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST(Linear, RefusesWhatDoesNotFit) {
  const Data data(0.3);
  std::vector<double> weights(kWidth + 1);
  const auto make = [&](const LinearOptions& options) {
    return Linear<double>(options, kFeatures, {weights});
  };
  LinearOptions options;
  options.alpha = 0;
  expect_refused([&] { make(options); }, "alpha is 0; it must be above 0 for the optimal rate");
  options = options_of(Loss::kSoftmax);
  expect_refused([&] { make(options); }, "outputs is 1; it must be at least 2 for softmax");
  options = options_of(Loss::kLog);
  options.class_weights = {1};
  expect_refused([&] { make(options); }, "class_weights is 1; it must be 0 for one output");
  options.class_weights = {1, 2};
  expect_refused([&] { make(options); }, "class_weights has 2 values; it needs 1");
  options = options_of(Loss::kLog, Rate::kAdaGrad);
  expect_refused([&] { make(options); }, "squares has 0 values; it needs 12");
  options = options_of(Loss::kLog, Rate::kConstant);
  options.eta0 = -1;
  expect_refused([&] { make(options); }, "eta0 is -1; it must be above 0");
  options = options_of(Loss::kLog);
  options.outputs = 2;
  expect_refused([&] { make(options); }, "weights has 12 values; it needs 24");
  options.outputs = 1;
  Linear<double> linear = make(options);
  const auto train = [&](const Csr<double>& matrix, const Rows& rows) {
    linear.train(matrix, {data.targets}, rows);
  };
  expect_refused([&] { train(data.csr(), {0, kRows + 1}); }, "rows 0 to 61 do not lie within");
  expect_refused([&] { train(data.csr(), {5, 4}); }, "rows 5 to 4");
  const std::vector<std::uint32_t> order{0, 60};
  expect_refused([&] { train(data.csr(), {0, 2, order}); }, "the order has row 60");
  Csr<double> wider = data.csr();
  wider.features = 12;
  expect_refused([&] { train(wider, {0, 1}); }, "the matrix has 12 features; the model has 11");
  EXPECT_EQ(linear.steps(), 0);
}

}  // namespace
}  // namespace learn
