// The values of an allreduce whose vectors are added up by host.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "placed.hpp"
#include "vol/vol.hpp"

namespace vol {
namespace {

using dstorm::Bootstrap;
using testing_processes::expect_all_well;
using testing_processes::hosts_of;
using testing_processes::Job;
using testing_processes::join_placed;
using testing_processes::placements;
using testing_processes::Shared;

constexpr std::size_t kCount = 40'000;  // floats: long enough to be added up by host

// Whole numbers add up exactly in any order. Every seventh element is checked, the last one too.
template <class T>
int check_folds(const std::shared_ptr<dstorm::Group>& group, std::size_t count,
                const std::string& name) {
  const auto value = [](int r, std::size_t i) {
    return static_cast<T>(static_cast<int>((i * 7 + static_cast<std::size_t>(r) * 13) % 101) - 50);
  };
  std::vector<T> w(count);
  Dense<T> vector(group, {.name = name}, std::span(w));
  for (const Fold& fold : {Fold::sum(), Fold::avg(), Fold::median()}) {
    for (std::size_t i = 0; i < count; ++i) w[i] = value(group->rank(), i);
    CHECK_THAT(vector.allreduce(fold).ranks.size() + 1 == static_cast<std::size_t>(group->size()));
    for (std::size_t i = 0; i < count; i += 7) {
      std::vector<T> all;
      T sum = 0;
      for (int r = 0; r < group->size(); ++r) {
        all.push_back(value(r, i));
        sum = static_cast<T>(sum + all.back());
      }
      std::ranges::sort(all);
      const T middle = static_cast<T>(all[(all.size() - 1) / 2] + all[all.size() / 2]) / T{2};
      const bool is_sum = fold.kind() == Fold::Kind::kSum;
      const bool is_avg = fold.kind() == Fold::Kind::kAvg;
      const T mean = sum / static_cast<T>(group->size());
      CHECK_THAT(w[i] == (is_sum ? sum : is_avg ? mean : middle));
    }
  }
  return 0;
}

TEST(HostSums, SumsAndMeansAreExactWhereTheyCanBe) {
  for (const std::vector<int>& hosts : placements()) {
    Job job(static_cast<int>(hosts.size()), [&](Bootstrap& bootstrap) {
      const auto group = join_placed(bootstrap, hosts);
      return check_folds<float>(group, kCount + 13, "f") ||
             check_folds<double>(group, kCount + 6, "d") ||
             check_folds<std::int32_t>(group, kCount + 27, "i") ||
             check_folds<std::int64_t>(group, kCount + 20, "l");
    });
    expect_all_well(job);
  }
}

// A sum of int32 wraps, and their mean is exact where their sum would wrap.
TEST(HostSums, MeansAndSumsThatOverflowAreAsOnOneHost) {
  for (const std::vector<int>& hosts :
       {std::vector{0, 0, 1, 1, 1, 2}, {0, 1, 2, 2, 1}, {0, 0, 1, 1, 1, 2, 2}}) {
    Job job(static_cast<int>(hosts.size()), [&](Bootstrap& bootstrap) {
      const auto group = join_placed(bootstrap, hosts);
      Dense<float> floats(group, {.name = "f"}, kCount);
      std::ranges::fill(floats.values(), 0.1F);
      floats.allreduce(Fold::avg());
      Dense<std::int32_t> ints(group, {.name = "i"}, kCount);
      std::ranges::fill(ints.values(), 2'000'000'001);
      ints.allreduce(Fold::avg());
      CHECK_THAT(std::ranges::all_of(ints.values(), [](auto v) { return v == 2'000'000'001; }));
      ints.allreduce(Fold::sum());
      const auto sum = static_cast<std::int32_t>(static_cast<std::uint32_t>(group->size()) *
                                                 std::uint32_t{2'000'000'001});
      CHECK_THAT(std::ranges::all_of(ints.values(), [&](auto v) { return v == sum; }));
      for (const float v : floats.values()) CHECK_THAT(std::abs(v - 0.1F) < 2e-8F);
      return 0;
    });
    expect_all_well(job);
  }
}

TEST(HostSums, AllRanksHaveTheSameBitsAndEveryRoundHasThem) {
  for (const std::vector<int>& hosts : placements()) {
    Shared<std::array<std::array<float, 64>, 16>> samples;
    Job job(static_cast<int>(hosts.size()), [&](Bootstrap& bootstrap) {
      const auto group = join_placed(bootstrap, hosts);
      const auto rank = static_cast<std::size_t>(group->rank());
      Dense<float> vector(group, {.name = "w"}, kCount);
      for (int round = 0; round < 4; ++round) {
        std::minstd_rand random(static_cast<unsigned>(rank) + 1);
        std::uniform_real_distribution<float> values(-1, 1);
        for (float& v : vector.values()) v = values(random);
        vector.allreduce(Fold::avg());
        for (std::size_t i = 0; i < 64; ++i) {
          float& sample = (*samples)[rank][i];
          const float v = vector.values()[i * (kCount / 64)];
          CHECK_THAT(round == 0 || sample == v);
          sample = v;
        }
      }
      group->barrier();
      for (std::size_t r = 0; r < hosts.size(); ++r) {
        CHECK_THAT((*samples)[r] == (*samples)[rank]);
      }
      return 0;
    });
    expect_all_well(job);
  }
}

TEST(HostSums, DifferentFoldsAreAnErrorOnEveryRankAndTheNextCallWorks) {
  Job job(4, [](Bootstrap& bootstrap) {
    const auto group = join_placed(bootstrap, hosts_of(2, 2));
    for (const int odd : {0, 1, 2, 3}) {
      std::vector<float> w(kCount, 1.0F);
      Dense<float> vector(group, {.name = "w" + std::to_string(odd)}, std::span(w));
      try {
        vector.allreduce(group->rank() == odd ? Fold::median() : Fold::avg());
        return 1;
      } catch (const dstorm::ConfigError& error) {
        CHECK_THAT(std::string(error.what()).find("different folds") != std::string::npos);
      }
      vector.allreduce(Fold::sum());
      CHECK_THAT(w[0] == 4.0F);
    }
    return 0;
  });
  expect_all_well(job);
}

}  // namespace
}  // namespace vol
