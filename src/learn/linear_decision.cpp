#include <span>

#include "learn/linear.hpp"
#include "learn/linear_check.hpp"
#include "learn/linear_step.hpp"

namespace learn {
namespace {

template <class T, class Matrix>
void decide_rows(const Matrix& matrix, std::span<const T> weights, int outputs, std::int64_t first,
                 std::int64_t last, std::span<T> values) {
  require(outputs >= 1, "outputs", outputs, "at least 1");
  check_range(first, last, matrix.rows(), "matrix");
  const auto width = static_cast<std::size_t>(outputs);
  check_length("weights", weights.size(), weights_of(matrix.features, outputs),
               "(features + 1) * outputs");
  check_length("values", values.size(), static_cast<std::size_t>(last - first) * width,
               "rows * outputs");
  const auto features = static_cast<std::size_t>(matrix.features);
  T* out = values.data();
  for (std::int64_t i = first; i < last; ++i, out += width) {
    const auto row = view_of(matrix, static_cast<std::size_t>(i));
    if (outputs == 1) {
      decide<true>(row, weights.data(), features, width, T{1}, out);
    } else {
      decide<false>(row, weights.data(), features, width, T{1}, out);
    }
  }
}

}  // namespace

template <class T>
void decision_values(const Csr<T>& matrix, std::span<const T> weights, int outputs,
                     std::int64_t first, std::int64_t last, std::span<T> values) {
  decide_rows(matrix, weights, outputs, first, last, values);
}

template <class T>
void decision_values(const Dense<T>& matrix, std::span<const T> weights, int outputs,
                     std::int64_t first, std::int64_t last, std::span<T> values) {
  decide_rows(matrix, weights, outputs, first, last, values);
}

template void decision_values(const Csr<float>&, std::span<const float>, int, std::int64_t,
                              std::int64_t, std::span<float>);
template void decision_values(const Csr<double>&, std::span<const double>, int, std::int64_t,
                              std::int64_t, std::span<double>);
template void decision_values(const Dense<float>&, std::span<const float>, int, std::int64_t,
                              std::int64_t, std::span<float>);
template void decision_values(const Dense<double>&, std::span<const double>, int, std::int64_t,
                              std::int64_t, std::span<double>);

}  // namespace learn
