// A linear SVM (hinge loss, L2 penalty) trained by stochastic gradient descent on the ranks of an
// MPI job. Build it as CMakeLists.txt beside it says; then
//
//   mpirun -n 4 build/svm/svm                               # on generated data
//   mpirun -n 4 build/svm/svm out/train.svm out/test.svm    # on 20 Newsgroups
//
// where `python examples/newsgroups.py --svmlight out` writes the two files.
#include <dstorm/dstorm.hpp>
#include <dstorm/mpi.hpp>
#include <vol/vol.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "svmlight.hpp"

namespace {

constexpr int kEpochs = 10;
constexpr std::size_t kUpdateExamples = 128;  // of each rank, from one exchange to the next
constexpr float kRate = 1;                    // at the start, times the number of ranks
constexpr float kL2 = 1e-5F;
constexpr dstorm::GatherOptions kBsp{.staleness = 0, .timeout = {}};

float margin(std::span<const float> w, const Rows& rows, std::size_t row) {
  const auto columns = rows.columns_of(row);
  const auto values = rows.values_of(row);
  float sum = 0;
  for (std::size_t k = 0; k < columns.size(); ++k) sum += w[columns[k]] * values[k];
  return rows.labels[row] * sum;
}

void sgd_step(std::span<float> w, const Rows& rows, std::size_t row, float rate) {
  if (margin(w, rows, row) >= 1) return;
  const auto columns = rows.columns_of(row);
  const auto values = rows.values_of(row);
  for (std::size_t k = 0; k < columns.size(); ++k) {
    w[columns[k]] += rate * rows.labels[row] * values[k];
  }
}

// The penalty's part of `steps` steps at once: the step above then touches a row's columns only.
void shrink(std::span<float> w, float rate, std::size_t steps) {
  const float factor = std::pow(1 - rate * kL2, static_cast<float>(steps));
  for (float& x : w) x *= factor;
}

double error_rate(std::span<const float> w, const Rows& rows) {
  std::size_t wrong = 0;
  for (std::size_t row = 0; row < rows.size(); ++row) wrong += margin(w, rows, row) <= 0;
  return static_cast<double>(wrong) / static_cast<double>(rows.size());
}

void train(const std::shared_ptr<dstorm::Group>& group, const Rows& rows, const Rows& test) {
  using Clock = std::chrono::steady_clock;
  const auto ranks = static_cast<std::size_t>(group->size());
  const auto rank = static_cast<std::size_t>(group->rank());

  std::vector<float> w(rows.dim);
  vol::Dense<float> shared(group, {.name = "w", .graph = dstorm::Graph::halton()}, w);

  // Every size-th row is this rank's. All ranks make equally many updates, so that no rank waits
  // for an update that another never makes.
  std::vector<std::size_t> mine;
  for (std::size_t row = rank; row < rows.size(); row += ranks) mine.push_back(row);
  const std::size_t updates = std::max<std::size_t>(1, rows.size() / ranks / kUpdateExamples);

  std::mt19937 random(static_cast<unsigned>(rank));
  std::chrono::duration<double> seconds{0};
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    group->barrier();
    const Clock::time_point start = Clock::now();
    const float rate = kRate * static_cast<float>(ranks) / static_cast<float>(1 + epoch);
    std::shuffle(mine.begin(), mine.end(), random);
    for (std::size_t update = 0; update < updates; ++update) {
      const std::size_t begin = mine.size() * update / updates;
      const std::size_t end = mine.size() * (update + 1) / updates;
      for (std::size_t i = begin; i < end; ++i) sgd_step(w, rows, mine[i], rate);
      shrink(w, rate, end - begin);
      shared.scatter();
      shared.gather(vol::Fold::avg(), kBsp);
    }
    seconds += Clock::now() - start;
    if (rank == 0) {
      std::printf("epoch %2d  %6zu updates  %10.0f examples/s  test error %5.2f%%\n", epoch + 1,
                  updates * static_cast<std::size_t>(epoch + 1),
                  static_cast<double>(rows.size()) * (epoch + 1) / seconds.count(),
                  100 * error_rate(w, test));
      std::fflush(stdout);
    }
  }
}

int run(int argc, char** argv) {
  if (argc != 1 && argc != 3) {
    std::fprintf(stderr, "usage: %s [train.svm test.svm]\n", argv[0]);
    return 2;
  }
  std::shared_ptr<dstorm::Group> group;
  {
    dstorm::MpiBootstrap bootstrap(MPI_COMM_WORLD);
    group = dstorm::Group::join(bootstrap);
  }
  if (argc == 3) {
    const Rows rows = read_svmlight(argv[1]);
    train(group, rows, read_svmlight(argv[2], rows.dim));
  } else {
    const Generated generated = generate(40'000, 10'000, 20'000);
    train(group, generated.train, generated.test);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int code = 1;
  try {
    code = run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  MPI_Finalize();
  return code;
}
