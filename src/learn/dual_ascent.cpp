#include "learn/dual_ascent.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <variant>
#include <vector>

#include "learn/dual_centre.hpp"
#include "learn/dual_check.hpp"
#include "learn/dual_coupling.hpp"
#include "learn/dual_multiplier.hpp"
#include "learn/dual_rows.hpp"
#include "learn/splitmix.hpp"
#include "learn/squares.hpp"

namespace learn {
namespace {

constexpr const char* kLengths = "contribution_length()";

void require_finite(double square) {
  require_dual(std::isfinite(square), "|w|^2", square, "finite; scale columns down, or lower C");
}

}  // namespace

template <class T>
struct DualAscent<T>::Impl {
  template <class Matrix>
  Impl(const DualOptions& given, const Matrix& matrix, const Targets<T>& targets,
       const DualStart<T>& start, const DualDeal<T>& deal)
      : options(given),
        rows(std::in_place_type<DualRows<T, Matrix>>, given, matrix, targets, start, deal),
        random(given.seed),
        multiplier(given.intercept, start.intercept),
        weights(static_cast<std::size_t>(matrix.features)),
        base(weights) {
    add_moved(0);
  }

  void require_settled() const;
  void add_moved(double moved);
  // One rank alone has nobody to exchange changes with: its own count as exchanged.
  void add_swept() {
    if (options.ranks == 1) add_moved(model.moved);
  }
  double change_squared(std::span<const T> change) const;
  DualBalance balance_of(const DualScales& all) const;

  DualOptions options;
  std::variant<DualRows<T, Csr<T>>, DualRows<T, Dense<T>>> rows;
  SplitMix random;
  DualMultiplier multiplier;
  DualCentre<T> centre;
  DualCoupling coupling;
  std::vector<T> weights;
  std::vector<T> base;  // the weights at the last exchange
  DualModel<T> model{nullptr, 1, 0, 0, 1, 0, 0};
  double estimate = std::numeric_limits<double>::infinity();  // after ascend()'s last sweep,
  bool falls = true;                                          // and whether it has fallen
  bool swept = false;
  bool settled = false;
  DualBalance balance;  // of the alphas whose dual is measured
};

template <class T>
void DualAscent<T>::Impl::require_settled() const {
  if (settled) return;
  throw dstorm::ConfigError(
      "the ranks have not added what they start with; call scales(), contribute() and settle() "
      "before the first sweep and after set_ranks()");
}

// Ends an exchange, or a change of the weights: steps begin from here. The sum of all alphas has
// moved.
template <class T>
void DualAscent<T>::Impl::add_moved(double moved) {
  multiplier.add(moved);
  model.moved = 0;
  model.rho = multiplier.rho();
  model.intercept = multiplier.intercept();
  model.pliancy = centre.pliancy();
  model.sigma = coupling.sigma();
  base = weights;
}

// By what the dual falls, twice, with the square of a change: that of w in the proximal penalty,
// and that of the sum of alpha in the multiplier's.
template <class T>
double DualAscent<T>::Impl::change_squared(std::span<const T> change) const {
  const auto moved = static_cast<double>(change[weights.size()]);
  return squares(change.data(), weights.size()) / model.pliancy + model.rho * moved * moved;
}

// Finds how the sum of all alphas becomes 0.
template <class T>
DualBalance DualAscent<T>::Impl::balance_of(const DualScales& all) const {
  if (!options.intercept) return {};
  const bool is_one_label = all.rows > 0 && std::abs(all.labels) == all.rows;
  if (options.loss == Loss::kLog && swept && is_one_label) {
    refuse_one_label(all.labels / all.rows);
  }
  const double kept = std::min(all.positive, all.negative);
  return {all.positive > kept ? kept / all.positive : 1,
          all.negative > kept ? kept / all.negative : 1};
}

template <class T>
DualAscent<T>::DualAscent(const DualOptions& options, const Csr<T>& matrix,
                          const Targets<T>& targets, const DualStart<T>& start,
                          const DualDeal<T>& deal)
    : impl_(std::make_unique<Impl>(options, matrix, targets, start, deal)) {
  set_ranks(options.ranks);
}

template <class T>
DualAscent<T>::DualAscent(const DualOptions& options, const Dense<T>& matrix,
                          const Targets<T>& targets, const DualStart<T>& start,
                          const DualDeal<T>& deal)
    : impl_(std::make_unique<Impl>(options, matrix, targets, start, deal)) {
  set_ranks(options.ranks);
}

template <class T>
DualAscent<T>::~DualAscent() = default;
template <class T>
DualAscent<T>::DualAscent(DualAscent&& other) noexcept = default;
template <class T>
DualAscent<T>& DualAscent<T>::operator=(DualAscent&& other) noexcept = default;

template <class T>
std::int64_t DualAscent<T>::begin_sweep(bool may_accelerate) {
  Impl& own = *impl_;
  own.require_settled();
  own.add_swept();
  own.multiplier.step(own.centre.pliancy());
  own.model.gap = own.centre.gap(own.weights) / own.options.ranks;
  own.centre.move(own.weights, may_accelerate);
  own.add_moved(0);
  const std::uint64_t seed = own.random.next();
  const bool may_rest = !own.centre.is_used();
  const double intercept = own.model.intercept;
  return std::visit([=](auto& rows) { return rows.begin_sweep(seed, may_rest, intercept); },
                    own.rows);
}

template <class T>
std::int64_t DualAscent<T>::sweep(int piece, int pieces) {
  require_dual(pieces >= 1, "pieces", pieces, "at least 1");
  require_dual(piece >= 0 && piece < pieces, "the piece", piece,
               "from 0 to below the number of pieces");
  Impl& own = *impl_;
  own.swept = own.swept || piece + 1 == pieces;
  own.model.weights = own.weights.data();
  return std::visit([&](auto& rows) { return rows.sweep(piece, pieces, own.model); }, own.rows);
}

template <class T>
void DualAscent<T>::sweep_together(std::span<DualAscent* const> ascents) {
  const auto pieces_of = [](const DualAscent& one) {
    return std::visit([](const auto& rows) { return rows.pieces_in_cache(); }, one.impl_->rows);
  };
  std::vector<DualAscent*> full;
  for (DualAscent* const one : ascents) {
    if (pieces_of(*one) > 1) {
      full.push_back(one);
    } else {
      one->sweep(0, 1);
    }
  }
  const int pieces = full.empty() ? 0 : pieces_of(*full.front());
  for (int piece = 0; piece < pieces; ++piece) {
    for (DualAscent* const one : full) one->sweep(piece, pieces);
  }
}

double forecast_gap(double estimate, double before) {
  const bool falls = estimate < before && std::isfinite(before);
  return estimate * std::sqrt(falls ? estimate / before : 1);
}

template <class T>
DualSweeps DualAscent<T>::ascend(int sweeps, double enough) {
  DualSweeps found{0, std::numeric_limits<double>::infinity()};
  for (int k = 0; k < sweeps && !(found.gap <= enough); ++k) {
    found.visited += begin_sweep(impl_->falls);
    sweep(0, 1);
    const double before = impl_->estimate;
    impl_->estimate = std::max(estimate(), 0.0);
    impl_->falls = impl_->estimate < before;
    found.gap = forecast_gap(impl_->estimate, before);
  }
  return found;
}

template <class T>
double DualAscent<T>::estimate() const {
  return impl_->model.gap;
}

template <class T>
void DualAscent<T>::take_change(std::span<T> change) {
  const Impl& own = *impl_;
  const std::size_t features = own.weights.size();
  check_length("the change", change.size(), features + 2, "features + 2");
  const T share = static_cast<T>(1 / own.model.sigma);
  for (std::size_t i = 0; i < features; ++i) change[i] = (own.weights[i] - own.base[i]) * share;
  change[features] = static_cast<T>(own.model.moved);
  change[features + 1] = static_cast<T>(own.change_squared(change));
}

template <class T>
void DualAscent<T>::add_changes(std::span<const T> sum) {
  Impl& own = *impl_;
  const std::size_t features = own.weights.size();
  check_length("the sum of changes", sum.size(), features + 2, "features + 2");
  own.coupling.note(own.change_squared(sum), static_cast<double>(sum[features + 1]));
  for (std::size_t i = 0; i < features; ++i) own.weights[i] = own.base[i] + sum[i];
  own.add_moved(static_cast<double>(sum[features]));
}

template <class T>
std::size_t DualAscent<T>::contribution_length() const {
  return impl_->weights.size() * (impl_->options.intercept ? 2 : 1);
}

template <class T>
DualScales DualAscent<T>::scales() const {
  return std::visit([this](const auto& rows) { return rows.scales(impl_->swept); }, impl_->rows);
}

template <class T>
void DualAscent<T>::contribute(const DualScales& all, std::span<double> contribution) {
  Impl& own = *impl_;
  check_length("the contribution", contribution.size(), contribution_length(), kLengths);
  own.add_swept();
  const DualBalance balance = own.balance_of(all);
  if (!own.settled) std::visit([&](auto& rows) { rows.scale(balance); }, own.rows);
  own.multiplier.settle(all, own.settled);
  own.centre.choose(own.options, all, own.weights.size());
  std::ranges::fill(contribution, 0);
  std::visit([=](const auto& rows) { rows.contribute(contribution); }, own.rows);
}

template <class T>
void DualAscent<T>::settle(std::span<const double> sum) {
  Impl& own = *impl_;
  check_length("the sum of contributions", sum.size(), contribution_length(), kLengths);
  const std::size_t features = own.weights.size();
  std::vector<double> of_alphas(sum.begin(), sum.begin() + std::ssize(own.weights));
  for (std::size_t i = features; i < sum.size(); ++i) of_alphas[i - features] += sum[i];
  const double square = squares(of_alphas.data(), features);
  require_finite(square);
  own.centre.set_weights(of_alphas, own.weights);
  own.add_moved(0);
  own.settled = true;
}

template <class T>
DualLosses DualAscent<T>::losses(const DualScales& all, std::span<double> contribution) {
  Impl& own = *impl_;
  check_length("the contribution", contribution.size(), contribution_length(), kLengths);
  own.require_settled();
  own.add_swept();
  own.balance = own.balance_of(all);
  own.multiplier.settle(all, true);
  own.add_moved(0);
  std::ranges::fill(contribution, 0);
  const auto intercept = static_cast<double>(static_cast<T>(own.model.intercept));
  return std::visit(
      [&](const auto& rows) {
        return rows.losses(own.weights.data(), intercept, own.balance, contribution);
      },
      own.rows);
}

template <class T>
DualGap DualAscent<T>::gap(const DualLosses& all, std::span<const double> sum) const {
  const Impl& own = *impl_;
  check_length("the sum of contributions", sum.size(), contribution_length(), kLengths);
  const std::size_t features = own.weights.size();
  double dual_squares = 0;  // |sum of alpha x|^2
  for (std::size_t i = 0; i < features; ++i) {
    double alpha_x = sum[i];
    if (own.options.intercept) {
      alpha_x = own.balance.positive * alpha_x + own.balance.negative * sum[features + i];
    }
    dual_squares += alpha_x * alpha_x;
  }
  const double square = squares(own.weights.data(), features);
  require_finite(square);
  require_finite(dual_squares);
  return {square / 2 + all.primal, all.dual - dual_squares / 2};
}

template <class T>
void DualAscent<T>::set_ranks(int ranks) {
  require_dual(ranks >= 1, "ranks", ranks, "at least 1");
  if (ranks < impl_->options.ranks) {
    std::visit([](auto& rows) { rows.stop_dealing(); }, impl_->rows);
  }
  impl_->options.ranks = ranks;
  impl_->coupling.set_ranks(ranks);
  impl_->settled = false;
  if (ranks > 1) return;
  std::vector<double> sum(contribution_length());
  contribute(scales(), sum);
  settle(sum);
}

template <class T>
std::span<const T> DualAscent<T>::weights() const {
  return impl_->weights;
}

template <class T>
double DualAscent<T>::intercept() const {
  return impl_->model.intercept;
}

template <class T>
void DualAscent<T>::copy_alphas(std::span<T> alphas) const {
  std::visit([alphas](const auto& rows) { rows.copy_alphas(alphas); }, impl_->rows);
}

template <class T>
DualGap measure(DualAscent<T>& ascent) {
  std::vector<double> sum(ascent.contribution_length());
  const DualLosses own = ascent.losses(ascent.scales(), sum);
  return ascent.gap(own, sum);
}

template class DualAscent<float>;
template class DualAscent<double>;
template DualGap measure(DualAscent<float>&);
template DualGap measure(DualAscent<double>&);

}  // namespace learn
