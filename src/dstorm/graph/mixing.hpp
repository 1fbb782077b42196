// How fast repeated averaging over a graph reaches agreement: the numbers behind
// Graph::spectral_gap().
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

// The pi > 0 that adds up to 1 and has pi W = pi. When averaging with W goes on for ever, pi[i] is
// the share of rank i's value in the common result. For the matrix of a strongly connected graph.
// O(size^3).
std::vector<double> stationary_distribution(const MixingMatrix& matrix);

// The factor by which the distance to agreement shrinks at least over the product of `rounds`, of
// which the first acts first. The distance is measured in the norm weighted by `stationary`, and
// the factor is the second largest singular value in that norm. Every round must leave `stationary`
// unchanged. For doubly stochastic matrices `stationary` is uniform and the norm the usual one.
// Accurate to about 1e-12.
double second_singular_value(std::vector<MixingMatrix> rounds,
                             const std::vector<double>& stationary);

// The same in closed form for circulant rounds with equal weights; each is given by its offsets.
double second_singular_value(const std::vector<std::vector<int>>& rounds, int size);

}  // namespace dstorm
