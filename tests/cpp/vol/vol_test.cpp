// Vectors with real processes as ranks.
#include "vol/vol.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "processes.hpp"
#include "vol/apply_fold.hpp"

namespace vol {
namespace {

using namespace std::chrono_literals;
using dstorm::Bootstrap;
using dstorm::ConfigError;
using testing_processes::expect_all_well;
using testing_processes::Job;
using testing_processes::join;

// Element i of rank r's vector: numbers whose sums are not exact, so that the bits show the order.
float sample(int rank, std::size_t i) {
  return std::sin(static_cast<float>(i) * 0.37F + static_cast<float>(rank)) * 1e3F;
}

void fill(std::span<float> values, int rank) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = sample(rank, i);
}

// The result that AVG over ALL must give: the sum in rank order, divided.
float average(int ranks, std::size_t i) {
  float sum = sample(0, i);
  for (int r = 1; r < ranks; ++r) sum += sample(r, i);
  return sum / static_cast<float>(ranks);
}

bool is_close(float a, float b) { return std::abs(a - b) <= 1e-5F * (1 + std::abs(b)); }

class DenseSizes : public testing::TestWithParam<std::size_t> {};  // below and above sharing out

TEST_P(DenseSizes, BspAverageOverAllHasTheSameBitsOnEveryRank) {
  const std::size_t n = GetParam();
  struct Bits {
    std::array<std::atomic<std::uint64_t>, 4> hash;
  };
  testing_processes::Shared<Bits> bits;
  Job job(4, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    std::vector<float> values(n);
    Dense<float> vector(group, {.name = "w"}, std::span(values));
    for (int round = 0; round < 5; ++round) {
      fill(values, group->rank());
      vector.scatter();
      const Gathered& gathered = vector.gather(Fold::avg(), {.staleness = 0});
      CHECK_THAT(gathered.count == 3);
      for (std::size_t i = 0; i < n; ++i) CHECK_THAT(is_close(values[i], average(4, i)));
    }
    std::uint64_t hash = 0;
    for (float value : values) hash = hash * 31 + std::bit_cast<std::uint32_t>(value);
    bits->hash[static_cast<std::size_t>(group->rank())] = hash;
    group->barrier();
    return 0;
  });
  expect_all_well(job);
  for (std::size_t r = 1; r < 4; ++r) EXPECT_EQ(bits->hash[r], bits->hash[0]);
}

// A rank goes on computing between scatter and gather. Its changes in between are in its own
// result, and in no other rank's, whether the fold was shared out or not.
TEST_P(DenseSizes, ChangesSinceTheScatterAreKept) {
  const std::size_t n = GetParam();
  Job job(4, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    std::vector<float> values(n, 1.0F);
    Dense<float> vector(group, {.name = "w"}, std::span(values));
    vector.scatter();
    if (group->rank() == 2) values[n / 2] = 9.0F;
    vector.gather(Fold::avg(), {.staleness = 0});
    for (std::size_t i = 0; i < n; ++i) {
      CHECK_THAT(values[i] == (group->rank() == 2 && i == n / 2 ? 3.0F : 1.0F));
    }
    return 0;
  });
  expect_all_well(job);
}

TEST_P(DenseSizes, RanksThatFoldDifferentlyDoNotHoldEachOtherUp) {
  const std::size_t n = GetParam();
  Job job(4, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    std::vector<float> values(n);
    Dense<float> vector(group, {.name = "w"}, std::span(values));
    for (int round = 0; round < 3; ++round) {
      std::fill(values.begin(), values.end(), static_cast<float>(group->rank()));
      vector.scatter();
      if (group->rank() == 0) {
        vector.gather(Fold::sum(), {.staleness = 0});
        CHECK_THAT(values[n - 1] == 6.0F);
      } else if (group->rank() == 1) {
        vector.gather(Dense<float>::fold([](std::span<float> mine, auto updates) {
                        mine[0] = static_cast<float>(updates.size());
                      }),
                      {.staleness = 0});
        CHECK_THAT(values[0] == 3.0F);
      } else {
        vector.gather(Fold::avg(), {.staleness = 0});
        CHECK_THAT(values[n - 1] == 1.5F);
      }
    }
    return 0;
  });
  expect_all_well(job);
}

TEST_P(DenseSizes, AllreduceIsExactOverBothKindsOfMemory) {
  const std::size_t n = GetParam();
  Job job(3, [&](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    std::vector<float> values(n);
    Dense<float> over_mine(group, {.name = "mine"}, std::span(values));
    Dense<float> of_its_own(group, {.name = "own"}, n);
    // Out of step on purpose: allreduce does not depend on how often each rank has scattered.
    for (int i = 0; i < group->rank(); ++i) over_mine.scatter();
    for (int round = 0; round < 4; ++round) {
      fill(values, group->rank());
      fill(of_its_own.values(), group->rank());
      CHECK_THAT(over_mine.allreduce(Fold::avg()).count == 2);
      of_its_own.allreduce(Fold::avg());
      for (std::size_t i = 0; i < n; ++i) {
        CHECK_THAT(is_close(values[i], average(3, i)));
        CHECK_THAT(of_its_own.values()[i] == values[i]);
      }
    }
    return 0;
  });
  expect_all_well(job);
}

// Ranks die one after the other, anywhere in a round. After each round every element of a survivor
// has the average of the same set of ranks, itself included: the old set or the new one, never a
// mix.
TEST_P(DenseSizes, DeathInTheMiddleLeavesNoMix) {
  const std::size_t n = GetParam();
  for (const bool own_memory : {false, true}) {
    for (const bool gathers : {false, true}) {
      struct Flags {
        std::atomic<int> ready;
      };
      testing_processes::Shared<Flags> flags;
      Job job(4, [&](Bootstrap& bootstrap) {
        const auto group = join(bootstrap);
        std::vector<float> values(n);
        Dense<float> over_mine(group, {.name = "mine"}, std::span(values));
        Dense<float> of_its_own(group, {.name = "own"}, n);
        ++flags->ready;
        Dense<float>& vector = own_memory ? of_its_own : over_mine;
        const auto own = static_cast<float>(1 << group->rank());
        for (;;) {
          std::fill(vector.values().begin(), vector.values().end(), own);
          if (gathers) {
            vector.scatter();
            vector.gather(Fold::sum(), {.staleness = 0});
          } else {
            vector.allreduce(Fold::sum());
          }
          const float first = vector.values()[0];
          for (float value : vector.values()) CHECK_THAT(value == first);
          CHECK_THAT((static_cast<int>(first) & 1 << group->rank()) != 0);
          if (group->alive().size() == 1) return 0;
        }
      });
      while (flags->ready < 4) std::this_thread::sleep_for(1ms);
      for (int victim : {2, 0, 3}) {
        std::this_thread::sleep_for(std::chrono::milliseconds(30 + victim * 7));
        job.signal(victim, SIGKILL);
      }
      EXPECT_EQ(job.wait_all(), (std::vector<int>{137, 0, 137, 137}));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Elements, DenseSizes, testing::Values(1, 1000, 20'000, 300'001));

TEST(Dense, SeveralArraysAreOneVector) {
  Job job(2, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    std::vector<double> a(3, group->rank());
    std::vector<double> b(5, 10.0 * group->rank());
    const std::array<std::span<double>, 2> arrays{std::span(a), std::span(b)};
    Dense<double> vector(group, {.name = "w"}, arrays);
    vector.scatter();
    vector.gather(Fold::avg(), {.staleness = 0});
    CHECK_THAT(a == std::vector<double>(3, 0.5) && b == std::vector<double>(5, 5.0));
    a[0] = group->rank();
    vector.allreduce(Fold::sum());
    CHECK_THAT(a[0] == 1.0 && a[1] == 1.0 && b[4] == 10.0);
    return 0;
  });
  expect_all_well(job);
}

TEST(Dense, FoldsDoWhatTheirNamesSay) {
  Job job(5, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    const auto after = [&](const Fold& fold) {
      static int made = 0;
      // 0, 1, 4, 9, 16 by rank
      std::vector<float> w(1, static_cast<float>(group->rank() * group->rank()));
      Dense<float> vector(group, {.name = "w" + std::to_string(++made)}, std::span(w));
      vector.scatter();
      vector.gather(fold, {.staleness = 0});
      group->barrier();  // no rank frees it before all have folded
      return w[0];
    };
    CHECK_THAT(after(Fold::avg()) == 6.0F);
    CHECK_THAT(after(Fold::sum()) == 30.0F);
    CHECK_THAT(is_close(after(Fold::weighted()), 6.0F));
    CHECK_THAT(after(Fold::median()) == 4.0F);
    CHECK_THAT(is_close(after(Fold::trimmed_mean(0.2)), 14.0F / 3.0F));
    const float replaced = after(Fold::replace());
    CHECK_THAT(replaced == (group->rank() == 0 ? 1.0F : 0.0F));
    return 0;
  });
  expect_all_well(job);
}

TEST(Dense, NonFiniteUpdateIsRefusedAndItsSenderNamed) {
  Job job(3, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    std::vector<float> w(40, static_cast<float>(group->rank()));
    Dense<float> vector(group, {.name = "w", .reject_nonfinite = true}, std::span(w));
    if (group->rank() == 1) w[17] = std::numeric_limits<float>::quiet_NaN();
    vector.scatter();
    if (group->rank() == 1) w[17] = 1.0F;
    const Gathered& gathered = vector.gather(Fold::avg(), {.staleness = 0});
    if (group->rank() != 1) {
      CHECK_THAT(gathered.count == 1 && gathered.rejected == std::vector<int>{1});
      CHECK_THAT(w[17] == 1.0F);
    }
    group->barrier();
    if (group->rank() == 1) CHECK_THAT(vector.stats().rejected == 2 && vector.stats().folded == 0);
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

TEST(Dense, CodecsSendFewerBytesAndWhatTheyDecodeIsFolded) {
  Job job(3, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    constexpr std::size_t kCount = 5000;
    double plain = 0;  // bytes without a codec
    struct Case {
      Codec codec;
      float most;  // the largest error of a value
      double bytes;
    };
    for (const auto& [codec, most, bytes] :
         {Case{{}, 1e-2F, 1}, Case{Codec::float16(), 0.5F, 0.5}, Case{Codec::bfloat16(), 4, 0.5},
          Case{Codec::int8(), 8, 0.26}, Case{Codec::top_k(0.25), 1e3F, 0.5}}) {
      std::vector<float> w(kCount);
      Dense<float> vector(group, {.name = codec.name(), .codec = codec}, std::span(w));
      fill(w, group->rank());
      vector.scatter();
      CHECK_THAT(vector.gather(Fold::avg(), {.staleness = 0}).count == 2);
      for (std::size_t i = 0; i < kCount; ++i) CHECK_THAT(std::abs(w[i] - average(3, i)) <= most);
      const auto sent = static_cast<double>(vector.stats().bytes_out);
      if (plain == 0) plain = sent;
      CHECK_THAT(sent <= bytes * plain + 2 * 128);  // with the headers, for each of two peers

      fill(w, group->rank());
      const std::uint64_t before = vector.stats().bytes_out;
      vector.allreduce(Fold::avg());  // exact, and by messages but for vectors without a codec
      CHECK_THAT(codec.kind() == Codec::Kind::kNone || vector.stats().bytes_out > before);
      for (std::size_t i = 0; i < kCount; ++i) CHECK_THAT(is_close(w[i], average(3, i)));
      group->barrier();
    }
    return 0;
  });
  expect_all_well(job);
}

TEST(Dense, TopKOverRoundsSumsUpToAllThatWasGiven) {
  Job job(2, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    std::vector<float> gradient(100);
    std::vector<float> sum(100);
    Dense<float> vector(group, {.name = "g", .codec = Codec::top_k(0.25)}, std::span(gradient));
    const Fold add = Dense<float>::fold([&](auto, auto updates) {
      for (const auto& update : updates) {
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += update.values[i];
      }
    });
    for (int round = 0; round < 8; ++round) {
      for (std::size_t i = 0; i < 100; ++i) {
        gradient[i] = round < 4 ? static_cast<float>(i + 1) : 0;  // then the kept rest is sent
      }
      vector.scatter();
      vector.gather(add, {.staleness = 0});
    }
    for (std::size_t i = 0; i < 100; ++i) CHECK_THAT(sum[i] == 4.0F * static_cast<float>(i + 1));
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

TEST(Dense, RanksWithDifferentCodecsAreRefused) {
  Job job(3, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    std::vector<float> w(100);
    const Codec codec = group->rank() == 1 ? Codec::float16() : Codec::int8();
    try {
      const Dense<float> vector(group, {.name = "w", .codec = codec}, std::span(w));
    } catch (const ConfigError& error) {
      return std::string(error.what()).find("float16") == std::string::npos ? 2 : 0;
    }
    return 1;
  });
  expect_all_well(job);
}

// Rank 1's update is 30 times as long as max_norm, and has the direction of rank 2's.
TEST(Dense, LongUpdateIsFoldedAtMaxNormByEveryFold) {
  Job job(3, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    int made = 0;
    const auto after = [&](const Fold& fold) {  // -1: not as expected
      const float length = std::array{0.0F, 150.0F, 1.0F}[static_cast<std::size_t>(group->rank())];
      std::vector<float> w(1000);
      w[10] = 0.6F * length;
      w[999] = -0.8F * length;
      const std::string name = "w" + std::to_string(++made);
      Dense<float> vector(group, {.name = name, .max_norm = 5.0}, std::span(w));
      vector.scatter();
      const Gathered& gathered = vector.gather(fold, {.staleness = 0});
      const bool is_long = group->rank() == 1;
      const bool is_well = gathered.count == 2 && gathered.rejected.empty() &&
                           gathered.clipped == std::vector<int>(is_long ? 0 : 1, 1) &&
                           vector.screened().clipped_from.size() == (is_long ? 0 : 1) &&
                           is_close(w[10] * -4, w[999] * 3) && w[11] == 0;
      group->barrier();  // no rank frees it before all have folded
      return is_well && vector.stats().folded == 2 ? w[10] / 0.6F : -1.0F;
    };
    const Fold longest = Dense<float>::fold([](auto mine, auto updates) {
      for (const auto& update : updates) {
        for (std::size_t i = 0; i < mine.size(); ++i) {
          if (std::abs(update.values[i]) > std::abs(mine[i])) mine[i] = update.values[i];
        }
      }
    });
    const bool sees_it = group->rank() != 1;
    CHECK_THAT(is_close(after(Fold::avg()), sees_it ? 2 : 151.0F / 3));
    CHECK_THAT(is_close(after(Fold::sum()), sees_it ? 6 : 151));
    CHECK_THAT(is_close(after(Fold::weighted()), sees_it ? 2 : 151.0F / 3));
    CHECK_THAT(is_close(after(Fold::median()), 1));
    CHECK_THAT(is_close(after(Fold::trimmed_mean(0)), sees_it ? 2 : 151.0F / 3));
    CHECK_THAT(is_close(after(longest), sees_it ? 5 : 150));
    const float replaced = after(Fold::replace());
    CHECK_THAT(is_close(replaced, group->rank() == 0 ? 5 : 0));
    return 0;
  });
  expect_all_well(job);
}

TEST(Dense, UpdateWhoseSquaresOverflowIsClippedAndOneWithoutNormRefused) {
  Job job(3, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    std::vector<double> w(2000, 1.0);
    Dense<double> vector(group, {.name = "w", .max_norm = 100.0}, std::span(w));
    if (group->rank() == 1) std::ranges::fill(w, std::numeric_limits<double>::max());
    if (group->rank() == 2) w[1999] = std::numeric_limits<double>::infinity();
    vector.scatter();
    std::ranges::fill(w, 0.0);
    const Gathered& gathered = vector.gather(Fold::sum(), {.staleness = 0});
    if (group->rank() == 0) {
      CHECK_THAT(gathered.clipped == std::vector<int>{1});
      CHECK_THAT(gathered.rejected == std::vector<int>{2});
      CHECK_THAT(std::abs(w[0] - 100 / std::sqrt(2000)) < 1e-12 && w[0] == w[1999]);
    }
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

TEST(Sparse, LongUpdateIsFoldedAtMaxNorm) {
  Job job(2, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Sparse<float> vector(group, 1000, 10, {.name = "s", .max_norm = 5.0});
    const float size = group->rank() == 1 ? 10.0F : 1.0F;
    vector.set(std::vector<std::int64_t>{3, 900}, std::vector<float>{3 * size, 4 * size});
    vector.scatter();
    const Gathered& gathered = vector.gather(Fold::sum(), {.staleness = 0});
    CHECK_THAT(gathered.count == 1 && gathered.clipped.size() == (group->rank() == 0 ? 1 : 0));
    CHECK_THAT(is_close(vector.values()[0], group->rank() == 0 ? 6 : 33));
    CHECK_THAT(is_close(vector.values()[1], group->rank() == 0 ? 8 : 44));
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

TEST(Screen, MaxNormIsAPositiveNumberAndForFloats) {
  for (const double wrong : {0.0, -1.0, std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW(Screen(false, wrong, DType::kFloat32, "w"), ConfigError) << wrong;
  }
  EXPECT_THROW(Screen(false, 1.0, DType::kInt64, "w"), ConfigError);
}

// One rank only ever sends, and must find its memory unchanged.
TEST(Dense, SenderIsNotTouchedByItsReaders) {
  Job job(2, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    std::vector<std::int64_t> w(100);
    std::iota(w.begin(), w.end(), 1000 * group->rank());
    Dense<std::int64_t> vector(group, {.name = "w"}, std::span(w));
    if (group->rank() == 0) vector.scatter();
    group->barrier();
    if (group->rank() == 1) {
      CHECK_THAT(vector.gather(Fold::sum()).count == 1);
      CHECK_THAT(w[5] == 1010);
    }
    group->barrier();
    if (group->rank() == 0) CHECK_THAT(w[5] == 5);
    return 0;
  });
  expect_all_well(job);
}

// The bits of a fold of all ranks' vectors do not depend on how the ranks share it out: with 1 to
// 65,537 elements, of which a rank's part is none, or all, or differs in length from the others',
// in two pieces.
TEST(Dense, AllreduceHasTheBitsOfOneFoldInRankOrder) {
  Job job(4, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    for (const std::size_t n : {std::size_t{1}, std::size_t{17}, std::size_t{5'000},
                                std::size_t{20'003}, std::size_t{65'537}}) {
      std::vector<std::vector<float>> all(4, std::vector<float>(n));
      std::vector<const void*> inputs;
      for (int r = 0; r < 4; ++r) {
        fill(all[static_cast<std::size_t>(r)], r);
        inputs.push_back(all[static_cast<std::size_t>(r)].data());
      }
      std::vector<float> w(n);
      std::vector<std::span<float>> pieces{std::span(w).first(n / 3), std::span(w).subspan(n / 3)};
      if (n < 3) pieces.erase(pieces.begin());
      Dense<float> vector(group, {.name = "w" + std::to_string(n)}, pieces);
      for (const Fold& fold : {Fold::avg(), Fold::sum(), Fold::median(), Fold::trimmed_mean(0.3)}) {
        std::vector<float> expected(n);
        apply_fold(fold, kernels(DType::kFloat32), expected.data(), inputs, {}, n);
        fill(w, group->rank());
        CHECK_THAT(vector.allreduce(fold).ranks.size() == 3);
        CHECK_THAT(std::memcmp(w.data(), expected.data(), n * sizeof(float)) == 0);
      }
    }
    return 0;
  });
  expect_all_well(job);
}

TEST(Dense, DifferentFoldsInOneAllreduceAreAnError) {
  Job job(2, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    std::vector<float> w(8, 1.0F);
    Dense<float> vector(group, {.name = "w"}, std::span(w));
    try {
      vector.allreduce(group->rank() == 0 ? Fold::avg() : Fold::sum());
      return 1;
    } catch (const ConfigError& error) {
      CHECK_THAT(std::string(error.what()).find("different folds") != std::string::npos);
    }
    CHECK_THAT(w[0] == 1.0F);
    vector.allreduce(Fold::sum());
    CHECK_THAT(w[0] == 2.0F);
    return 0;
  });
  expect_all_well(job);
}

TEST(Dense, AllreduceNamesWhoDoesNotComeAndChangesNothing) {
  Job job(3, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    std::vector<float> w(8, 1.0F);
    Dense<float> vector(group, {.name = "w"}, std::span(w));
    vector.allreduce(Fold::avg());
    if (group->rank() != 2) {
      try {
        vector.allreduce(Fold::sum(), 1s);  // long enough for each to see the other arrive
        return 1;
      } catch (const dstorm::TimeoutError& error) {
        CHECK_THAT(error.ranks() == std::vector<int>{2} || error.ranks().empty());
        CHECK_THAT(w[0] == 1.0F);
      }
    }
    group->barrier();
    return 0;
  });
  expect_all_well(job);
}

TEST(Sparse, GoesSparseOrDenseAndComesOutTheSame) {
  for (const std::size_t entries : {std::size_t{3}, std::size_t{60}}) {
    Job job(3, [&](Bootstrap& bootstrap) {
      const auto group = join(bootstrap);
      Sparse<float> vector(group, 100, 100, {.name = "g"});
      std::vector<std::int64_t> indices;
      std::vector<float> values;
      for (std::size_t i = 0; i < entries; ++i) {  // downwards, to be sorted
        indices.push_back(
            static_cast<std::int64_t>(99 - i - static_cast<std::size_t>(group->rank())));
        values.push_back(static_cast<float>(i + 1));
      }
      vector.set(indices, values);
      vector.scatter();
      CHECK_THAT(vector.gather(Fold::sum(), {.staleness = 0}).count == 2);
      std::vector<float> expected(100);
      for (int r = 0; r < 3; ++r) {
        for (std::size_t i = 0; i < entries; ++i) {
          expected[99 - i - static_cast<std::size_t>(r)] += static_cast<float>(i + 1);
        }
      }
      std::vector<float> found(100);
      for (std::size_t i = 0; i < vector.indices().size(); ++i) {
        found[static_cast<std::size_t>(vector.indices()[i])] = vector.values()[i];
      }
      CHECK_THAT(found == expected);
      return 0;
    });
    expect_all_well(job);
  }
}

TEST(Sparse, DuplicatesAddUpAndBadIndicesAreRefused) {
  dstorm::SoloBootstrap bootstrap;
  const auto group = join(bootstrap);
  Sparse<double> vector(group, 10, 3, {.name = "g"});
  vector.set(std::array<std::int64_t, 4>{7, 2, 7, 2}, std::array<double, 4>{1, 2, 3, 4});
  EXPECT_EQ(std::vector<Index>(vector.indices().begin(), vector.indices().end()),
            (std::vector<Index>{2, 7}));
  EXPECT_EQ(std::vector<double>(vector.values().begin(), vector.values().end()),
            (std::vector<double>{6, 4}));
  const auto set_one = [&](std::int64_t index) {
    vector.set(std::array<std::int64_t, 1>{index}, std::array<double, 1>{1});
  };
  EXPECT_THROW(set_one(10), ConfigError);
  EXPECT_THROW(set_one(-1), ConfigError);
  EXPECT_THROW(vector.set(std::array<std::int64_t, 4>{1, 2, 3, 4}, std::array<double, 4>{}),
               ConfigError);
  EXPECT_EQ(vector.indices().size(), 2U) << "unchanged";
}

TEST(Sparse, OverflowingFoldLeavesEverythingAsItWas) {
  Job job(2, [](Bootstrap& bootstrap) {
    const auto group = join(bootstrap);
    Sparse<float> vector(group, 10, 2, {.name = "g"});
    const std::int64_t base = 5 * group->rank();
    vector.set(std::array<std::int64_t, 2>{base, base + 1}, std::array<float, 2>{1, 1});
    vector.scatter();
    try {
      vector.gather(Fold::sum(), {.staleness = 0});
      return 1;
    } catch (const ConfigError& error) {
      CHECK_THAT(std::string(error.what()).find("capacity of 2") != std::string::npos);
    }
    CHECK_THAT(vector.indices().size() == 2);
    vector.clear();
    CHECK_THAT(vector.gather(Fold::sum(), {.staleness = 0}).count == 1);
    CHECK_THAT(vector.indices()[0] == 5 - base);
    return 0;
  });
  expect_all_well(job);
}

}  // namespace
}  // namespace vol
