// Linear models by stochastic gradient descent, one row at a time (Bottou, "Stochastic Gradient
// Descent Tricks", 2012). The caller trains in pieces as short as it wants between two exchanges.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "learn/linear_clock.hpp"
#include "learn/matrix.hpp"
#include "learn/order.hpp"

namespace learn {

// The loss for a target y and a decision value p. For the first five losses y is -1 or 1; for the
// next four y is any number. With several outputs y is the number of a class, and all losses but
// the last fit each output to -1 or 1, one class against the rest.
enum class Loss {
  kHinge,                      // max(0, 1 - yp)
  kPerceptron,                 // max(0, -yp)
  kSquaredHinge,               // max(0, 1 - yp)^2
  kLog,                        // log(1 + exp(-yp))
  kModifiedHuber,              // max(0, 1 - yp)^2, or -4yp below yp = -1
  kSquared,                    // (p - y)^2 / 2
  kHuber,                      // (p - y)^2 / 2, or epsilon |p - y| - epsilon^2 / 2 beyond epsilon
  kEpsilonInsensitive,         // max(0, |p - y| - epsilon)
  kSquaredEpsilonInsensitive,  // max(0, |p - y| - epsilon)^2
  kSoftmax,                    // -log of class y's share of exp(p), over all outputs together
};

// The length of step t; t counts rows from 1.
enum class Rate {
  kConstant,        // eta0
  kInverseScaling,  // eta0 / t^power_t
  kOptimal,         // 1 / (alpha (t0 + t - 1)), t0 by Bottou's rule, as in scikit-learn
  kAdaGrad,         // eta0 / sqrt(sum of the weight's squared gradients) (Duchi et al. 2011)
};

struct LinearOptions {
  Loss loss = Loss::kHinge;
  double epsilon = 0.1;  // for the losses that have one
  // The penalty: alpha ((1 - l1_ratio) |w|^2 / 2 + l1_ratio |w|_1), without the intercepts.
  double alpha = 1e-4;
  double l1_ratio = 0;
  Rate rate = Rate::kOptimal;
  double eta0 = 0.01;
  double power_t = 0.25;
  // Whether the model has intercepts. With sparse rows their steps are a hundredth of the others'
  // (except with AdaGrad): the intercept alone is in every row, and would oscillate.
  bool intercept = true;
  std::int64_t average_from = 1;  // the first step averaged, if there is an average
  int outputs = 1;                // 1, or the number of classes
  // For several outputs, except with softmax: the weight of a row's loss in the output of its own
  // class (not in the other outputs). One value an output, at least 0; empty: all 1.
  std::vector<double> class_weights = {};
};

// The caller's memory. Each array has (features + 1) * outputs values: a row of outputs for each
// feature, and a last row of intercepts. The arrays must outlive the model.
template <class T>
struct LinearArrays {
  std::span<T> weights;       // where training starts
  std::span<T> average = {};  // of the weights over the steps, from 0; empty: none
  std::span<T> squares = {};  // AdaGrad's sums, from 0; for that rate only
};

// The targets of a matrix's rows.
template <class T>
struct Targets {
  std::span<const T> values;        // one a row
  std::span<const T> weights = {};  // of each row's loss, at least 0; empty: all 1
};

template <class T>
struct Model;

// A linear model in training. T is float or double.
//
// Some work on the weights is delayed. L2 is a common scale (Bottou). L1 records what each weight
// has been charged (Tsuruoka, Tsujii and Ananiadou 2009, section 3.2). AdaGrad applies both by one
// proximal step for all steps in which a weight was not touched. The average records what is
// missing from it (Xu 2011; Bottou, section 5.1). So the arrays hold the true values only after
// finish(): call it before they are read, exchanged or changed. Training in pieces gives the same
// bits as in one piece, as long as finish() is called at the same steps.
//
// For one thread at a time.
template <class T>
class Linear {
 public:
  // Continues after `steps` steps, for a model whose arrays have been kept. Throws
  // dstorm::ConfigError if the options or the arrays' lengths are out of range.
  Linear(const LinearOptions& options, std::int64_t features, LinearArrays<T> arrays,
         std::int64_t steps = 0);

  // Takes one step for each of `rows`. Returns the sum of their losses, each before its step and
  // times its weight; with several outputs, the sum over all of them. The matrix must have passed
  // its check(). Throws dstorm::ConfigError, before the first step, if features, targets or rows do
  // not fit.
  double train(const Csr<T>& matrix, const Targets<T>& targets, const Rows& rows);
  double train(const Dense<T>& matrix, const Targets<T>& targets, const Rows& rows);

  // Makes the arrays hold the true values. Returns whether all weights are finite; if not, training
  // has diverged.
  [[nodiscard]] bool finish();

  std::int64_t steps() const noexcept { return clock_.steps; }

 private:
  Model<T> model();
  template <class Matrix>
  double train_rows(const Matrix& matrix, const Targets<T>& targets, const Rows& rows);

  LinearOptions options_;
  std::int64_t features_;
  LinearArrays<T> arrays_;
  Pace pace_;
  Clock clock_;
  std::vector<T> charged_;  // by L1, for each weight
  // by AdaGrad's penalty, for each feature: the steps it has had
  std::vector<std::int64_t> touched_;
};

// Computes X W + b for rows first to last - 1 of a matrix: `outputs` values a row, one row after
// the other. `weights` as in LinearArrays. Throws dstorm::ConfigError if lengths do not fit.
template <class T>
void decision_values(const Csr<T>& matrix, std::span<const T> weights, int outputs,
                     std::int64_t first, std::int64_t last, std::span<T> values);
template <class T>
void decision_values(const Dense<T>& matrix, std::span<const T> weights, int outputs,
                     std::int64_t first, std::int64_t last, std::span<T> values);

// Adds to `gradient`, which has the layout of the weights, the slopes of the weighted losses of
// `rows` in all weights, without the penalty. This is a mini-batch's part of a step that many ranks
// take together (SendGradient: Zhang et al., "MLlib*", ICDE 2019, section II.B). Of the options
// it uses loss, epsilon, intercept and outputs. Returns the sum of the losses. Throws
// dstorm::ConfigError if lengths or rows do not fit.
template <class T>
double add_gradient(const Csr<T>& matrix, const Targets<T>& targets, const Rows& rows,
                    const LinearOptions& options, std::span<const T> weights,
                    std::span<T> gradient);
template <class T>
double add_gradient(const Dense<T>& matrix, const Targets<T>& targets, const Rows& rows,
                    const LinearOptions& options, std::span<const T> weights,
                    std::span<T> gradient);

}  // namespace learn
