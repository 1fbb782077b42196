// How fast repeated averaging over a graph agrees: the numbers behind Graph::spectral_gap().
#pragma once

#include <cstddef>
#include <vector>

namespace dstorm {

// One round of averaging: rank i keeps own[i] of its value and adds weight[e] of the value of rank
// from[e], for e in first[i]..first[i+1]-1. Rows add up to 1.
struct MixingMatrix {
  std::vector<double> own;
  std::vector<std::size_t> first{0};
  std::vector<std::size_t> from;
  std::vector<double> weight;

  std::size_t size() const { return own.size(); }
  void add_row(const std::vector<int>& in, const std::vector<double>& weights);
};

// The pi > 0 with pi W = pi that adds up to 1: what each rank counts for in what averaging with W
// for ever arrives at. Of a strongly connected graph's matrix; O(size^3).
std::vector<double> stationary_distribution(const MixingMatrix& matrix);

// The factor by which the distance to agreement shrinks at least, over the product of `rounds` (the
// first acts first), in the norm weighted by `stationary`, which all of them must leave as it is:
// the second largest singular value there. For doubly stochastic matrices `stationary` is uniform
// and the norm the usual one. Accurate to about 1e-12.
double second_singular_value(std::vector<MixingMatrix> rounds,
                             const std::vector<double>& stationary);

// The same for circulant rounds, each given by its offsets, all with equal weights: in closed form.
double second_singular_value(const std::vector<std::vector<int>>& rounds, int size);

}  // namespace dstorm
