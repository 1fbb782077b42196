// The folds of half-precision numbers: those of floats, a block at a time, rounded once at the end.
// kernels_simd.hpp explains why everything here has internal linkage.
#pragma once

#include <new>

#include "vol/kernels_level.hpp"

namespace vol {
namespace {

// `Floats` are the folds of floats. `widen(to, from, n)` makes floats of halves, and `narrow`
// halves of floats.
template <class Floats, auto widen, auto narrow>
struct HalfFolds {
  static void sum(void* out, const void* const* in, std::size_t k, std::size_t n) {
    by_block(out, in, k, n, [=](void* to, const void* const* rows, std::size_t count) {
      Floats::sum(to, rows, k, count);
    });
  }
  static void mean(void* out, const void* const* in, std::size_t k, std::size_t n) {
    by_block(out, in, k, n, [=](void* to, const void* const* rows, std::size_t count) {
      Floats::mean(to, rows, k, count);
    });
  }
  static void weighted(void* out, const void* const* in, const double* weights, std::size_t k,
                       std::size_t n) {
    by_block(out, in, k, n, [=](void* to, const void* const* rows, std::size_t count) {
      Floats::weighted(to, rows, weights, k, count);
    });
  }
  static void median(void* out, const void* const* in, std::size_t k, std::size_t n) {
    by_block(out, in, k, n, [=](void* to, const void* const* rows, std::size_t count) {
      Floats::median(to, rows, k, count);
    });
  }
  static void trimmed_mean(void* out, const void* const* in, std::size_t trim, std::size_t k,
                           std::size_t n) {
    by_block(out, in, k, n, [=](void* to, const void* const* rows, std::size_t count) {
      Floats::trimmed_mean(to, rows, trim, k, count);
    });
  }
  static bool all_finite(const void* in, std::size_t n) {
    bool is_finite = true;
    each_block(n, [&](std::size_t first, std::size_t count) {
      float block[kBlock];
      widen(block, at(in, first), count);
      is_finite = is_finite && Floats::all_finite(block, count);
    });
    return is_finite;
  }
  static double sum_of_squares(const void* in, std::size_t n) {
    double total = 0;
    each_block(n, [&](std::size_t first, std::size_t count) {
      float block[kBlock];
      widen(block, at(in, first), count);
      total += Floats::sum_of_squares(block, count);
    });
    return total;
  }

  static constexpr Kernels kTable{sum,          mean,       weighted,      median,
                                  trimmed_mean, all_finite, sum_of_squares};

 private:
  static constexpr std::size_t kBytes = 2;     // of a half
  static constexpr std::size_t kBlock = 1024;  // elements; of a few inputs they fit the first cache

  // A block of each of k inputs, as floats.
  struct Blocks {
    explicit Blocks(std::size_t k)
        : floats(k <= kFew ? few : static_cast<float*>(::operator new(k * sizeof few[0] * kBlock))),
          rows(k <= kFew ? few_rows
                         : static_cast<const void**>(::operator new(k * sizeof few_rows[0]))) {
      for (std::size_t j = 0; j < k; ++j) rows[j] = floats + j * kBlock;
    }
    ~Blocks() {
      if (floats == few) return;
      ::operator delete(static_cast<void*>(rows));
      ::operator delete(floats);
    }
    Blocks(const Blocks&) = delete;
    Blocks& operator=(const Blocks&) = delete;

    static constexpr std::size_t kFew = 8;
    float few[kFew * kBlock];
    const void* few_rows[kFew];
    float* floats;
    const void** rows;
  };

  template <class Visit>
  static void each_block(std::size_t n, Visit visit) {
    for (std::size_t first = 0; first < n; first += kBlock) {
      visit(first, n - first < kBlock ? n - first : kBlock);
    }
  }
  static const void* at(const void* halves, std::size_t i) {
    return static_cast<const unsigned char*>(halves) + i * kBytes;
  }

  template <class Fold>
  static void by_block(void* out, const void* const* in, std::size_t k, std::size_t n, Fold fold) {
    Blocks blocks(k);
    each_block(n, [&](std::size_t first, std::size_t count) {
      for (std::size_t j = 0; j < k; ++j) {
        widen(blocks.floats + j * kBlock, at(in[j], first), count);
      }
      fold(blocks.floats, blocks.rows, count);
      narrow(static_cast<unsigned char*>(out) + first * kBytes, blocks.floats, count);
    });
  }
};

}  // namespace
}  // namespace vol
