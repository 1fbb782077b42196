#include <vector>

#include "learn/linear_check.hpp"
#include "learn/linear_loss.hpp"
#include "learn/linear_step.hpp"

namespace learn {
namespace {

template <bool kSingle, class T, class Matrix>
double add_rows(const Matrix& matrix, const Targets<T>& targets, const Rows& rows,
                const LinearOptions& options, const T* weights, T* gradient) {
  const auto features = static_cast<std::size_t>(matrix.features);
  const auto outputs = outputs_of<kSingle>(static_cast<std::size_t>(options.outputs));
  std::vector<T> values(outputs);
  double losses = 0;
  for (std::int64_t i = rows.first; i < rows.last; ++i) {
    const auto at =
        static_cast<std::size_t>(rows.order.empty() ? i : rows.order[static_cast<std::size_t>(i)]);
    const auto row = view_of(matrix, at);
    const double weight = targets.weights.empty() ? 1 : static_cast<double>(targets.weights[at]);
    decide<kSingle>(row, weights, features, outputs, T{1}, values.data());
    losses += slopes_at<kSingle>(options.loss, options.epsilon, options.class_weights,
                                 targets.values[at], weight, outputs, values.data());
    if constexpr (kSingle) {
      if (values[0] != 0) add(row, values[0], gradient);
    } else {
      for (std::size_t j = 0; j < row.count; ++j) {
        T* of_feature = gradient + row.feature(j) * outputs;
        for (std::size_t k = 0; k < outputs; ++k) of_feature[k] += row.values[j] * values[k];
      }
    }
    for (std::size_t k = 0; options.intercept && k < outputs; ++k) {
      gradient[features * outputs + k] += values[k];
    }
  }
  return losses;
}

template <class T, class Matrix>
double add_checked(const Matrix& matrix, const Targets<T>& targets, const Rows& rows,
                   const LinearOptions& options, std::span<const T> weights,
                   std::span<T> gradient) {
  require(options.outputs >= 1, "outputs", options.outputs, "at least 1");
  check_class_weights(options);
  check_examples(matrix, targets, rows);
  const std::size_t count = weights_of(matrix.features, options.outputs);
  check_length("weights", weights.size(), count, "(features + 1) * outputs");
  check_length("gradient", gradient.size(), count, "(features + 1) * outputs");
  const auto add_all =
      options.outputs == 1 ? add_rows<true, T, Matrix> : add_rows<false, T, Matrix>;
  return add_all(matrix, targets, rows, options, weights.data(), gradient.data());
}

}  // namespace

template <class T>
double add_gradient(const Csr<T>& matrix, const Targets<T>& targets, const Rows& rows,
                    const LinearOptions& options, std::span<const T> weights,
                    std::span<T> gradient) {
  return add_checked(matrix, targets, rows, options, weights, gradient);
}

template <class T>
double add_gradient(const Dense<T>& matrix, const Targets<T>& targets, const Rows& rows,
                    const LinearOptions& options, std::span<const T> weights,
                    std::span<T> gradient) {
  return add_checked(matrix, targets, rows, options, weights, gradient);
}

template double add_gradient(const Csr<float>&, const Targets<float>&, const Rows&,
                             const LinearOptions&, std::span<const float>, std::span<float>);
template double add_gradient(const Csr<double>&, const Targets<double>&, const Rows&,
                             const LinearOptions&, std::span<const double>, std::span<double>);
template double add_gradient(const Dense<float>&, const Targets<float>&, const Rows&,
                             const LinearOptions&, std::span<const float>, std::span<float>);
template double add_gradient(const Dense<double>&, const Targets<double>&, const Rows&,
                             const LinearOptions&, std::span<const double>, std::span<double>);

}  // namespace learn
