#include "dstorm/graph/mixing.hpp"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <numbers>
#include <numeric>
#include <random>

namespace dstorm {
namespace {

using Vector = std::vector<double>;

// A vector that a round shrinks by more than this is zero except for rounding. It must count as
// zero, because a root over many rounds would make it large again.
constexpr double kVanished = 1e-13;

double dot(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

double norm(const Vector& a) { return std::sqrt(dot(a, a)); }

void add(Vector& to, double factor, const Vector& what) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += factor * what[i];
}

void scale(Vector& a, double factor) {
  for (double& value : a) value *= factor;
}

void remove_component(Vector& from, const Vector& unit) { add(from, -dot(from, unit), unit); }

// D^1/2 W D^-1/2 with D = diag(stationary): its usual norm is that of W weighted by `stationary`.
void weigh(MixingMatrix& matrix, const Vector& root_of_stationary) {
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    for (std::size_t e = matrix.first[i]; e < matrix.first[i + 1]; ++e) {
      matrix.weight[e] *= root_of_stationary[i] / root_of_stationary[matrix.from[e]];
    }
  }
}

Vector times(const MixingMatrix& matrix, const Vector& x) {
  Vector y(x.size());
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    double sum = matrix.own[i] * x[i];
    for (std::size_t e = matrix.first[i]; e < matrix.first[i + 1]; ++e) {
      sum += matrix.weight[e] * x[matrix.from[e]];
    }
    y[i] = sum;
  }
  return y;
}

Vector transposed_times(const MixingMatrix& matrix, const Vector& x) {
  Vector y(x.size());
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    y[i] += matrix.own[i] * x[i];
    for (std::size_t e = matrix.first[i]; e < matrix.first[i + 1]; ++e) {
      y[matrix.from[e]] += matrix.weight[e] * x[i];
    }
  }
  return y;
}

// Applies M^T M, where M is the product of the rounds, away from `agreement`, the unit vector that
// M leaves unchanged.
Vector there_and_back(const std::vector<MixingMatrix>& rounds, const Vector& agreement, Vector x) {
  const auto settle = [&agreement](Vector y, double before) {
    remove_component(y, agreement);
    if (norm(y) <= kVanished * before) std::ranges::fill(y, 0.0);
    return y;
  };
  for (const MixingMatrix& round : rounds) x = settle(times(round, x), norm(x));
  for (auto round = rounds.rbegin(); round != rounds.rend(); ++round) {
    x = settle(transposed_times(*round, x), norm(x));
  }
  return x;
}

// How many eigenvalues of the symmetric tridiagonal matrix are above `bound`: the number of
// positive pivots of L D L^T of the matrix less `bound` (Sylvester).
std::size_t eigenvalues_above(const Vector& diagonal, const Vector& beside, double bound) {
  std::size_t count = 0;
  double pivot = 1;
  for (std::size_t i = 0; i < diagonal.size(); ++i) {
    pivot = diagonal[i] - bound - (i == 0 ? 0 : beside[i - 1] * beside[i - 1] / pivot);
    if (pivot == 0) pivot = -std::numeric_limits<double>::min();
    if (pivot > 0) ++count;
  }
  return count;
}

// By bisection, to the last bit. No eigenvalue may be above `high`.
double largest_eigenvalue(const Vector& diagonal, const Vector& beside, double low, double high) {
  while (true) {
    const double middle = low + (high - low) / 2;
    if (middle <= low || middle >= high) return high;
    (eigenvalues_above(diagonal, beside, middle) > 0 ? low : high) = middle;
  }
}

// A vector without symmetry, so that it has a part along every eigenvector.
Vector start_vector(const Vector& agreement) {
  std::mt19937_64 draw;
  Vector x(agreement.size());
  for (double& value : x) value = static_cast<double>(draw()) / 0x1p64 - 0.5;
  remove_component(x, agreement);
  return x;
}

// Lanczos (1950) with full reorthogonalisation: the eigenvalues of the growing tridiagonal matrix
// approach the largest one of there_and_back() from below, and reach it after size - 1 steps.
double largest_eigenvalue(const std::vector<MixingMatrix>& rounds, const Vector& agreement) {
  constexpr std::size_t kStepsWithoutGain = 24;
  constexpr double kGain = 1e-14;
  std::vector<Vector> basis;
  Vector diagonal;
  Vector beside;
  double largest = 0;
  std::size_t gained = 0;
  Vector next = start_vector(agreement);
  while (basis.size() + 1 < agreement.size()) {
    const double length = norm(next);
    if (length <= kVanished * std::max(largest, std::numeric_limits<double>::min())) break;
    if (!basis.empty()) beside.push_back(length);
    scale(next, 1 / length);
    basis.push_back(next);
    next = there_and_back(rounds, agreement, basis.back());
    diagonal.push_back(dot(next, basis.back()));
    // If much was subtracted, the rest is inexact: then the subtraction is repeated.
    for (double before = std::numeric_limits<double>::max(); norm(next) < before / 2;) {
      before = norm(next);
      for (const Vector& known : basis) remove_component(next, known);
    }
    const double now = largest_eigenvalue(diagonal, beside, largest, 1.0 + kVanished);
    if (now - largest > kGain * now) gained = basis.size();
    largest = now;
    if (basis.size() - gained >= kStepsWithoutGain) break;
  }
  return largest;
}

}  // namespace

void MixingMatrix::add_row(const std::vector<int>& in, const std::vector<double>& weights) {
  own.push_back(1 - std::accumulate(weights.begin(), weights.end(), 0.0));
  for (const int rank : in) from.push_back(static_cast<std::size_t>(rank));
  weight.insert(weight.end(), weights.begin(), weights.end());
  first.push_back(from.size());
}

// Grassmann, Taksar and Heyman (1985): Gaussian elimination without a subtraction, so even the
// smallest entries are right. It removes the ranks from the last to the first, then puts them back.
std::vector<double> stationary_distribution(const MixingMatrix& matrix) {
  const std::size_t n = matrix.size();
  std::vector<Vector> to(n, Vector(n));
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t e = matrix.first[i]; e < matrix.first[i + 1]; ++e) {
      to[i][matrix.from[e]] = matrix.weight[e];
    }
  }
  for (std::size_t k = n; k-- > 1;) {
    const double leaves =
        std::accumulate(to[k].begin(), to[k].begin() + static_cast<std::ptrdiff_t>(k), 0.0);
    for (std::size_t i = 0; i < k; ++i) {
      if (to[i][k] == 0) continue;
      to[i][k] /= leaves;
      for (std::size_t j = 0; j < k; ++j) to[i][j] += to[i][k] * to[k][j];
    }
  }
  Vector stationary(n, 1.0);
  for (std::size_t k = 1; k < n; ++k) {
    stationary[k] = 0;
    for (std::size_t i = 0; i < k; ++i) stationary[k] += stationary[i] * to[i][k];
    const double largest = *std::max_element(
        stationary.begin(), stationary.begin() + static_cast<std::ptrdiff_t>(k) + 1);
    for (std::size_t i = 0; i <= k; ++i) stationary[i] /= largest;
  }
  // Next to the largest part a smaller one than this counts for nothing, but the norm needs it
  // above 0.
  for (double& part : stationary) part = std::max(part, 1e-300);
  scale(stationary, 1 / std::accumulate(stationary.begin(), stationary.end(), 0.0));
  return stationary;
}

double second_singular_value(std::vector<MixingMatrix> rounds, const Vector& stationary) {
  Vector agreement(stationary.size());
  std::ranges::transform(stationary, agreement.begin(),
                         [](double part) { return std::sqrt(part); });
  for (MixingMatrix& round : rounds) weigh(round, agreement);
  return std::min(1.0, std::sqrt(std::max(0.0, largest_eigenvalue(rounds, agreement))));
}

// The eigenvectors of every circulant matrix are the Fourier modes. So circulant matrices commute,
// the eigenvalues of the product of the rounds are the products of theirs, and their moduli are the
// singular values.
double second_singular_value(const std::vector<std::vector<int>>& rounds, int size) {
  std::vector<std::complex<double>> turn;
  turn.reserve(static_cast<std::size_t>(size));
  for (int i = 0; i < size; ++i) {
    turn.push_back(std::polar(1.0, 2 * std::numbers::pi * i / size));
  }
  double largest = 0;
  for (std::int64_t mode = 1; mode <= size / 2; ++mode) {
    double shrinks = 1;
    for (const std::vector<int>& offsets : rounds) {
      std::complex<double> sum = 1;
      for (const int offset : offsets) sum += turn[static_cast<std::size_t>(mode * offset % size)];
      const double modulus = std::abs(sum) / (static_cast<double>(offsets.size()) + 1);
      shrinks *= modulus < kVanished ? 0 : modulus;
    }
    largest = std::max(largest, shrinks);
  }
  return largest;
}

}  // namespace dstorm
