#include "learn/linear.hpp"

#include <algorithm>
#include <cmath>
#include <thread>

#include "dstorm/host/quiet_thread.hpp"
#include "learn/linear_check.hpp"
#include "learn/linear_train.hpp"

namespace learn {
namespace {

constexpr int kMostThreads = 1024;
// The least number of steps for each thread in one round; starting threads for fewer costs more.
constexpr std::int64_t kLeastRound = 64;

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
  require(options.threads >= 1 && options.threads <= kMostThreads, "threads", options.threads,
          "from 1 to 1024");
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

// How many steps may be taken at once: as many as change the scale by at most a half. Each thread
// keeps its own scale, and one may wait for the processor while the others go on.
std::int64_t steps_at_once(const Pace& pace, const Clock& clock, std::int64_t most) {
  const double kept = 1 - clock.rate(pace) * pace.l2;  // no later step shrinks more
  if (kept >= 1) return most;
  if (kept <= 0.5) return 1;
  const double steps = std::log(0.5) / std::log(kept);
  return steps < static_cast<double>(most) ? static_cast<std::int64_t>(steps) : most;
}

// One round of Hogwild over all of `rows`.
template <class T, class Matrix>
double train_together(const Matrix& matrix, const Targets<T>& targets, const Rows& rows,
                      int threads, const Model<T>& model, const Lesson& lesson, Clock& clock) {
  struct Worker {
    Clock clock;
    double losses = 0;
    std::thread thread = {};
  };
  std::vector<Worker> workers(static_cast<std::size_t>(threads));
  const auto work = [&](std::int64_t k) {
    Worker& worker = workers[static_cast<std::size_t>(k)];
    worker.losses =
        train_share(matrix, targets, rows, Share{k, threads}, model, lesson, worker.clock);
  };
  // Each thread's clock starts ahead by the index of its first row.
  const double eta = clock.rate(lesson.pace);
  for (int k = 0; k < threads; ++k) {
    Clock& own = workers[static_cast<std::size_t>(k)].clock = clock;
    own.skip(lesson.pace, eta, k);
  }
  struct Joined {  // also if the system gives no more threads
    std::vector<Worker>& workers;
    ~Joined() {
      for (Worker& worker : workers) {
        if (worker.thread.joinable()) worker.thread.join();
      }
    }
  };
  {
    const Joined joined{workers};
    for (std::int64_t k = 1; k < threads; ++k) {
      workers[static_cast<std::size_t>(k)].thread =
          dstorm::start_quiet_thread([&work, k] { work(k); });
    }
    work(0);
  }
  // The thread of the last row has reached the end of all steps.
  const auto last = static_cast<std::size_t>((rows.last - rows.first - 1) % threads);
  clock = workers[last].clock;
  double losses = 0;
  for (const Worker& worker : workers) losses += worker.losses;
  return losses;
}

}  // namespace

template <class T>
Linear<T>::Linear(const LinearOptions& options, std::int64_t features, LinearArrays<T> arrays,
                  std::int64_t steps)
    : options_(options), features_(features), arrays_(arrays), pace_(pace_of(options)) {
  check(options);
  // More threads than processors would only wait for one another; 0: not known.
  const auto processors = static_cast<int>(std::thread::hardware_concurrency());
  if (processors > 0) options_.threads = std::min(options_.threads, processors);
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
  double losses = 0;
  Rows round = rows;
  for (; round.first < rows.last; round.first = round.last) {
    int threads = options_.threads;
    round.last = rows.last;
    if (threads > 1) {
      const std::int64_t least = kLeastRound * threads;
      const std::int64_t left = rows.last - round.first;
      const std::int64_t steps = steps_at_once(pace_, clock_, left);
      round.last = round.first + std::clamp(steps, std::min(least, left), left);
      if (steps < least) {
        threads = 1;
      } else {
        fold(model(), pace_, clock_);
      }
    }
    losses += threads > 1 ? train_together(matrix, targets, round, threads, model(), lesson, clock_)
                          : train_share(matrix, targets, round, Share{}, model(), lesson, clock_);
  }
  return losses;
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
