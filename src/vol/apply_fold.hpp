// The arithmetic of the built-in folds, over vectors that lie in memory.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "vol/fold.hpp"
#include "vol/kernels.hpp"

namespace vol {

// The weights for WEIGHTED, which add up to 1: this rank's own, and then that of each update. The
// weight of a neighbour without an update goes to this rank. Several updates of one sender share
// its weight. If the graph varies, the updates can come from several rounds, and their weights add
// up to too much: count / (count + 1) is the most that `count` updates get together, and larger
// weights are scaled down to that. Throws ConfigError if a sender is no in-neighbour, unless the
// graph has been repaired: an update that was sent by the graph of an earlier epoch gets the weight
// 0.
std::vector<double> mixing_weights(const dstorm::Segment& segment,
                                   std::span<const dstorm::Update> updates);

// out[i] = fold of in[...][i] for i < n: AVG, SUM, MEDIAN, TRIMMED_MEAN, and WEIGHTED with one
// weight per input.
void apply_fold(const Fold& fold, const Kernels& kernels, void* out,
                std::span<const void* const> in, std::span<const double> weights, std::size_t n);

}  // namespace vol
