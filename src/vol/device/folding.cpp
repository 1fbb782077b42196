#include "vol/device/folding.hpp"

#include <algorithm>

#include "dstorm/errors.hpp"
#include "vol/folding.hpp"

namespace vol::device {
namespace {

FoldKind kind_of(const Fold& fold) {
  switch (fold.kind()) {
    case Fold::Kind::kSum:
      return FoldKind::kSum;
    case Fold::Kind::kWeighted:
      return FoldKind::kWeighted;
    case Fold::Kind::kMedian:
      return FoldKind::kMedian;
    case Fold::Kind::kTrimmedMean:
      return FoldKind::kTrimmedMean;
    default:
      return FoldKind::kMean;
  }
}

}  // namespace

void Folding::fold(const Fold& fold, int own_rank, std::span<const dstorm::Update> updates,
                   std::span<const Address> at, Wire wire, std::span<const double> weights,
                   Stream stream) {
  const std::size_t inputs = updates.size() + 1;
  if (inputs > kMostInputs) {
    throw dstorm::ConfigError("gather of " + what_ + " has " + std::to_string(updates.size()) +
                              " updates to fold at once; on a GPU it is at most " +
                              std::to_string(kMostInputs - 1) +
                              ": use a graph with fewer neighbours, such as malt.HALTON");
  }
  FoldArgs args{};
  args.kind = kind_of(fold);
  args.wire = wire;
  args.total = elements_.count;
  args.inputs = static_cast<int>(inputs);
  args.own = static_cast<int>(vol::Folding::place_of(updates, own_rank));
  args.trim = static_cast<int>(fold.fraction() * static_cast<double>(inputs));
  for (int j = 0, next = 0; j < args.inputs; ++j) {
    if (j != args.own)
      args.in[j] = reinterpret_cast<const void*>(at[static_cast<std::size_t>(next++)]);
  }
  std::ranges::copy(weights, args.weight);
  for (const Piece& piece : elements_.pieces) {
    args.out = piece.data;
    args.count = piece.count;
    program_->launch("fold", program_->blocks_for(piece.count), args, stream);
    args.begin += piece.count;
  }
}

}  // namespace vol::device
