// The results that the kernels must compute, in plain scalar code, and inputs for them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "vol/kernels.hpp"

namespace kernels_test {

using vol::DType;
using vol::Kernels;

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <class T>
inline constexpr DType kDType = std::is_same_v<T, float>          ? DType::kFloat32
                                : std::is_same_v<T, double>       ? DType::kFloat64
                                : std::is_same_v<T, std::int32_t> ? DType::kInt32
                                                                  : DType::kInt64;

template <class T>
using Column = std::vector<T>;  // element i of every input

template <class T>
T wrapped_sum(const Column<T>& x, std::size_t begin, std::size_t end) {
  std::uint64_t sum = 0;
  for (std::size_t j = begin; j < end; ++j) sum += static_cast<std::uint64_t>(std::int64_t{x[j]});
  return static_cast<T>(sum);
}

template <class T>
T mean_between(const Column<T>& x, std::size_t begin, std::size_t end) {
  const std::size_t count = end - begin;
  if constexpr (std::is_floating_point_v<T>) {
    T sum = x[begin];
    for (std::size_t j = begin + 1; j < end; ++j) sum += x[j];
    return sum / static_cast<T>(count);
  } else {
    __extension__ using Wide = __int128;
    Wide sum = 0;
    for (std::size_t j = begin; j < end; ++j) sum += x[j];
    return static_cast<T>(sum / static_cast<Wide>(count));
  }
}

template <class T>
T reference_sum(const Column<T>& x) {
  if constexpr (std::is_floating_point_v<T>) {
    T sum = x[0];
    for (std::size_t j = 1; j < x.size(); ++j) sum += x[j];
    return sum;
  } else {
    return wrapped_sum(x, 0, x.size());
  }
}

template <class T>
T reference_mean(const Column<T>& x) {
  return mean_between(x, 0, x.size());
}

template <class T>
T reference_weighted(const Column<T>& x, const std::vector<double>& weights) {
  using Acc = std::conditional_t<std::is_floating_point_v<T>, T, double>;
  Acc sum = static_cast<Acc>(weights[0]) * static_cast<Acc>(x[0]);
  for (std::size_t j = 1; j < x.size(); ++j) {
    sum += static_cast<Acc>(weights[j]) * static_cast<Acc>(x[j]);
  }
  if constexpr (std::is_floating_point_v<T>) {
    return sum;
  } else {
    if (std::isnan(sum)) return 0;
    const double rounded = std::nearbyint(sum);
    if (rounded >= -static_cast<double>(std::numeric_limits<T>::min())) {
      return std::numeric_limits<T>::max();
    }
    return static_cast<T>(std::max(rounded, static_cast<double>(std::numeric_limits<T>::min())));
  }
}

template <class T>
T reference_trimmed_mean(Column<T> x, std::size_t trim) {
  std::stable_sort(x.begin(), x.end(), [](T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      return std::isnan(b) ? !std::isnan(a) : a < b;
    } else {
      return a < b;
    }
  });
  return mean_between(x, trim, x.size() - trim);
}

template <class T>
T reference_median(const Column<T>& x) {
  return reference_trimmed_mean(x, (x.size() - 1) / 2);
}

// k arrays of n elements at addresses that are aligned for no type, and room for a result at
// another such address.
template <class T>
class Inputs {
 public:
  Inputs(std::size_t k, std::size_t n) : k_(k), n_(n), stride_(n * sizeof(T) + kSlack) {
    bytes_.resize(k * stride_);
    for (std::size_t j = 0; j < k; ++j) pointers_.push_back(at(j));
  }

  Inputs(const Inputs& other) : Inputs(other.k_, other.n_) { bytes_ = other.bytes_; }
  Inputs& operator=(const Inputs&) = delete;

  template <class Value>
  static Inputs filled(std::size_t k, std::size_t n, Value value) {
    Inputs inputs(k, n);
    for (std::size_t j = 0; j < k; ++j) {
      for (std::size_t i = 0; i < n; ++i) inputs.set(j, i, value());
    }
    return inputs;
  }

  static Inputs columns(const std::vector<Column<T>>& columns) {
    Inputs inputs(columns.at(0).size(), columns.size());
    for (std::size_t i = 0; i < columns.size(); ++i) {
      for (std::size_t j = 0; j < inputs.k_; ++j) inputs.set(j, i, columns[i].at(j));
    }
    return inputs;
  }

  std::size_t k() const { return k_; }
  std::size_t n() const { return n_; }
  const void* const* in() const { return pointers_.data(); }
  void* array(std::size_t j) { return at(j); }

  void set(std::size_t j, std::size_t i, T value) {
    std::memcpy(at(j) + i * sizeof(T), &value, sizeof(T));
  }

  Column<T> column(std::size_t i) const {
    Column<T> x(k_);
    for (std::size_t j = 0; j < k_; ++j) {
      std::memcpy(&x[j], static_cast<const unsigned char*>(pointers_[j]) + i * sizeof(T),
                  sizeof(T));
    }
    return x;
  }

 private:
  static constexpr std::size_t kSlack = 64;
  unsigned char* at(std::size_t j) { return bytes_.data() + j * stride_ + (7 * j + 1) % kSlack; }

  std::size_t k_;
  std::size_t n_;
  std::size_t stride_;
  std::vector<unsigned char> bytes_;
  std::vector<const void*> pointers_;
};

using Random = std::mt19937_64;

// Mostly ordinary numbers; every magnitude, zeros of both signs and ties among them.
template <class T>
T any_number(Random& random) {
  if constexpr (std::is_floating_point_v<T>) {
    switch (random() % 16) {
      case 0:
        return static_cast<T>(0.0);
      case 1:
        return static_cast<T>(-0.0);
      case 2:
        return static_cast<T>(random() % 3);
      case 3:
        return std::numeric_limits<T>::denorm_min() * static_cast<T>(random() % 9);
      case 4:
        return std::ldexp(static_cast<T>(1.5), static_cast<int>(random() % 80) - 40);
      default:
        return std::uniform_real_distribution<T>(-10, 10)(random);
    }
  } else {
    switch (random() % 8) {
      case 0:
        return static_cast<T>(random());
      case 1:
        return std::numeric_limits<T>::min();
      case 2:
        return std::numeric_limits<T>::max();
      default:
        return static_cast<T>(static_cast<std::int64_t>(random() % 41) - 20);
    }
  }
}

template <class T>
T any_value(Random& random) {
  if constexpr (std::is_floating_point_v<T>) {
    switch (random() % 12) {
      case 0:
        return static_cast<T>(kNan);
      case 1:
        return static_cast<T>(kInf);
      case 2:
        return static_cast<T>(-kInf);
      default:
        break;
    }
  }
  return any_number<T>(random);
}

inline std::vector<double> some_weights(std::size_t k) {
  std::vector<double> weights;
  for (std::size_t j = 0; j < k; ++j) weights.push_back(0.3 + 0.17 * static_cast<double>(j));
  return weights;
}

template <class T>
bool same_bits(T a, T b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

// All NaNs count as equal here, as in the contract of the sums.
template <class T>
bool same_number(T a, T b) {
  return same_bits(a, b) || (a != a && b != b);
}

enum class Zeros { kBySign, kAlike };

// Every fold with the same signature, so that all run alike.
template <class T>
struct Fold {
  std::string name;
  Zeros zeros;
  void (*run)(const Kernels&, void* out, const void* const* in, std::size_t k, std::size_t n);
  T (*reference)(const Column<T>&);
};

template <class T>
std::vector<Fold<T>> folds() {
  return {
      {"sum", Zeros::kBySign,
       [](const Kernels& kernels, void* out, const void* const* in, std::size_t k, std::size_t n) {
         kernels.sum(out, in, k, n);
       },
       reference_sum<T>},
      {"mean", Zeros::kBySign,
       [](const Kernels& kernels, void* out, const void* const* in, std::size_t k, std::size_t n) {
         kernels.mean(out, in, k, n);
       },
       reference_mean<T>},
      {"weighted", Zeros::kBySign,
       [](const Kernels& kernels, void* out, const void* const* in, std::size_t k, std::size_t n) {
         kernels.weighted(out, in, some_weights(k).data(), k, n);
       },
       [](const Column<T>& x) { return reference_weighted(x, some_weights(x.size())); }},
      {"median", Zeros::kAlike,
       [](const Kernels& kernels, void* out, const void* const* in, std::size_t k, std::size_t n) {
         kernels.median(out, in, k, n);
       },
       reference_median<T>},
      {"trimmed_mean", Zeros::kAlike,
       [](const Kernels& kernels, void* out, const void* const* in, std::size_t k, std::size_t n) {
         kernels.trimmed_mean(out, in, (k - 1) / 4, k, n);
       },
       [](const Column<T>& x) { return reference_trimmed_mean(x, (x.size() - 1) / 4); }},
  };
}

}  // namespace kernels_test
