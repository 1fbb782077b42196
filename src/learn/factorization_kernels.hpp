// One table of the factorisation's inner loops per instruction set. Internal to the factorisation.
#pragma once

#include <cstddef>

#include "learn/factorization.hpp"

namespace learn {

// A model and a step in the form that the loops read.
struct FactorLoop {
  float* user_factors;
  float* item_factors;
  float* user_biases;  // null: none
  float* item_biases;
  std::size_t stride;
  float mean;
  float rate;
  float l2;
  bool implicit;
  float alpha;
};

struct FactorKernels {
  // Trains on n ratings, one after the other. The stride is a multiple of
  // RatingBlocks::kStrideMultiple. Returns the sum of confidence * error^2. Every level gives the
  // same bits.
  double (*train)(const FactorLoop& loop, const RatingBlocks::Rating* ratings, std::size_t n);
  // The product of two rows of n elements.
  float (*dot)(const float* p, const float* q, std::size_t n);
};

extern const FactorKernels kBaselineFactorKernels;
#if defined(__x86_64__)
extern const FactorKernels kAvx2FactorKernels;
extern const FactorKernels kAvx512FactorKernels;
#endif

// The kernels of the level that vol::simd_level() names.
const FactorKernels& factor_kernels();

}  // namespace learn
