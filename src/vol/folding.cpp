#include "vol/folding.hpp"

#include <algorithm>

namespace vol {
namespace {

template <class T>
void divide(std::byte* at, std::size_t bytes, std::size_t by) {
  auto* const values = reinterpret_cast<T*>(at);
  for (std::size_t i = 0; i < bytes / sizeof(T); ++i) values[i] /= static_cast<T>(by);
}

}  // namespace

bool is_shareable(const Fold& fold) {
  return fold.kind() == Fold::Kind::kAvg || fold.kind() == Fold::Kind::kSum ||
         fold.kind() == Fold::Kind::kMedian || fold.kind() == Fold::Kind::kTrimmedMean;
}

std::uint32_t operation_code(const Fold& fold) {
  constexpr double kMost = (1U << 24) - 1;
  return static_cast<std::uint32_t>(fold.kind()) << 24 |
         static_cast<std::uint32_t>(fold.fraction() * kMost);
}

std::size_t Folding::place_of(std::span<const dstorm::Update> updates, int own_rank) {
  std::size_t place = 0;
  while (place < updates.size() && updates[place].rank < own_rank) ++place;
  return place;
}

Folding::Operands& Folding::operands_of(std::span<const dstorm::Update> updates, int own_rank) {
  operands_.starts.clear();
  operands_.weights.clear();
  for (const dstorm::Update& update : updates) operands_.starts.push_back(update.payload.data());
  operands_.starts.insert(
      operands_.starts.begin() + static_cast<std::ptrdiff_t>(place_of(updates, own_rank)), nullptr);
  return operands_;
}

void Folding::fold(const Fold& fold, const Operands& operands, Elements::Range range,
                   std::byte* to) {
  inputs_.resize(operands.starts.size());
  const auto fold_stretch = [&](std::byte* own, std::size_t bytes, std::size_t place) {
    const std::size_t at = place - operands.origin;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const std::byte* const start = operands.starts[i];
      inputs_[i] = start == nullptr ? own : start + at;
    }
    apply_fold(fold, kernels(elements_.dtype()), to == nullptr ? own : to + at, inputs_,
               operands.weights, bytes / dtype_size(elements_.dtype()));
  };
  const bool uses_own =
      to == nullptr || std::ranges::find(operands.starts, nullptr) != operands.starts.end();
  if (uses_own) return elements_.visit(range, fold_stretch);
  fold_stretch(nullptr, range.size(), range.begin);
}

bool Folding::is_made_of_sums(const Fold& fold) const {
  const DType dtype = elements_.dtype();
  const bool is_float = dtype == DType::kFloat32 || dtype == DType::kFloat64;
  const bool is_int = dtype == DType::kInt32 || dtype == DType::kInt64;
  return (fold.kind() == Fold::Kind::kSum && (is_float || is_int)) ||
         (fold.kind() == Fold::Kind::kAvg && is_float);
}

void Folding::add_up(const Fold& fold, const Operands& operands, Elements::Range range,
                     std::byte* to, std::size_t total) {
  this->fold(Fold::sum(), operands, range, to);
  if (total == 0 || fold.kind() != Fold::Kind::kAvg) return;
  if (elements_.dtype() == DType::kFloat32) {
    divide<float>(to, range.size(), total);
  } else {
    divide<double>(to, range.size(), total);
  }
}

}  // namespace vol
