// Matrix factorisation by stochastic gradient descent. It predicts user u's rating of item i as
// mean + user_biases[u] + item_biases[i] + user_factors[u] . item_factors[i].
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace learn {

struct FactorKernels;
struct FactorLoop;

// User users[n] gave item items[n] the rating values[n]. It borrows its arrays.
struct Ratings {
  std::span<const std::int32_t> users;
  std::span<const std::int32_t> items;
  std::span<const float> values;
};

// A model, in the caller's memory (for example that of a shared vector). Row n of an array of
// factors begins at element n * stride. Training is fastest if rows begin at multiples of 64 bytes.
// T is float, or const float where the model is only read.
template <class T>
struct FactorsOf {
  std::int64_t users = 0;
  std::int64_t items = 0;
  std::int64_t stride = 0;    // elements from one row to the next, at least 1
  std::span<T> user_factors;  // users * stride
  std::span<T> item_factors;  // items * stride
  std::span<T> user_biases;   // users; or empty, and then those of the items too
  std::span<T> item_biases;   // items
  float mean = 0;

  // Throws dstorm::ConfigError unless the arrays have these lengths.
  void check() const;
};
using Factors = FactorsOf<float>;

// Ratings as signs of preference (Hu, Koren, Volinsky, "Collaborative filtering for implicit
// feedback datasets", ICDM 2008). A pair with rating r prefers 1 with confidence 1 + alpha * r;
// every other pair prefers 0 with confidence 1. The paper's least squares sum over all those other
// pairs. SGD draws `negatives` of them for each rating instead: the user with a probability by
// number of ratings, the item uniformly. Now and then it draws a pair that has a rating.
struct Confidence {
  float alpha = 1;
  int negatives = 1;
};

// A step for one rating with error e and factors p and q: p += rate * (c * e * q - l2 * p), and the
// same for q and the biases. c is the confidence, or 1.
struct FactorStep {
  float rate = 0;
  float l2 = 0;
  std::optional<Confidence> implicit;
};

// Ratings in a grid of `bands` x `bands` blocks. A band is a range of users, or of items, with
// about as many ratings as any other band. A round trains one block from each band of users and
// each band of items, so that threads share no row (Gemulla et al., "Large-scale matrix
// factorization with distributed stochastic gradient descent", KDD 2011); `bands` rounds are an
// pass. Threads take blocks as they become free (FPSGD: Zhuang et al., RecSys 2013). Within a
// block users come in tiles that fit the first-level cache, and the ratings of a tile in random
// order.
class RatingBlocks {
 public:
  static constexpr std::int64_t kStrideMultiple = 16;
  static constexpr int kMostBands = 1024;

  // Copies the ratings, 12 bytes each. The seed determines their order and that of the rounds.
  // Throws dstorm::ConfigError if the arrays' lengths differ, an id is not in [0, users) or [0,
  // items), a value is NaN or infinite, there is no user or no item, or `bands` is not in [1,
  // kMostBands].
  RatingBlocks(const Ratings& ratings, std::int64_t users, std::int64_t items, int bands,
               std::uint64_t seed);

  int bands() const { return bands_; }
  std::int64_t size() const { return static_cast<std::int64_t>(ratings_.size()); }

  // The number of ratings that rounds [first, first + rounds) train, without drawn ones. Throws
  // dstorm::ConfigError unless first >= 0 and rounds >= 1.
  std::int64_t count(std::int64_t first, std::int64_t rounds) const;

  // Trains rounds [first, first + rounds), counted since the first pass. Training in pieces gives
  // the same bits as in one piece, with any number of threads. Returns the sum over the ratings
  // trained (including drawn ones) of confidence * error^2, each before its step; the sum is not
  // finite if the steps are too large. Elements of a row that are zero in all rows stay zero. No
  // other thread may use the factors meanwhile. Throws dstorm::ConfigError if the factors are not
  // of these users and items, their stride is no multiple of kStrideMultiple, the step is not
  // finite or not above zero (l2: below zero), threads or rounds are not positive, or the step is
  // implicit and a rating is not positive.
  double train(const Factors& factors, const FactorStep& step, std::int64_t first,
               std::int64_t rounds, int threads) const;

  struct Rating {
    std::int32_t user;
    std::int32_t item;
    float value;  // 0 for one that is drawn (implicit)
  };

 private:
  void check(const Factors& factors, const FactorStep& step, std::int64_t first,
             std::int64_t rounds, int threads) const;
  // The index at which a block's ratings begin. Blocks are counted by band of users, then of items.
  std::size_t begin(std::size_t block) const { return static_cast<std::size_t>(starts_[block]); }
  // By how many bands of items the blocks of each of these rounds are off the diagonal.
  std::vector<std::size_t> shifts(std::int64_t first, std::int64_t rounds) const;
  double train_implicit(const FactorKernels& kernels, const FactorLoop& loop, int negatives,
                        std::int64_t round, std::size_t user_band,
                        std::size_t item_band) const noexcept;

  int bands_;
  std::uint64_t seed_;
  float least_ = 0;  // of the values
  std::int64_t users_;
  std::int64_t items_;
  std::vector<std::int64_t> item_starts_;  // of the bands, bands + 1
  std::vector<std::int64_t> starts_;       // of the blocks, bands^2 + 1
  std::vector<Rating> ratings_;
};

// Sets out[n] to the model's rating for (users[n], items[n]). Any stride is allowed. Throws
// dstorm::ConfigError if an id is out of range, or the arrays' lengths differ.
void predict(const FactorsOf<const float>& factors, std::span<const std::int32_t> users,
             std::span<const std::int32_t> items, std::span<float> out);

}  // namespace learn
