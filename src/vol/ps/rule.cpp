#include "vol/ps/rule.hpp"

#include <cmath>
#include <sstream>

namespace vol::ps {
namespace {

// Calls step(place of the value, gradient) for each value of the rows. fetch(place) comes before,
// for the first value of a row.
template <class T, class Step, class Fetch>
void each(const Rows& rows, std::int64_t base, std::size_t width, const T* g, Step&& step,
          Fetch&& fetch) {
  if (rows.keys == nullptr) {
    const std::size_t begin = static_cast<std::size_t>(rows.first - base) * width;
    for (std::size_t i = 0; i < rows.count * width; ++i) step(begin + i, g[i]);
    return;
  }
  if (width == 1) {
    for (std::size_t i = 0; i < rows.count; ++i) {
      step(static_cast<std::size_t>(rows.keys[i] - base), g[i]);
    }
    return;
  }
  for (std::size_t i = 0; i < rows.count; ++i, g += width) {
    if (i + kRowsAhead < rows.count) {
      fetch(static_cast<std::size_t>(rows.keys[i + kRowsAhead] - base) * width);
    }
    const std::size_t begin = static_cast<std::size_t>(rows.keys[i] - base) * width;
    for (std::size_t j = 0; j < width; ++j) step(begin + j, g[j]);
  }
}

template <class T>
void apply_to(const Rule& rule, T* w, T* state, std::size_t stride, const Rows& rows,
              std::int64_t base, std::size_t width, const T* gradients) {
  const T rate = static_cast<T>(rule.rate);
  const auto fetch = [=](std::size_t place) {
    __builtin_prefetch(w + place, 1);
    if (state != nullptr) __builtin_prefetch(state + place, 1);
  };
  const auto run = [&](auto&& step) { each(rows, base, width, gradients, step, fetch); };
  switch (rule.kind) {
    case Rule::Kind::kAdd:
      return run([=](std::size_t i, T g) { w[i] += g; });
    case Rule::Kind::kAssign:
      return run([=](std::size_t i, T g) { w[i] = g; });
    case Rule::Kind::kSgd:
      return run([=](std::size_t i, T g) { w[i] -= rate * g; });
    case Rule::Kind::kMomentum:
      return run([=, momentum = static_cast<T>(rule.momentum)](std::size_t i, T g) {
        state[i] = momentum * state[i] + g;
        w[i] -= rate * state[i];
      });
    case Rule::Kind::kAdaGrad:
      return run([=, epsilon = static_cast<T>(rule.epsilon)](std::size_t i, T g) {
        state[i] += g * g;
        w[i] -= rate * g / (std::sqrt(state[i]) + epsilon);
      });
    case Rule::Kind::kFtrl:
      return run([=, z = state, n = state + stride, beta = static_cast<T>(rule.beta),
                  l1 = static_cast<T>(rule.l1), l2 = static_cast<T>(rule.l2)](std::size_t i, T g) {
        const T root_before = std::sqrt(n[i]);
        n[i] += g * g;
        const T root = std::sqrt(n[i]);
        z[i] += g - (root - root_before) / rate * w[i];
        w[i] = std::abs(z[i]) <= l1
                   ? T{0}
                   : -(z[i] - std::copysign(l1, z[i])) / ((beta + root) / rate + l2);
      });
    case Rule::Kind::kFunction:
      return;  // Range calls it
  }
}

}  // namespace

std::size_t Rule::states() const {
  switch (kind) {
    case Kind::kMomentum:
    case Kind::kAdaGrad:
      return 1;
    case Kind::kFtrl:
      return 2;
    default:
      return 0;
  }
}

std::string Rule::text() const {
  std::ostringstream text;
  text.precision(17);
  text << static_cast<std::uint32_t>(kind);
  for (double value : {rate, momentum, epsilon, beta, l1, l2}) text << ' ' << value;
  return text.str();
}

void apply(const Rule& rule, DType dtype, std::byte* values, std::byte* states, std::size_t stride,
           const Rows& rows, std::int64_t base, std::size_t width, const std::byte* gradients) {
  if (dtype == DType::kFloat32) {
    apply_to(rule, reinterpret_cast<float*>(values), reinterpret_cast<float*>(states), stride, rows,
             base, width, reinterpret_cast<const float*>(gradients));
  } else {
    apply_to(rule, reinterpret_cast<double*>(values), reinterpret_cast<double*>(states), stride,
             rows, base, width, reinterpret_cast<const double*>(gradients));
  }
}

}  // namespace vol::ps
