// The arithmetic of the built-in folds, over vectors that lie in memory.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "vol/fold.hpp"
#include "vol/kernels.hpp"

namespace vol {

// The mixing weight of each update, and in front this rank's own, summing to 1: WEIGHTED uses them.
// A neighbour without an update leaves its share to this rank; several updates of one sender share
// its weight. Senders of several rounds can add up to more than all but a fair share; their weights
// are then scaled down to that. Throws ConfigError for a sender that is no in-neighbour.
std::vector<double> mixing_weights(const dstorm::Segment& segment,
                                   std::span<const dstorm::Update> updates);

// out[i] = fold of in[...][i] for i < n: AVG, SUM, MEDIAN, TRIMMED_MEAN, and WEIGHTED with one
// weight per input.
void apply_fold(const Fold& fold, const Kernels& kernels, void* out,
                std::span<const void* const> in, std::span<const double> weights, std::size_t n);

}  // namespace vol
