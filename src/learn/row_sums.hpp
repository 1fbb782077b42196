// Sums over the rows of a matrix, in double.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "learn/row_view.hpp"
#include "learn/squares.hpp"

namespace learn {

template <class T>
double squared_norm(const SparseView<T>& row) {
  return squares(row.values, row.count);
}
template <class T>
double squared_norm(const DenseView<T>& row) {
  return static_cast<double>(dot(row, row.values));
}

// dot() in double.
template <class View, class T>
double precise_dot(const View& row, const T* weights) {
  const auto product = [&](std::size_t i) {
    return static_cast<double>(row.values[i]) * static_cast<double>(weights[row.feature(i)]);
  };
  constexpr std::size_t kAtOnce = 8;  // as in sum_of()
  double sums[kAtOnce]{};
  std::size_t i = 0;
  for (; row.count - i >= kAtOnce; i += kAtOnce) {
    for (std::size_t k = 0; k < kAtOnce; ++k) sums[k] += product(i + k);
  }
  for (; i < row.count; ++i) sums[0] += product(i);
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

// Adds rows times their alphas to sums.
template <class View, class T>
class RowSums;
template <class T>
class RowSums<SparseView<T>, T> {
 public:
  explicit RowSums(double* sums) : sums_(sums) {}
  void add(const SparseView<T>& row, T alpha) {
    const auto by = static_cast<double>(alpha);
    for (std::size_t i = 0; i < row.count; ++i) {
      sums_[row.feature(i)] += by * static_cast<double>(row.values[i]);
    }
  }
  void finish() {}

 private:
  double* sums_;
};
// Four rows at once, as sums of double are slow to convert to, to read and to write.
template <class T>
class RowSums<DenseView<T>, T> {
 public:
  explicit RowSums(double* sums) : sums_(sums) {}
  void add(const DenseView<T>& row, T alpha) {
    rows_[waiting_] = row.values;
    alphas_[waiting_] = static_cast<double>(alpha);
    count_ = row.count;
    if (++waiting_ == kAtOnce) finish();
  }
  void finish() {
    if (waiting_ == 0) return;
    for (; waiting_ < kAtOnce; ++waiting_) {
      rows_[waiting_] = rows_[0];
      alphas_[waiting_] = 0;
    }
    waiting_ = 0;
    const auto [a, b, c, d] = rows_;
    const auto [by_a, by_b, by_c, by_d] = alphas_;
    const auto of = [](T value) { return static_cast<double>(value); };
    for (std::size_t i = 0; i < count_; ++i) {
      sums_[i] += (by_a * of(a[i]) + by_b * of(b[i])) + (by_c * of(c[i]) + by_d * of(d[i]));
    }
  }

 private:
  static constexpr std::size_t kAtOnce = 4;
  double* sums_;
  std::size_t count_ = 0;
  std::size_t waiting_ = 0;
  std::array<const T*, kAtOnce> rows_{};
  std::array<double, kAtOnce> alphas_{};
};

// Adds rows times their alphas to `sums`; if these have twice the features, those of negative
// alphas to the second half.
template <class View, class T>
class SignedSums {
 public:
  SignedSums(std::span<double> sums, std::int64_t features)
      : positive_(sums.data()),
        negative_(sums.data() + sums.size() - static_cast<std::size_t>(features)) {}
  void add(const View& row, T alpha) {
    if (alpha != 0) (alpha > 0 ? positive_ : negative_).add(row, alpha);
  }
  void finish() {
    positive_.finish();
    negative_.finish();
  }

 private:
  RowSums<View, T> positive_;
  RowSums<View, T> negative_;
};

}  // namespace learn
