// Rows of arrays that Python holds, and the names of losses: for the bindings of learn.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "bindings.hpp"
#include "learn/learn.hpp"

namespace malt_bindings {

// The elements of a contiguous array, in place. Throws ConfigError if they would have to be copied.
template <class T>
std::span<const T> borrow(const py::array& array, const char* name, int dimensions) {
  const bool fits = py::isinstance<py::array_t<T>>(array) &&
                    (array.flags() & py::array::c_style) != 0 && array.ndim() == dimensions;
  if (!fits) {
    throw dstorm::ConfigError(
        std::string(name) + " is an array of " + py::str(array.dtype()).cast<std::string>() +
        " with " + std::to_string(array.ndim()) + " dimensions; it must be a C-contiguous one of " +
        py::str(py::dtype::of<T>()).cast<std::string>() + " with " + std::to_string(dimensions));
  }
  return {static_cast<const T*>(array.data()), static_cast<std::size_t>(array.size())};
}
template <class T>
std::span<const T> borrow(const std::optional<py::array>& array, const char* name) {
  return array ? borrow<T>(*array, name, 1) : std::span<const T>{};
}
template <class T>
std::span<T> borrow_to_write(const py::array& array, const char* name) {
  const std::span<const T> values = borrow<T>(array, name, static_cast<int>(array.ndim()));
  if (!array.writeable()) {
    throw dstorm::ConfigError(std::string(name) + " is read-only; it must be writeable");
  }
  return {const_cast<T*>(values.data()), values.size()};
}

// A checked matrix and the targets of its rows, with the arrays that hold them.
template <class T>
struct Examples {
  std::variant<learn::Csr<T>, learn::Dense<T>> matrix;
  learn::Targets<T> targets;
  std::vector<py::array> arrays;

  void keep(const py::array& array) { arrays.push_back(array); }
  void set_targets(const std::optional<py::array>& values,
                   const std::optional<py::array>& weights) {
    targets = {borrow<T>(values, "targets"), borrow<T>(weights, "weights")};
    if (values) keep(*values);
    if (weights) keep(*weights);
  }
  std::int64_t rows() const {
    return std::visit([](const auto& of) { return of.rows(); }, matrix);
  }
  std::int64_t features() const {
    return std::visit([](const auto& of) { return of.features; }, matrix);
  }
  std::int64_t values() const {
    return std::visit([](const auto& of) { return std::ssize(of.values); }, matrix);
  }
};

template <class Choice>
Choice choose(const std::map<std::string, Choice>& choices, const std::string& name,
              const char* what) {
  const auto found = choices.find(name);
  if (found != choices.end()) return found->second;
  std::string names;
  for (const auto& [each, choice] : choices) {
    if (!names.empty()) names += ", ";
    names.append("'").append(each).append("'");
  }
  throw dstorm::ConfigError(std::string(what) + " is '" + name + "'; it is one of " + names);
}

inline learn::Loss to_loss(const std::string& name) {
  using learn::Loss;
  static const std::map<std::string, Loss> losses{
      {"hinge", Loss::kHinge},
      {"perceptron", Loss::kPerceptron},
      {"squared_hinge", Loss::kSquaredHinge},
      {"log_loss", Loss::kLog},
      {"modified_huber", Loss::kModifiedHuber},
      {"squared_error", Loss::kSquared},
      {"huber", Loss::kHuber},
      {"epsilon_insensitive", Loss::kEpsilonInsensitive},
      {"squared_epsilon_insensitive", Loss::kSquaredEpsilonInsensitive},
      {"softmax", Loss::kSoftmax}};
  return choose(losses, name, "loss");
}

}  // namespace malt_bindings
