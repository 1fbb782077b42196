// Checks whose errors name the value, its limit and the way out. Internal to dual ascent.
#pragma once

#include <cmath>
#include <cstdio>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "dstorm/errors.hpp"
#include "learn/dual_ascent.hpp"
#include "learn/dual_step.hpp"
#include "learn/linear_check.hpp"

namespace learn {

inline std::string in_words(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}
inline void require_dual(bool holds, const std::string& name, double value, const char* limit) {
  if (holds) return;
  throw dstorm::ConfigError(name + " is " + in_words(value) + "; it must be " + limit);
}

inline bool has_labels(Loss loss) {
  return loss == Loss::kLog || loss == Loss::kHinge || loss == Loss::kSquaredHinge;
}
inline bool has_kink(Loss loss) { return loss != Loss::kLog && loss != Loss::kSquared; }

inline void check_dual(const DualOptions& options) {
  const bool is_known = has_labels(options.loss) || options.loss == Loss::kSquared ||
                        options.loss == Loss::kEpsilonInsensitive ||
                        options.loss == Loss::kSquaredEpsilonInsensitive;
  require_dual(is_known, "the number of the loss", static_cast<double>(options.loss),
               "that of kLog, kHinge, kSquaredHinge, kSquared, kEpsilonInsensitive or "
               "kSquaredEpsilonInsensitive; train the others with Linear");
  require_dual(std::isfinite(options.epsilon) && options.epsilon >= 0, "epsilon", options.epsilon,
               "at least 0");
  require_dual(std::isfinite(options.c) && options.c > 0, "C", options.c, "above 0 and finite");
  require_dual(std::isfinite(options.least_kappa) && options.least_kappa >= 0, "least_kappa",
               options.least_kappa, "at least 0");
  require_dual(options.ranks >= 1, "ranks", options.ranks, "at least 1");
  require_dual(options.together >= 1, "together", options.together, "at least 1");
}

template <class T, class Matrix>
void check_dual_lengths(const Matrix& matrix, const Targets<T>& targets,
                        const DualStart<T>& start) {
  check_examples(matrix, targets, {0, matrix.rows()});
  require_dual(matrix.rows() <= std::numeric_limits<std::uint32_t>::max(), "the number of rows",
               static_cast<double>(matrix.rows()), "below 2^32; divide them among ranks");
  require_dual(std::isfinite(start.intercept), "the intercept to start with", start.intercept,
               "finite");
  if (start.alphas.empty()) return;
  check_length("the alphas to start with", start.alphas.size(),
               static_cast<std::size_t>(matrix.rows()), "one for each row");
  for (std::size_t i = 0; i < start.alphas.size(); ++i) {
    const auto alpha = static_cast<double>(start.alphas[i]);
    require_dual(std::isfinite(alpha), "the alpha of row " + std::to_string(i), alpha, "finite");
  }
}

template <class T>
void check_dual_row(const DualOptions& options, std::size_t row, const Coordinate<T>& at,
                    double weight) {
  const auto target = static_cast<double>(at.target);
  const auto norm = static_cast<double>(at.norm);
  const auto cost = static_cast<double>(at.cost);
  const bool fits = has_labels(options.loss) ? std::abs(target) == 1 : std::isfinite(target);
  if (weight >= 0 && std::isfinite(weight + cost + norm) && fits) return;
  const std::string of_row = " of row " + std::to_string(row);
  require_dual(std::isfinite(weight) && weight >= 0, "the weight" + of_row, weight, "at least 0");
  require_dual(std::isfinite(cost), "C times the weight" + of_row, cost,
               "finite; lower C or the weight");
  require_dual(std::isfinite(norm), "|x|^2" + of_row, norm,
               "finite; replace values that are not, and scale columns down");
  require_dual(fits, "the target" + of_row, target,
               has_labels(options.loss) ? "-1 or 1 for this loss" : "finite");
}

// The least of the log loss with an intercept is at infinity if all labels are the same.
inline void refuse_one_label(double label) {
  throw dstorm::ConfigError("all targets are " + in_words(label) +
                            ", one class; the log loss with an intercept needs rows of -1 and of 1 "
                            "with weights above 0: give such rows, or train without an intercept");
}
template <class T>
void check_dual_deal(const DualOptions& options, std::size_t rows, const DualDeal<T>& deal) {
  static_assert(sizeof(Coordinate<T>) == 4 * sizeof(T));
  check_length("the memory of dealt rows", deal.memory.size(), 4 * rows, "4 values a row");
  check_length("the lists of dealt rows", deal.lists.size(),
               static_cast<std::size_t>(options.ranks) *
                   dealt_list_length(rows, static_cast<std::size_t>(options.ranks)),
               "dealt_list_length() values a rank");
  require_dual(deal.rank >= 0 && deal.rank < options.ranks, "the rank", deal.rank,
               "from 0 to below the number of ranks");
}
template <class T>
void check_labels(const DualOptions& options, std::span<const Coordinate<T>> coordinates) {
  if (options.loss != Loss::kLog || !options.intercept || options.ranks > 1) return;
  double sum = 0;
  double count = 0;
  for (const Coordinate<T>& at : coordinates) {
    if (!(at.cost > 0)) continue;
    sum += static_cast<double>(at.target);
    ++count;
  }
  if (count > 0 && std::abs(sum) == count) refuse_one_label(sum / count);
}

}  // namespace learn
