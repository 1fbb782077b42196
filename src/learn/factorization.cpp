// How a factorisation trains. train() first draws, for each round, which band of items every band
// of users meets (shifts()). Each thread then takes the blocks of the round one by one, and waits
// at a barrier until all blocks of the round are done. The blocks of a round share no user and no
// item, so it does not matter which thread trains which block, or when. train_implicit() mixes a
// block's ratings with pairs that it draws. factorization_blocks.cpp groups the ratings into
// blocks, and the kernels (factorization_kernels.hpp) take the steps.
#include "learn/factorization.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cmath>
#include <exception>
#include <numeric>
#include <string>
#include <thread>

#include "dstorm/errors.hpp"
#include "learn/factorization_kernels.hpp"
#include "learn/splitmix.hpp"
#include "vol/kernels.hpp"

namespace learn {
namespace {

// The number of ratings, observed and drawn, that one call of the kernel gets.
constexpr std::size_t kChunk = 512;

void check_that(bool holds, const std::string& otherwise) {
  if (!holds) throw dstorm::ConfigError(otherwise);
}

void check_elements(const char* name, std::size_t length, std::int64_t wanted) {
  check_that(static_cast<std::int64_t>(length) == wanted,
             std::string(name) + " has " + std::to_string(length) + " elements; the model needs " +
                 std::to_string(wanted));
}

void check_known(std::size_t n, const char* name, std::int32_t id, std::int64_t count) {
  if (id >= 0 && id < count) return;
  throw dstorm::ConfigError("pair " + std::to_string(n) + " has " + name + " " +
                            std::to_string(id) + ", which the model does not know; it has " + name +
                            "s 0 to " + std::to_string(count - 1));
}

void check_rounds(std::int64_t first, std::int64_t rounds) {
  check_that(first >= 0 && rounds >= 1, "rounds " + std::to_string(first) + " and the next " +
                                            std::to_string(rounds) +
                                            ": rounds count from 0, and at least one is trained");
}

FactorLoop to_loop(const Factors& factors, const FactorStep& step) {
  const bool biased = !factors.user_biases.empty();
  return {factors.user_factors.data(),
          factors.item_factors.data(),
          biased ? factors.user_biases.data() : nullptr,
          biased ? factors.item_biases.data() : nullptr,
          static_cast<std::size_t>(factors.stride),
          factors.mean,
          step.rate,
          step.l2,
          step.implicit.has_value(),
          step.implicit ? step.implicit->alpha : 0.0F};
}

}  // namespace

const FactorKernels& factor_kernels() {
#if defined(__x86_64__)
  if (vol::simd_level() == "avx512") return kAvx512FactorKernels;
  if (vol::simd_level() == "avx2") return kAvx2FactorKernels;
#endif
  return kBaselineFactorKernels;
}

template <class T>
void FactorsOf<T>::check() const {
  check_that(users >= 1 && items >= 1 && stride >= 1,
             "a model has at least one user, item and factor, not " + std::to_string(users) + ", " +
                 std::to_string(items) + " and " + std::to_string(stride));
  check_elements("user_factors", user_factors.size(), users * stride);
  check_elements("item_factors", item_factors.size(), items * stride);
  if (user_biases.empty() && item_biases.empty()) return;
  check_elements("user_biases", user_biases.size(), users);
  check_elements("item_biases", item_biases.size(), items);
}

template struct FactorsOf<float>;
template struct FactorsOf<const float>;

std::int64_t RatingBlocks::count(std::int64_t first, std::int64_t rounds) const {
  check_rounds(first, rounds);
  const auto width = static_cast<std::size_t>(bands_);
  std::size_t ratings = 0;
  for (const std::size_t off : shifts(first, rounds)) {
    for (std::size_t user_band = 0; user_band < width; ++user_band) {
      const std::size_t block = user_band * width + (user_band + off) % width;
      ratings += begin(block + 1) - begin(block);
    }
  }
  return static_cast<std::int64_t>(ratings);
}

void RatingBlocks::check(const Factors& factors, const FactorStep& step, std::int64_t first,
                         std::int64_t rounds, int threads) const {
  factors.check();
  check_that(factors.users == users_ && factors.items == items_,
             "the factors are of " + std::to_string(factors.users) + " users and " +
                 std::to_string(factors.items) + " items, the ratings of " +
                 std::to_string(users_) + " and " + std::to_string(items_));
  check_that(factors.stride % kStrideMultiple == 0,
             "rows of factors are " + std::to_string(factors.stride) +
                 " elements apart; it must be a multiple of " + std::to_string(kStrideMultiple));
  check_that(std::isfinite(step.rate) && step.rate > 0,
             "the learning rate is " + std::to_string(step.rate) + "; it is a number above 0");
  check_that(std::isfinite(step.l2) && step.l2 >= 0,
             "l2 is " + std::to_string(step.l2) + "; it is a number of at least 0");
  check_rounds(first, rounds);
  check_that(threads >= 1, "threads is " + std::to_string(threads) + "; it is at least 1");
  if (!step.implicit) return;
  check_that(std::isfinite(step.implicit->alpha) && step.implicit->alpha >= 0,
             "alpha is " + std::to_string(step.implicit->alpha) + "; it is a number of at least 0");
  check_that(step.implicit->negatives >= 0,
             "negatives is " + std::to_string(step.implicit->negatives) + "; it is at least 0");
  check_that(ratings_.empty() || least_ > 0,
             "the least rating is " + std::to_string(least_) +
                 "; implicit ones count how often something was chosen, and are above 0");
}

double RatingBlocks::train(const Factors& factors, const FactorStep& step, std::int64_t first,
                           std::int64_t rounds, int threads) const {
  check(factors, step, first, rounds, threads);
  const FactorKernels& kernels = factor_kernels();
  const FactorLoop loop = to_loop(factors, step);
  const auto width = static_cast<std::size_t>(bands_);
  const auto count = static_cast<std::size_t>(rounds);
  const std::vector<std::size_t> off = shifts(first, rounds);
  std::vector<double> squares(count * width);  // by block, to be added in one order
  std::vector<std::atomic<std::size_t>> taken(count);
  const auto team = static_cast<std::ptrdiff_t>(std::min(threads, bands_));
  std::barrier<> round_end(team);
  const auto train_block = [&](std::size_t round, std::size_t user_band) noexcept {
    const std::size_t item_band = (user_band + off[round]) % width;
    const std::size_t block = user_band * width + item_band;
    if (step.implicit) {
      return train_implicit(kernels, loop, step.implicit->negatives,
                            first + static_cast<std::int64_t>(round), user_band, item_band);
    }
    return kernels.train(loop, ratings_.data() + begin(block), begin(block + 1) - begin(block));
  };
  const auto work = [&]() noexcept {
    for (std::size_t round = 0; round < count; ++round) {
      while (true) {
        const std::size_t band = taken[round].fetch_add(1, std::memory_order_relaxed);
        if (band >= width) break;
        squares[round * width + band] = train_block(round, band);
      }
      round_end.arrive_and_wait();
    }
  };
  std::vector<std::jthread> others;
  try {
    others.reserve(static_cast<std::size_t>(team) - 1);
    for (std::ptrdiff_t i = 1; i < team; ++i) others.emplace_back(work);
  } catch (const std::exception&) {
    // There are no more threads, or there is no memory for them. The threads that exist do all the
    // work, with the same bits.
    for (auto i = static_cast<std::ptrdiff_t>(others.size()) + 1; i < team; ++i) {
      round_end.arrive_and_drop();
    }
  }
  work();
  others.clear();  // joins them
  return std::accumulate(squares.begin(), squares.end(), 0.0);
}

std::vector<std::size_t> RatingBlocks::shifts(std::int64_t first, std::int64_t rounds) const {
  std::vector<std::size_t> of_rounds;
  std::vector<std::size_t> of_epoch(static_cast<std::size_t>(bands_));
  for (std::int64_t round = first; round < first + rounds; ++round) {
    const std::int64_t in_epoch = round % bands_;
    if (round == first || in_epoch == 0) {
      std::iota(of_epoch.begin(), of_epoch.end(), std::size_t{0});
      SplitMix random(seed_ + static_cast<std::uint64_t>(round / bands_));
      shuffle(of_epoch.data(), of_epoch.size(), random);
    }
    of_rounds.push_back(of_epoch[static_cast<std::size_t>(in_epoch)]);
  }
  return of_rounds;
}

// The items drawn here are of this block's band only. Over an epoch a rating of any band of users
// gets `negatives` draws on average, from all bands of items in proportion to their number of
// items. Users are taken from all ratings of their band, at equal distances, which keeps the order
// of the tiles.
double RatingBlocks::train_implicit(const FactorKernels& kernels, const FactorLoop& loop,
                                    int negatives, std::int64_t round, std::size_t user_band,
                                    std::size_t item_band) const noexcept {
  const auto width = static_cast<std::size_t>(bands_);
  const std::size_t block = user_band * width + item_band;
  const Rating* const observed = ratings_.data() + begin(block);
  const std::size_t observed_count = begin(block + 1) - begin(block);
  const Rating* const of_band = ratings_.data() + begin(user_band * width);
  const std::size_t band_count = begin((user_band + 1) * width) - begin(user_band * width);
  const std::int64_t first_item = item_starts_[item_band];
  const std::int64_t item_count = item_starts_[item_band + 1] - first_item;
  const double share = static_cast<double>(item_count) / static_cast<double>(items_);
  const auto drawn_count =
      static_cast<std::size_t>(std::llround(static_cast<double>(band_count) * negatives * share));
  const double distance =
      drawn_count == 0 ? 0 : static_cast<double>(band_count) / static_cast<double>(drawn_count);

  SplitMix random(seed_ ^ (static_cast<std::uint64_t>(round) * width + user_band));
  const double start = distance * static_cast<double>(random.next() >> 11) * 0x1p-53;
  const auto draw = [&](std::size_t n) {
    const auto at = static_cast<std::size_t>(start + static_cast<double>(n) * distance);
    const auto item = random.below(static_cast<std::uint64_t>(item_count));
    return Rating{of_band[std::min(at, band_count - 1)].user,
                  static_cast<std::int32_t>(first_item + static_cast<std::int64_t>(item)), 0};
  };

  const std::size_t chunks = (observed_count + drawn_count + kChunk - 1) / kChunk;
  std::array<Rating, kChunk + 2> together;  // each kind's part may be one more than its mean
  double squares = 0;
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    const std::size_t from = observed_count * chunk / chunks;
    const std::size_t to = observed_count * (chunk + 1) / chunks;
    std::size_t count = to - from;
    std::copy(observed + from, observed + to, together.begin());
    const std::size_t end = drawn_count * (chunk + 1) / chunks;
    for (std::size_t n = drawn_count * chunk / chunks; n < end; ++n) together[count++] = draw(n);
    shuffle(together.data(), count, random);
    squares += kernels.train(loop, together.data(), count);
  }
  return squares;
}

void predict(const FactorsOf<const float>& factors, std::span<const std::int32_t> users,
             std::span<const std::int32_t> items, std::span<float> out) {
  factors.check();
  check_that(users.size() == items.size() && users.size() == out.size(),
             "there are " + std::to_string(users.size()) + " users, " +
                 std::to_string(items.size()) + " items and room for " +
                 std::to_string(out.size()) + " predictions");
  const auto stride = static_cast<std::size_t>(factors.stride);
  const auto dot = factor_kernels().dot;
  for (std::size_t n = 0; n < out.size(); ++n) {
    check_known(n, "user", users[n], factors.users);
    check_known(n, "item", items[n], factors.items);
    const auto user = static_cast<std::size_t>(users[n]);
    const auto item = static_cast<std::size_t>(items[n]);
    out[n] = factors.mean + dot(factors.user_factors.data() + user * stride,
                                factors.item_factors.data() + item * stride, stride);
    if (!factors.user_biases.empty()) {
      out[n] += factors.user_biases[user] + factors.item_biases[item];
    }
  }
}

}  // namespace learn
