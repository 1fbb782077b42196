#include "learn/factorization.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "dstorm/errors.hpp"
#include "learn/factorization_kernels.hpp"
#include "learn/splitmix.hpp"
#include "vol/kernels.hpp"

namespace learn {
namespace {

float uniform(SplitMix& random) {
  return static_cast<float>(random.next() >> 40) * 0x1p-24F - 0.5F;
}

struct Arrays {
  std::vector<std::int32_t> users;
  std::vector<std::int32_t> items;
  std::vector<float> values;

  void add(std::int32_t user, std::int32_t item, float value) {
    users.push_back(user);
    items.push_back(item);
    values.push_back(value);
  }
  Ratings ratings() const { return {users, items, values}; }
};

struct Model {
  Model(std::int64_t user_count, std::int64_t item_count, std::int64_t row_stride)
      : user_factors(static_cast<std::size_t>(user_count * row_stride)),
        item_factors(static_cast<std::size_t>(item_count * row_stride)),
        user_biases(static_cast<std::size_t>(user_count)),
        item_biases(static_cast<std::size_t>(item_count)),
        users(user_count),
        items(item_count),
        stride(row_stride) {
    SplitMix random(1);
    for (float& p : user_factors) p = 0.4F * uniform(random);
    for (float& q : item_factors) q = 0.4F * uniform(random);
  }
  Factors factors() {
    return {users, items, stride, user_factors, item_factors, user_biases, item_biases, mean};
  }
  std::vector<float> all() const {
    std::vector<float> all = user_factors;
    for (const auto* more : {&item_factors, &user_biases, &item_biases}) {
      all.insert(all.end(), more->begin(), more->end());
    }
    return all;
  }

  std::vector<float> user_factors;
  std::vector<float> item_factors;
  std::vector<float> user_biases;
  std::vector<float> item_biases;
  std::int64_t users;
  std::int64_t items;
  std::int64_t stride;
  float mean = 0;
};

constexpr std::int64_t kUsers = 300;
constexpr std::int64_t kItems = 40;
constexpr int kBands = 4;

// A third of the elements of a matrix of rank 2, few users in the first band.
Arrays some_ratings() {
  SplitMix random(7);
  std::vector<float> p(2 * kUsers);
  std::vector<float> q(2 * kItems);
  for (float& each : p) each = 2 * uniform(random);
  for (float& each : q) each = 2 * uniform(random);
  Arrays arrays;
  for (std::int32_t u = 0; u < kUsers; ++u) {
    for (std::int32_t i = 0; i < kItems; ++i) {
      if (u >= 10 && random.below(3) != 0) continue;
      const std::size_t row = 2 * static_cast<std::size_t>(u);
      const std::size_t column = 2 * static_cast<std::size_t>(i);
      arrays.add(u, i, 3 + p[row] * q[column] + p[row + 1] * q[column + 1]);
    }
  }
  return arrays;
}

FactorStep explicit_step(float rate, float l2) { return {rate, l2, std::nullopt}; }

TEST(Factorization, LearnsAMatrixOfLowRank) {
  const Arrays arrays = some_ratings();
  const RatingBlocks blocks(arrays.ratings(), kUsers, kItems, kBands, 3);
  Model model(kUsers, kItems, 16);
  model.mean = 3;
  blocks.train(model.factors(), explicit_step(0.1F, 0), 0, 39 * kBands, 1);
  const double squares =
      blocks.train(model.factors(), explicit_step(0.1F, 0), 39 * kBands, kBands, 1);
  EXPECT_LT(std::sqrt(squares / static_cast<double>(blocks.size())), 0.02);

  std::vector<float> out(arrays.values.size());
  predict({kUsers, kItems, 16, model.user_factors, model.item_factors, model.user_biases,
           model.item_biases, model.mean},
          arrays.users, arrays.items, out);
  for (std::size_t n = 0; n < out.size(); ++n) EXPECT_NEAR(out[n], arrays.values[n], 0.2) << n;
}

TEST(Factorization, TakesTheStepOfTheFormula) {
  Arrays arrays;
  arrays.add(1, 2, 5);
  const RatingBlocks blocks(arrays.ratings(), 3, 4, 2, 0);
  Model model(3, 4, 32);
  model.mean = 1;
  model.user_biases[1] = 0.5F;
  model.item_biases[2] = 0.25F;
  const Model before = model;
  const double squares = blocks.train(model.factors(), explicit_step(0.1F, 0.5F), 0, 2, 1);

  double error = 5 - 1 - 0.5 - 0.25;
  for (std::size_t k = 0; k < 32; ++k) {
    error -= static_cast<double>(before.user_factors[32 + k] * before.item_factors[64 + k]);
  }
  EXPECT_NEAR(squares, error * error, 1e-4);
  for (std::size_t k = 0; k < 32; ++k) {
    const double p = before.user_factors[32 + k];
    const double q = before.item_factors[64 + k];
    EXPECT_NEAR(model.user_factors[32 + k], p + 0.1 * (error * q - 0.5 * p), 1e-5);
    EXPECT_NEAR(model.item_factors[64 + k], q + 0.1 * (error * p - 0.5 * q), 1e-5);
  }
  EXPECT_NEAR(model.user_biases[1], 0.5 + 0.1 * (error - 0.5 * 0.5), 1e-5);
  EXPECT_NEAR(model.item_biases[2], 0.25 + 0.1 * (error - 0.5 * 0.25), 1e-5);
  EXPECT_EQ(model.user_biases[0], 0);
  EXPECT_EQ(model.item_factors[0], before.item_factors[0]);
}

TEST(Factorization, TrainsEachRatingOnceAnEpoch) {
  const Arrays arrays = some_ratings();
  for (const int bands : {1, 3, 8, 64}) {
    const RatingBlocks blocks(arrays.ratings(), kUsers, kItems, bands, 3);
    // Factors of zero stay so without biases: an error is the rating itself, whenever it comes.
    std::vector<float> p(kUsers * 16);
    std::vector<float> q(kItems * 16);
    const Factors zeros{kUsers, kItems, 16, p, q, {}, {}, 0};
    double expected = 0;
    for (const float value : arrays.values) expected += static_cast<double>(value * value);
    EXPECT_NEAR(blocks.train(zeros, explicit_step(0.1F, 0.1F), bands, bands, 2), expected,
                1e-9 * expected);
    EXPECT_EQ(p, std::vector<float>(kUsers * 16));
  }
}

std::vector<float> trained(const FactorStep& step, int threads, const std::vector<int>& pieces) {
  const Arrays arrays = some_ratings();
  const RatingBlocks blocks(arrays.ratings(), kUsers, kItems, kBands, 3);
  Model model(kUsers, kItems, 48);
  model.mean = step.implicit ? 0.0F : 3.0F;
  std::int64_t round = 0;
  for (const int rounds : pieces) {
    blocks.train(model.factors(), step, round, rounds, threads);
    round += rounds;
  }
  return model.all();
}

TEST(Factorization, HasTheSameBitsWithAnyNumberOfThreadsAndPieces) {
  const FactorStep rated = explicit_step(0.05F, 0.02F);
  const FactorStep implicit{0.05F, 0.02F, Confidence{2, 3}};
  for (const FactorStep& step : {rated, implicit}) {
    const std::vector<float> whole = trained(step, 1, {10});
    EXPECT_EQ(trained(step, 2, {10}), whole);
    EXPECT_EQ(trained(step, 64, {10}), whole);
    EXPECT_EQ(trained(step, 3, {1, 2, 7}), whole);
  }
  EXPECT_NE(trained(rated, 1, {9}), trained(rated, 1, {10}));
}

TEST(Factorization, CountsTheRatingsOfAPiece) {
  const Arrays arrays = some_ratings();
  const RatingBlocks blocks(arrays.ratings(), kUsers, kItems, kBands, 3);
  // A model that knows only a mean, with tiny steps, so the errors of a piece are known.
  std::vector<float> p(kUsers * 16);
  std::vector<float> q(kItems * 16);
  const Factors ones{kUsers, kItems, 16, p, q, {}, {}, 1};
  Arrays zeros = arrays;
  zeros.values.assign(zeros.values.size(), 0);
  const RatingBlocks of_zeros(zeros.ratings(), kUsers, kItems, kBands, 3);
  for (const std::int64_t first : {0, 3, kBands - 1, 2 * kBands + 1}) {
    const double squares = of_zeros.train(ones, explicit_step(1e-9F, 0), first, 2, 1);
    EXPECT_NEAR(static_cast<double>(blocks.count(first, 2)), squares, 0.01);
  }
  EXPECT_EQ(blocks.count(0, kBands), blocks.size());
  EXPECT_THROW(static_cast<void>(blocks.count(0, 0)), dstorm::ConfigError);
  EXPECT_THROW(static_cast<void>(blocks.count(-1, 1)), dstorm::ConfigError);
}

TEST(Factorization, LeavesPaddingZero) {
  const Arrays arrays = some_ratings();
  const RatingBlocks blocks(arrays.ratings(), kUsers, kItems, kBands, 3);
  Model model(kUsers, kItems, 16);
  for (std::size_t row = 0; row < kUsers; ++row) model.user_factors[row * 16 + 15] = 0;
  for (std::size_t row = 0; row < kItems; ++row) model.item_factors[row * 16 + 15] = 0;
  blocks.train(model.factors(), explicit_step(0.1F, 0.1F), 0, 2 * kBands, 2);
  for (std::size_t row = 0; row < kUsers; ++row) EXPECT_EQ(model.user_factors[row * 16 + 15], 0);
}

TEST(Factorization, DrawsAsManyOthersAsAsked) {
  const Arrays arrays = some_ratings();
  const RatingBlocks blocks(arrays.ratings(), kUsers, kItems, kBands, 3);
  // With a mean of 1 and tiny steps only the drawn pairs have an error, of 1 each.
  std::vector<float> p(kUsers * 16);
  std::vector<float> q(kItems * 16);
  const Factors ones{kUsers, kItems, 16, p, q, {}, {}, 1};
  const FactorStep step{1e-9F, 0, Confidence{4, 3}};
  const auto wanted = 3 * static_cast<double>(blocks.size());
  EXPECT_NEAR(blocks.train(ones, step, 0, kBands, 1), wanted, kBands * kBands);
}

TEST(Factorization, RanksWhatIsLikedAboveTheRestFromChoicesAlone) {
  // Users of two kinds, who choose a third of the items of their own kind.
  SplitMix random(5);
  Arrays arrays;
  for (std::int32_t u = 0; u < kUsers; ++u) {
    for (std::int32_t i = u % 2; i < kItems; i += 2) {
      if (random.below(3) == 0) arrays.add(u, i, static_cast<float>(1 + random.below(3)));
    }
  }
  const RatingBlocks blocks(arrays.ratings(), kUsers, kItems, kBands, 3);
  Model model(kUsers, kItems, 16);
  blocks.train(model.factors(), {0.05F, 0.01F, Confidence{1, 3}}, 0, 40 * kBands, 2);
  const auto mean_preference = [&](std::int32_t other_kind) {
    Arrays pairs;
    for (std::int32_t u = 0; u < kUsers; ++u) {
      for (std::int32_t i = (u + other_kind) % 2; i < kItems; i += 2) pairs.add(u, i, 0);
    }
    predict({kUsers, kItems, 16, model.user_factors, model.item_factors, model.user_biases,
             model.item_biases, model.mean},
            pairs.users, pairs.items, pairs.values);
    double sum = 0;
    for (const float value : pairs.values) sum += static_cast<double>(value);
    return sum / static_cast<double>(pairs.values.size());
  };
  EXPECT_GT(mean_preference(0), mean_preference(1) + 0.3);
}

TEST(Factorization, SaysWhenStepsAreTooLarge) {
  const Arrays arrays = some_ratings();
  const RatingBlocks blocks(arrays.ratings(), kUsers, kItems, kBands, 3);
  Model model(kUsers, kItems, 16);
  EXPECT_FALSE(
      std::isfinite(blocks.train(model.factors(), explicit_step(10, 0), 0, 10 * kBands, 1)));
}

void expect_same_bits(const FactorKernels& kernels, std::size_t stride) {
  const Arrays arrays = some_ratings();
  std::vector<RatingBlocks::Rating> ratings;
  for (std::size_t n = 0; n < arrays.values.size(); ++n) {
    ratings.push_back({arrays.users[n], arrays.items[n], arrays.values[n]});
  }
  Model ours(kUsers, kItems, static_cast<std::int64_t>(stride));
  Model reference = ours;
  const auto train = [&](const FactorKernels& by, Model& model) {
    const FactorLoop loop{model.user_factors.data(),
                          model.item_factors.data(),
                          model.user_biases.data(),
                          model.item_biases.data(),
                          stride,
                          3,
                          0.05F,
                          0.02F,
                          false,
                          0};
    return by.train(loop, ratings.data(), ratings.size());
  };
  EXPECT_EQ(train(kernels, ours), train(kBaselineFactorKernels, reference));
  EXPECT_EQ(ours.all(), reference.all()) << "rows of " << stride;
  for (const std::size_t n : {std::size_t{1}, std::size_t{7}, stride - 1, stride}) {
    EXPECT_EQ(kernels.dot(ours.user_factors.data(), ours.item_factors.data(), n),
              kBaselineFactorKernels.dot(ours.user_factors.data(), ours.item_factors.data(), n));
  }
}

TEST(FactorKernels, GiveTheSameBitsAtEveryLevel) {
#if defined(__x86_64__)
  for (const std::size_t stride : {16U, 32U, 48U, 64U, 128U}) {
    if (vol::kernels_at(vol::DType::kFloat32, "avx2") != nullptr) {
      expect_same_bits(kAvx2FactorKernels, stride);
    }
    if (vol::kernels_at(vol::DType::kFloat32, "avx512") != nullptr) {
      expect_same_bits(kAvx512FactorKernels, stride);
    }
  }
#endif
}

void expect_refused(const std::function<void()>& call, const std::string& words) {
  try {
    call();
    ADD_FAILURE() << "taken; expected: " << words;
  } catch (const dstorm::ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST(Factorization, RefusesRatingsThatCannotBe) {
  const auto group = [](const Arrays& arrays, int bands = 2) {
    return [arrays, bands] { const RatingBlocks blocks(arrays.ratings(), 3, 4, bands, 0); };
  };
  expect_refused(group({{0, 3}, {0, 0}, {1, 1}}), "rating 1 has user 3; there are 3");
  expect_refused(group({{0, 0}, {0, -1}, {1, 1}}), "rating 1 has item -1; there are 4");
  expect_refused(group({{0}, {0}, {NAN}}), "rating 0 is nan");
  expect_refused(group({{0}, {0, 1}, {1}}), "1 users and 2 items for 1 ratings");
  expect_refused(group({{0}, {0}, {1}}, 0), "bands is 0; it is from 1 to 1024");
  expect_refused(group({{0}, {0}, {1}}, 1025), "bands is 1025");
  expect_refused([] { const RatingBlocks blocks({}, 0, 4, 2, 0); },
                 "there are 0 users and 4 items");
}

TEST(Factorization, RefusesAModelOrAStepThatCannotBe) {
  Arrays arrays;
  arrays.add(0, 0, -1);
  const RatingBlocks blocks(arrays.ratings(), 3, 4, 2, 0);
  const auto train = [&](Model model, FactorStep step, std::int64_t first = 0, int threads = 1) {
    return [&blocks, model, step, first, threads]() mutable {
      blocks.train(model.factors(), step, first, 1, threads);
    };
  };
  const FactorStep step = explicit_step(0.1F, 0);
  expect_refused(train(Model(4, 3, 16), step), "of 4 users and 3 items, the ratings of 3 and 4");
  expect_refused(train(Model(3, 4, 20), step), "20 elements apart; it must be a multiple of 16");
  Model cut(3, 4, 16);
  cut.item_factors.pop_back();
  expect_refused(train(cut, step), "item_factors has 63 elements; the model needs 64");
  Model half_biased(3, 4, 16);
  half_biased.item_biases.clear();
  expect_refused(train(half_biased, step), "item_biases has 0 elements");
  expect_refused(train(Model(3, 4, 16), explicit_step(0, 0)), "learning rate is 0");
  expect_refused(train(Model(3, 4, 16), explicit_step(NAN, 0)), "learning rate is nan");
  expect_refused(train(Model(3, 4, 16), explicit_step(1, -1)), "l2 is -1");
  expect_refused(train(Model(3, 4, 16), step, -1), "rounds count from 0");
  expect_refused(train(Model(3, 4, 16), step, 0, 0), "threads is 0");
  expect_refused(train(Model(3, 4, 16), {0.1F, 0, Confidence{1, 1}}), "the least rating is -1");
  expect_refused(train(Model(3, 4, 16), {0.1F, 0, Confidence{-1, 1}}), "alpha is -1");
}

TEST(Factorization, RefusesToPredictForWhomItDoesNotKnow) {
  Model model(3, 4, 20);
  const FactorsOf<const float> factors{3, 4, 20, model.user_factors, model.item_factors, {}, {}, 0};
  const std::vector<std::int32_t> known{0};
  const std::vector<std::int32_t> unknown{4};
  std::vector<float> out(1);
  expect_refused([&] { predict(factors, unknown, known, out); }, "pair 0 has user 4");
  expect_refused([&] { predict(factors, known, unknown, out); }, "it has items 0 to 3");
  expect_refused([&] { predict(factors, known, {}, out); }, "1 users, 0 items and room for 1");
}

}  // namespace
}  // namespace learn
