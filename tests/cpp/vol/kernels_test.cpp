// Every fold, type and instruction set, compared with plain scalar code. The bits depend neither on
// the instruction set nor on how the range is cut.
#include "vol/kernels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels_reference.hpp"
#include "sanitizers.hpp"
#include "vol/kernels_level.hpp"

namespace {

using namespace kernels_test;  // NOLINT(google-build-using-namespace): this test's own words

constexpr std::string_view kLevels[] = {"baseline", "avx2", "avx512"};
constexpr std::size_t kSizes[] = {0, 1, 3, 15, 16, 17, 31, 1000, 4099};

template <class T>
std::vector<T> expected_of(const Fold<T>& fold, const Inputs<T>& inputs) {
  std::vector<T> expected;
  for (std::size_t i = 0; i < inputs.n(); ++i) expected.push_back(fold.reference(inputs.column(i)));
  return expected;
}

template <class T>
void expect_matches(const std::vector<T>& out, const std::vector<T>& expected, Zeros zeros,
                    const std::string& what) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (same_number(out[i], expected[i])) continue;
    if (zeros == Zeros::kAlike && out[i] == expected[i]) continue;
    FAIL() << what << " of " << expected.size() << ", at " << i << ": " << out[i] << ", not "
           << expected[i];
  }
}

template <class T>
std::vector<T> run(const Fold<T>& fold, const Kernels& kernels, const Inputs<T>& inputs) {
  std::vector<T> out(inputs.n() + 1, T{77});
  fold.run(kernels, out.data(), inputs.in(), inputs.k(), inputs.n());
  EXPECT_EQ(out.back(), T{77}) << fold.name << " writes past the end";
  out.pop_back();
  return out;
}

template <class T>
class KernelsTest : public testing::Test {
 protected:
  // The levels this processor has; with their names.
  static std::vector<std::pair<std::string, const Kernels*>> levels() {
    std::vector<std::pair<std::string, const Kernels*>> there;
    for (const std::string_view level : kLevels) {
      const Kernels* const kernels = vol::kernels_at(kDType<T>, level);
      if (kernels != nullptr) there.emplace_back(level, kernels);
    }
    return there;
  }

  static void expect_folds_match(const Inputs<T>& inputs) {
    for (const Fold<T>& fold : folds<T>()) {
      const std::vector<T> expected = expected_of(fold, inputs);
      for (const auto& [level, kernels] : levels()) {
        expect_matches(run(fold, *kernels, inputs), expected, fold.zeros,
                       level + " " + fold.name + " k=" + std::to_string(inputs.k()));
      }
    }
  }

  Inputs<T> numbers(std::size_t k, std::size_t n) {
    return Inputs<T>::filled(k, n, [this] { return any_number<T>(random_); });
  }

  // NaNs and infinities among them.
  Inputs<T> values(std::size_t k, std::size_t n) {
    return Inputs<T>::filled(k, n, [this] { return any_value<T>(random_); });
  }

  Random random_{20150421};
};

struct TypeName {
  template <class T>
  static std::string GetName(int) {
    return std::string(vol::dtype_name(kDType<T>));
  }
};
using Types = testing::Types<float, double, std::int32_t, std::int64_t>;
TYPED_TEST_SUITE(KernelsTest, Types, TypeName);

TYPED_TEST(KernelsTest, MatchesScalarCode) {
  constexpr std::size_t kStep = kSanitized ? 3 : 1;
  for (const std::size_t n : kSizes) {
    for (std::size_t k = 1; k <= 20; k += kStep) this->expect_folds_match(this->numbers(k, n));
  }
}

TYPED_TEST(KernelsTest, MatchesScalarCodeWithNansAndInfinities) {
  for (const std::size_t n : {1U, 17U, 1000U}) {
    for (std::size_t k = 1; k <= 20; ++k) this->expect_folds_match(this->values(k, n));
  }
}

TYPED_TEST(KernelsTest, MatchesScalarCodeOverManyInputs) {
  for (const std::size_t k : {63U, 64U, 65U, 300U}) this->expect_folds_match(this->values(k, 133));
}

TYPED_TEST(KernelsTest, MatchesScalarCodeWhereItPrefetches) {
  constexpr std::size_t kManyBytes = std::size_t{2} << 20;
  constexpr std::size_t kInputs = 16;
  this->expect_folds_match(this->numbers(kInputs, kManyBytes / (kInputs * sizeof(TypeParam)) + 5));
}

TYPED_TEST(KernelsTest, EveryTrimMatchesScalarCode) {
  using T = TypeParam;
  for (std::size_t k = 1; k <= 20; ++k) {
    const auto inputs = this->values(k, 67);
    for (std::size_t trim = 0; 2 * trim < k; ++trim) {
      std::vector<T> expected;
      for (std::size_t i = 0; i < inputs.n(); ++i) {
        expected.push_back(reference_trimmed_mean(inputs.column(i), trim));
      }
      for (const auto& [level, kernels] : this->levels()) {
        std::vector<T> out(inputs.n());
        kernels->trimmed_mean(out.data(), inputs.in(), trim, k, inputs.n());
        expect_matches(out, expected, Zeros::kAlike, level + " trim=" + std::to_string(trim));
      }
    }
  }
}

TYPED_TEST(KernelsTest, ResultMayReplaceAnyInput) {
  using T = TypeParam;
  for (const std::size_t n : {1U, 17U, 1000U}) {
    for (const std::size_t k : {1U, 2U, 3U, 8U, 17U}) {
      const auto inputs = this->values(k, n);
      for (const auto& [level, kernels] : this->levels()) {
        for (const Fold<T>& fold : folds<T>()) {
          const std::vector<T> apart = run(fold, *kernels, inputs);
          for (std::size_t j = 0; j < k; ++j) {
            Inputs<T> own = inputs;
            fold.run(*kernels, own.array(j), own.in(), k, n);
            ASSERT_EQ(std::memcmp(own.array(j), apart.data(), n * sizeof(T)), 0)
                << level << " " << fold.name << " k=" << k << " n=" << n << " into " << j;
          }
        }
      }
    }
  }
}

TYPED_TEST(KernelsTest, LevelsAgreeToTheBit) {
  using T = TypeParam;
  for (const std::size_t n : kSizes) {
    for (std::size_t k = 1; k <= 20; ++k) {
      const auto inputs = this->values(k, n);
      for (const Fold<T>& fold : folds<T>()) {
        const auto expected = run(fold, *vol::kernels_at(kDType<T>, "baseline"), inputs);
        for (const auto& [level, kernels] : this->levels()) {
          expect_matches(run(fold, *kernels, inputs), expected, Zeros::kBySign,
                         level + " " + fold.name + " k=" + std::to_string(k));
        }
      }
    }
  }
}

TYPED_TEST(KernelsTest, CuttingTheRangeChangesNoBit) {
  using T = TypeParam;
  const std::size_t n = 700;
  for (const std::size_t k : {1U, 2U, 3U, 4U, 7U, 10U, 17U}) {
    const auto inputs = this->values(k, n);
    for (const auto& [level, kernels] : this->levels()) {
      for (const Fold<T>& fold : folds<T>()) {
        const auto whole = run(fold, *kernels, inputs);
        std::vector<T> pieces(n);
        for (std::size_t from = 0; from < n;) {
          const std::size_t count = std::min<std::size_t>(n - from, 1 + this->random_() % 150);
          std::vector<const void*> in;
          for (std::size_t j = 0; j < k; ++j) {
            in.push_back(static_cast<const unsigned char*>(inputs.in()[j]) + from * sizeof(T));
          }
          fold.run(*kernels, pieces.data() + from, in.data(), k, count);
          from += count;
        }
        expect_matches(pieces, whole, Zeros::kBySign,
                       level + " " + fold.name + " k=" + std::to_string(k));
      }
    }
  }
}

TYPED_TEST(KernelsTest, FiniteValuesAreFinite) {
  using T = TypeParam;
  for (const std::size_t n : kSizes) {
    auto inputs = this->numbers(1, n);
    if (n > 1) {
      inputs.set(0, 0, std::numeric_limits<T>::max());
      inputs.set(0, n - 1, std::numeric_limits<T>::lowest());
    }
    for (const auto& [level, kernels] : this->levels()) {
      EXPECT_TRUE(kernels->all_finite(inputs.in()[0], n)) << level << " n=" << n;
    }
  }
}

TYPED_TEST(KernelsTest, SumOfSquaresHasTheSameBitsAtEveryLevel) {
  for (const std::size_t n : kSizes) {
    const auto inputs = this->numbers(1, n);
    long double exact = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const auto value = static_cast<long double>(inputs.column(i)[0]);
      exact += value * value;
    }
    const double expected =
        vol::kernels_at(kDType<TypeParam>, "baseline")->sum_of_squares(inputs.in()[0], n);
    EXPECT_NEAR(expected, static_cast<double>(exact), 1e-13 * static_cast<double>(exact)) << n;
    for (const auto& [level, kernels] : this->levels()) {
      EXPECT_EQ(kernels->sum_of_squares(inputs.in()[0], n), expected) << level << " n=" << n;
    }
  }
}

template <class T>
class FloatKernelsTest : public KernelsTest<T> {};
using FloatTypes = testing::Types<float, double>;
TYPED_TEST_SUITE(FloatKernelsTest, FloatTypes, TypeName);

TYPED_TEST(FloatKernelsTest, FindsOneValueThatIsNotFiniteAnywhere) {
  using T = TypeParam;
  for (const std::size_t n : {1U, 3U, 15U, 16U, 17U, 31U, 1000U}) {
    auto inputs = this->numbers(1, n);
    for (std::size_t i = 0; i < n; ++i) {
      const T before = inputs.column(i)[0];
      for (const double bad : {kNan, kInf, -kInf}) {
        inputs.set(0, i, static_cast<T>(bad));
        for (const auto& [level, kernels] : this->levels()) {
          ASSERT_FALSE(kernels->all_finite(inputs.in()[0], n))
              << level << " " << bad << " at " << i << " of " << n;
        }
      }
      inputs.set(0, i, before);
    }
  }
}

TYPED_TEST(FloatKernelsTest, MedianSortsNansLast) {
  using T = TypeParam;
  const T nan = static_cast<T>(kNan);
  const T inf = static_cast<T>(kInf);
  const auto inputs = Inputs<T>::columns({{1, nan, 2},
                                          {nan, nan, 2},
                                          {nan, nan, nan},
                                          {-nan, 3, -inf},
                                          {inf, nan, -inf},
                                          {inf, inf, nan}});
  const T expected[] = {2, nan, nan, 3, inf, inf};
  for (const auto& [level, kernels] : this->levels()) {
    T out[6];
    kernels->median(out, inputs.in(), 3, 6);
    for (std::size_t i = 0; i < 6; ++i) {
      EXPECT_TRUE(same_number(out[i], expected[i])) << level << " " << i << ": " << out[i];
    }
  }
}

TYPED_TEST(FloatKernelsTest, OnePeerOfNansLeavesTheMedianOfTheOthers) {
  using T = TypeParam;
  auto inputs = this->numbers(5, 1000);
  for (std::size_t i = 0; i < inputs.n(); ++i) inputs.set(2, i, static_cast<T>(kNan));
  for (const auto& [level, kernels] : this->levels()) {
    std::vector<T> out(inputs.n());
    kernels->median(out.data(), inputs.in(), 5, inputs.n());
    EXPECT_TRUE(kernels->all_finite(out.data(), out.size())) << level;
  }
}

template <class T>
class IntKernelsTest : public KernelsTest<T> {};
using IntTypes = testing::Types<std::int32_t, std::int64_t>;
TYPED_TEST_SUITE(IntKernelsTest, IntTypes, TypeName);

TYPED_TEST(IntKernelsTest, MeanRoundsTowardZero) {
  using T = TypeParam;
  const auto inputs = Inputs<T>::columns({{-1, 0, 0, 0}, {-3, 0, 0, -2}, {3, 0, 0, 4}});
  for (const auto& [level, kernels] : this->levels()) {
    T by_four[3];
    kernels->mean(by_four, inputs.in(), 4, 3);
    EXPECT_EQ(std::vector<T>(by_four, by_four + 3), (std::vector<T>{0, -1, 1})) << level;
    T by_three[3];
    kernels->mean(by_three, inputs.in() + 1, 3, 3);
    EXPECT_EQ(std::vector<T>(by_three, by_three + 3), (std::vector<T>{0, 0, 1})) << level;
  }
}

TYPED_TEST(IntKernelsTest, MeansOfExtremesAreExact) {
  using T = TypeParam;
  std::mt19937_64 random(5);
  for (const std::size_t k : {1U, 2U, 3U, 4U, 5U, 6U, 7U, 8U, 12U, 16U, 100U, 1000U}) {
    std::vector<Column<T>> columns;
    for (std::size_t i = 0; i < 70; ++i) {
      Column<T> column(k);
      for (T& value : column) {
        // The ends of the range, numbers close to them, and any.
        const auto any = static_cast<T>(random());
        const T end =
            random() % 2 == 0 ? std::numeric_limits<T>::max() : std::numeric_limits<T>::min();
        value = i % 3 == 0
                    ? any
                    : static_cast<T>(end + (end < 0 ? 1 : -1) * static_cast<T>(random() % (i + 1)));
        if (i % 3 == 2 && random() % 2 == 0) value = static_cast<T>(random() % 5);
      }
      columns.push_back(column);
    }
    const auto inputs = Inputs<T>::columns(columns);
    for (const auto& [level, kernels] : this->levels()) {
      std::vector<T> means(columns.size());
      std::vector<T> trimmed(columns.size());
      kernels->mean(means.data(), inputs.in(), k, columns.size());
      kernels->trimmed_mean(trimmed.data(), inputs.in(), (k - 1) / 4, k, columns.size());
      for (std::size_t i = 0; i < columns.size(); ++i) {
        EXPECT_EQ(means[i], reference_mean<T>(columns[i])) << level << ", k = " << k;
        EXPECT_EQ(trimmed[i], reference_trimmed_mean<T>(columns[i], (k - 1) / 4)) << level;
      }
    }
  }
}

TYPED_TEST(IntKernelsTest, MedianOfTwoExtremesDoesNotOverflow) {
  using T = TypeParam;
  constexpr T kMax = std::numeric_limits<T>::max();
  constexpr T kMin = std::numeric_limits<T>::min();
  const auto inputs =
      Inputs<T>::columns({{kMax, kMax}, {kMin, kMin}, {kMin, kMax}, {kMin, -1}, {-1, 0}});
  for (const auto& [level, kernels] : this->levels()) {
    T out[5];
    kernels->median(out, inputs.in(), 2, 5);
    EXPECT_EQ(std::vector<T>(out, out + 5), (std::vector<T>{kMax, kMin, 0, kMin / 2, 0})) << level;
  }
}

TYPED_TEST(IntKernelsTest, WeightedRoundsToEvenAndClamps) {
  using T = TypeParam;
  constexpr T kMax = std::numeric_limits<T>::max();
  constexpr T kMin = std::numeric_limits<T>::min();
  const auto inputs = Inputs<T>::columns({{1}, {3}, {5}, {-1}, {-3}, {kMax}, {kMin}});
  const auto weighted = [&inputs](const Kernels& kernels, double weight) {
    std::vector<T> out(inputs.n());
    kernels.weighted(out.data(), inputs.in(), &weight, 1, inputs.n());
    return out;
  };
  for (const auto& [level, kernels] : this->levels()) {
    const auto halves = weighted(*kernels, 0.5);
    EXPECT_EQ(std::vector<T>(halves.begin(), halves.begin() + 5), (std::vector<T>{0, 2, 2, 0, -2}))
        << level;
    const auto tripled = weighted(*kernels, 3.0);
    EXPECT_EQ(tripled, (std::vector<T>{3, 9, 15, -3, -9, kMax, kMin})) << level;
    EXPECT_EQ(weighted(*kernels, kNan), std::vector<T>(inputs.n())) << level;
    EXPECT_EQ(weighted(*kernels, -kInf)[0], kMin) << level;
  }
}

// The kernels of half precision beside those of floats.
class HalfKernelsTest : public testing::TestWithParam<vol::DType> {
 protected:
  using Halves = std::vector<std::uint16_t>;
  using Floats = std::vector<float>;

  static Floats widened(const vol::WireKernels& wire, const Halves& halves) {
    Floats floats(halves.size());
    const auto widen = GetParam() == vol::DType::kFloat16 ? wire.from_float16 : wire.from_bfloat16;
    widen(floats.data(), halves.data(), halves.size());
    return floats;
  }
  static Halves narrowed(const vol::WireKernels& wire, const Floats& floats) {
    Halves halves(floats.size());
    const auto narrow = GetParam() == vol::DType::kFloat16 ? wire.to_float16 : wire.to_bfloat16;
    narrow(halves.data(), floats.data(), floats.size());
    return halves;
  }
  // Any bits, among them those of infinities; NaNs, whose bits are not fixed, are ones.
  Halves numbers(std::size_t n) {
    const vol::WireKernels& wire = *vol::wire_kernels_at("baseline");
    Halves halves(n);
    for (std::uint16_t& half : halves) half = static_cast<std::uint16_t>(random_());
    Floats floats = widened(wire, halves);
    for (float& value : floats) value = std::isnan(value) ? 1 : value;
    return narrowed(wire, floats);
  }

  Random random_{20150421};
};

INSTANTIATE_TEST_SUITE_P(All, HalfKernelsTest,
                         testing::Values(vol::DType::kFloat16, vol::DType::kBfloat16),
                         [](const auto& tested) {
                           return std::string(vol::dtype_name(tested.param));
                         });

TEST_P(HalfKernelsTest, AreThoseOfFloatsRoundedOnce) {
  for (const std::size_t n : {0U, 1U, 33U, 1023U, 1024U, 1025U, 3000U}) {
    for (const std::size_t k : {1U, 2U, 3U, 8U, 9U, 70U}) {
      std::vector<Halves> inputs;
      std::vector<Floats> wide;
      std::vector<const void*> in, wide_in;
      for (std::size_t j = 0; j < k; ++j) {
        inputs.push_back(numbers(n));
        wide.push_back(widened(*vol::wire_kernels_at("baseline"), inputs[j]));
      }
      for (std::size_t j = 0; j < k; ++j) {
        in.push_back(inputs[j].data());
        wide_in.push_back(wide[j].data());
      }
      for (const std::string_view level : kLevels) {
        const Kernels* const halves = vol::kernels_at(GetParam(), level);
        if (halves == nullptr) continue;
        const Kernels& floats = *vol::kernels_at(vol::DType::kFloat32, level);
        for (const Fold<float>& fold : folds<float>()) {
          Floats expected(n);
          fold.run(floats, expected.data(), wide_in.data(), k, n);
          Halves out(n + 1, 77);
          fold.run(*halves, out.data(), in.data(), k, n);
          EXPECT_EQ(out.back(), 77) << fold.name << " writes past the end";
          out.pop_back();
          const vol::WireKernels& wire = *vol::wire_kernels_at(level);
          expect_matches(widened(wire, out), widened(wire, narrowed(wire, expected)),
                         Zeros::kBySign,
                         std::string(level) + " " + fold.name + " k=" + std::to_string(k));
        }
        EXPECT_EQ(halves->all_finite(in[0], n), floats.all_finite(wide_in[0], n)) << level << n;
        const double squares = floats.sum_of_squares(wide_in[0], n);
        const double found = halves->sum_of_squares(in[0], n);
        EXPECT_TRUE(found == squares || std::abs(found - squares) < 1e-13 * squares) << found;
      }
    }
  }
}

TEST_P(HalfKernelsTest, ResultMayReplaceAnyInput) {
  for (const std::size_t j : {0U, 1U, 2U}) {
    std::vector<Halves> inputs{numbers(1500), numbers(1500), numbers(1500)};
    std::vector<const void*> in;
    for (const Halves& each : inputs) in.push_back(each.data());
    Halves apart(1500);
    vol::kernels(GetParam()).sum(apart.data(), in.data(), 3, 1500);
    vol::kernels(GetParam()).sum(inputs[j].data(), in.data(), 3, 1500);
    EXPECT_EQ(inputs[j], apart) << j;
  }
}

}  // namespace
