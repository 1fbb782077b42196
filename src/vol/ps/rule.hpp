// How a server applies the gradients that are pushed to a row of a table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "vol/dtype.hpp"

namespace vol::ps {

struct Rule {
  enum class Kind : std::uint32_t {
    kAdd = 1,   // w += g
    kAssign,    // w = g
    kSgd,       // w -= rate * g
    kMomentum,  // v = momentum * v + g; w -= rate * v
    kAdaGrad,   // n += g^2; w -= rate * g / (sqrt(n) + epsilon)   (Duchi, Hazan, Singer 2011)
    kFtrl,      // FTRL-proximal (McMahan et al., KDD 2013, algorithm 1)
    kFunction,  // a function of the user's
  };
  Kind kind = Kind::kAdd;
  double rate = 0;  // kFtrl: alpha
  double momentum = 0;
  double epsilon = 0;
  double beta = 0;  // kFtrl, as l1 and l2
  double l1 = 0;
  double l2 = 0;
  // kFunction: changes `rows` rows of values in place. May throw; the rows are then as before.
  std::function<void(std::byte* values, const std::byte* gradients, std::size_t rows)> function;

  // How many numbers are kept for each value besides it.
  std::size_t states() const;
  // The ranks' rules must agree in this.
  std::string text() const;
};

// Rows of a table by their keys, which grow.
struct Rows {
  const std::int64_t* keys = nullptr;  // null: `count` rows from `first` on
  std::int64_t first = 0;
  std::size_t count = 0;
  std::int64_t at(std::size_t i) const {
    return keys != nullptr ? keys[i] : first + static_cast<std::int64_t>(i);
  }
  Rows part(std::size_t begin, std::size_t end) const {
    if (keys != nullptr) return {keys + begin, 0, end - begin};
    return {nullptr, first + static_cast<std::int64_t>(begin), end - begin};
  }
};
inline constexpr std::size_t kRowsAhead = 16;  // are fetched into the cache before their turn

// Applies a rule with built-in code to rows of `width` values. `values` begins with row `base`.
// State k of a value lies in `states` k * `stride` numbers after the place that the value has in
// `values`.
void apply(const Rule& rule, DType dtype, std::byte* values, std::byte* states, std::size_t stride,
           const Rows& rows, std::int64_t base, std::size_t width, const std::byte* gradients);

}  // namespace vol::ps
