// Checks whose errors name the value, its limit and the way out. Internal to linear models.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "dstorm/errors.hpp"
#include "learn/linear.hpp"

namespace learn {

inline void require(bool holds, const char* name, double value, const char* limit) {
  if (holds) return;
  std::string text = std::to_string(value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  throw dstorm::ConfigError(std::string(name) + " is " + text + "; it must be " + limit);
}
inline void check_length(const char* name, std::size_t length, std::size_t needed,
                         const char* what) {
  if (length == needed) return;
  throw dstorm::ConfigError(std::string(name) + " has " + std::to_string(length) +
                            " values; it needs " + std::to_string(needed) + ", " + what);
}
inline void check_class_weights(const LinearOptions& options) {
  if (options.class_weights.empty()) return;
  check_length("class_weights", options.class_weights.size(),
               static_cast<std::size_t>(options.outputs), "one for each output");
  for (const double weight : options.class_weights) {
    require(std::isfinite(weight) && weight >= 0, "a class weight", weight, "at least 0");
  }
  const bool is_one_against_the_rest = options.outputs > 1 && options.loss != Loss::kSoftmax;
  require(is_one_against_the_rest, "the number of class_weights",
          static_cast<double>(options.class_weights.size()),
          "0 for one output and for softmax: weigh the rows");
}
inline std::size_t weights_of(std::int64_t features, int outputs) {
  return (static_cast<std::size_t>(features) + 1) * static_cast<std::size_t>(outputs);
}
inline void check_features(std::int64_t given, std::int64_t features) {
  if (given == features) return;
  throw dstorm::ConfigError("the matrix has " + std::to_string(given) +
                            " features; the model has " + std::to_string(features));
}
inline void check_range(std::int64_t first, std::int64_t last, std::int64_t count, const char* of) {
  if (first >= 0 && first <= last && last <= count) return;
  throw dstorm::ConfigError("rows " + std::to_string(first) + " to " + std::to_string(last) +
                            " do not lie within the " + std::to_string(count) + " of the " + of);
}

inline void check_order(const Rows& rows, std::int64_t count) {
  const auto first = rows.order.begin() + rows.first;
  const auto last = rows.order.begin() + rows.last;
  if (first == last) return;
  const std::uint32_t most = *std::max_element(first, last);
  if (most >= count) {
    throw dstorm::ConfigError("the order has row " + std::to_string(most) + "; the matrix has " +
                              std::to_string(count) + " rows, counted from 0");
  }
}

template <class T, class Matrix>
void check_examples(const Matrix& matrix, const Targets<T>& targets, const Rows& rows) {
  const auto count = static_cast<std::size_t>(matrix.rows());
  check_length("targets", targets.values.size(), count, "one for each row");
  if (!targets.weights.empty()) {
    check_length("weights of rows", targets.weights.size(), count, "one for each row");
  }
  if (rows.order.empty()) {
    check_range(rows.first, rows.last, matrix.rows(), "matrix");
  } else {
    check_range(rows.first, rows.last, static_cast<std::int64_t>(rows.order.size()), "order");
    check_order(rows, matrix.rows());
  }
}

}  // namespace learn
