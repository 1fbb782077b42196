// The results of codecs compared with plain arithmetic, at every instruction set level.
#include "vol/codec.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "dstorm/errors.hpp"
#include "vol/kernels_level.hpp"

namespace vol {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class WireLevels : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    kernels_ = wire_kernels_at(GetParam());
    if (kernels_ == nullptr) GTEST_SKIP() << "this processor has no " << GetParam();
  }
  const WireKernels* kernels_ = nullptr;
};
std::string name_of(const testing::TestParamInfo<const char*>& level) {
  std::string name = level.param;
  name[0] = static_cast<char>(std::toupper(name[0]));
  return name;
}
INSTANTIATE_TEST_SUITE_P(Level, WireLevels, testing::Values("baseline", "avx2", "avx512"), name_of);

// IEEE 754 binary16 (exponent of 5 bits, 10 of the fraction) and bfloat16 (8 and 7).
double value_of(std::uint16_t half, int fraction_bits) {
  const int exponent_bits = 15 - fraction_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (half >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = half & ((1 << fraction_bits) - 1);
  const double sign = (half & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return fraction != 0 ? kNan : sign * kInf;
  const double size =
      exponent == 0 ? std::ldexp(fraction, 1 - bias - fraction_bits)
                    : std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
  return sign * size;
}

// Floats of all magnitudes, and those around which rounding changes.
std::vector<float> floats(int fraction_bits) {
  std::vector<float> values{0.0F,
                            -0.0F,
                            kInf,
                            -kInf,
                            65504.0F,
                            65519.96F,
                            65520.0F,
                            65536.0F,
                            std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::denorm_min()};
  std::mt19937 random(1);
  for (int i = 0; i < 100'000; ++i) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isnan(value)) values.push_back(value);
  }
  for (int half = 0; half < 0x7C00; ++half) {
    const auto low = static_cast<float>(value_of(static_cast<std::uint16_t>(half), fraction_bits));
    const auto high =
        static_cast<float>(value_of(static_cast<std::uint16_t>(half + 1), fraction_bits));
    if (!std::isfinite(high)) continue;
    const float middle = (low + high) / 2;
    for (float value : {low, middle, std::nextafter(middle, low), std::nextafter(middle, high)}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  return values;
}

// Whether no number of this format is nearer to `value` than `half`, and `half` is the even one if
// two are equally near.
testing::AssertionResult is_nearest(float value, std::uint16_t half, int fraction_bits) {
  const double at = value_of(half, fraction_bits);
  const auto wrong = [&] {
    return testing::AssertionFailure() << value << " became " << at << " (" << half << ")";
  };
  if (std::isnan(at) || std::signbit(at) != std::signbit(value)) return wrong();
  const std::uint16_t size = half & 0x7FFF;
  const std::uint16_t sign = half & 0x8000;
  const int infinite = 0x7FFF & ~((1 << fraction_bits) - 1);
  // Infinity stands for the number that would follow if there were more exponents.
  const auto distance = [&](int other) {
    const double step = std::ldexp(1.0, fraction_bits == 10 ? 16 : 128);
    const double number = other == infinite
                              ? std::copysign(step, value)
                              : value_of(static_cast<std::uint16_t>(other | sign), fraction_bits);
    return std::abs(number - static_cast<double>(value));
  };
  if (std::isinf(value)) return size == infinite ? testing::AssertionSuccess() : wrong();
  for (const int other : {size - 1, size + 1}) {
    if (other < 0 || other > infinite) continue;
    if (distance(other) < distance(size)) return wrong();
    if (distance(other) == distance(size) && (size & 1) != 0) return wrong();
  }
  return testing::AssertionSuccess();
}

TEST_P(WireLevels, EveryHalfIsDecodedToItsValue) {
  std::vector<std::uint16_t> halves(1 << 16);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  std::vector<float> values(halves.size());
  for (const int fraction_bits : {10, 7}) {
    (fraction_bits == 10 ? kernels_->from_float16 : kernels_->from_bfloat16)(
        values.data(), halves.data(), halves.size());
    for (std::size_t i = 0; i < halves.size(); ++i) {
      const auto expected = static_cast<float>(value_of(halves[i], fraction_bits));
      ASSERT_EQ(std::isnan(expected), std::isnan(values[i])) << i;
      if (std::isnan(expected)) continue;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(expected), std::bit_cast<std::uint32_t>(values[i]))
          << i;
    }
  }
}

TEST_P(WireLevels, FloatsAreRoundedToTheNearestHalf) {
  for (const int fraction_bits : {10, 7}) {
    const std::vector<float> values = floats(fraction_bits);
    std::vector<std::uint16_t> halves(values.size());
    const auto encode = fraction_bits == 10 ? kernels_->to_float16 : kernels_->to_bfloat16;
    encode(halves.data(), values.data(), values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_TRUE(is_nearest(values[i], halves[i], fraction_bits));
    }
    const std::array<float, 3> nans{kNan, -kNan, std::bit_cast<float>(0x7F800001U)};
    encode(halves.data(), nans.data(), nans.size());
    for (std::size_t i = 0; i < nans.size(); ++i) {
      EXPECT_TRUE(std::isnan(value_of(halves[i], fraction_bits)));
    }
  }
}

TEST_P(WireLevels, BytesAreOffByAtMostHalfAStepOfTheirBlock) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (const std::size_t n : {1U, 255U, 256U, 257U, 1000U}) {
    std::vector<float> values(n);
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t block = i / 256;
      values[i] = normal(random) * std::pow(10.0F, static_cast<float>(block));
    }
    std::vector<std::int8_t> bytes(n);
    std::vector<float> scales((n + 255) / 256);
    std::vector<float> decoded(n);
    kernels_->to_int8(bytes.data(), scales.data(), values.data(), n);
    kernels_->from_int8(decoded.data(), bytes.data(), scales.data(), n);
    for (std::size_t block = 0; block < n; block += 256) {
      const std::size_t end = std::min(n, block + 256);
      float largest = 0;
      for (std::size_t i = block; i < end; ++i) largest = std::max(largest, std::abs(values[i]));
      for (std::size_t i = block; i < end; ++i) {
        ASSERT_LE(std::abs(decoded[i] - values[i]), largest / 127 * 0.5001F) << i << " of " << n;
        if (std::abs(values[i]) == largest) {
          ASSERT_FLOAT_EQ(decoded[i], values[i]);
        }
      }
    }
  }
}

TEST_P(WireLevels, BytesOfWhatIsNotFiniteAreNanAndTheOthersOfTheBlockStay) {
  std::vector<float> values(768, 0.5F);
  std::fill_n(values.begin() + 512, 256, 1e-39F);  // which have no scale
  for (const std::size_t i : {3U, 600U, 767U}) values[i] = kInf;
  for (const std::size_t i : {255U, 300U, 601U}) values[i] = -kNan;
  std::vector<std::int8_t> bytes(768);
  std::array<float, 3> scales{};
  std::vector<float> decoded(768);
  kernels_->to_int8(bytes.data(), scales.data(), values.data(), 768);
  kernels_->from_int8(decoded.data(), bytes.data(), scales.data(), 768);
  for (std::size_t i = 0; i < 768; ++i) {
    EXPECT_EQ(std::isnan(decoded[i]), !std::isfinite(values[i])) << i;
    if (std::isfinite(values[i])) {
      EXPECT_FLOAT_EQ(decoded[i], i < 512 ? 0.5F : 0.0F) << i;
    }
  }
}

TEST_P(WireLevels, AllLevelsGiveTheSameBits) {
  const WireKernels& baseline = *wire_kernels_at("baseline");
  const std::vector<float> values = floats(10);
  const std::size_t n = 5003;  // also the rest of a vector
  std::vector<std::uint8_t> mine(2 * n);
  std::vector<std::uint8_t> other(2 * n);
  for (const auto encode : {&WireKernels::to_float16, &WireKernels::to_bfloat16}) {
    (kernels_->*encode)(mine.data(), values.data() + 10, n);
    (baseline.*encode)(other.data(), values.data() + 10, n);
    EXPECT_EQ(mine, other);
  }
}

// Encodes and decodes a vector with a Coder.
template <class T>
std::vector<T> round_trip(Coder& coder, const std::vector<T>& values) {
  std::vector<std::byte> wire(coder.bytes());
  coder.encode(wire.data(), [&](std::byte* to, std::size_t first, std::size_t last) {
    std::memcpy(to, values.data() + first, (last - first) * sizeof(T));
  });
  std::vector<T> decoded(values.size());
  EXPECT_TRUE(coder.decode(reinterpret_cast<std::byte*>(decoded.data()), wire.data()));
  return decoded;
}

TEST(Coder, LongVectorsOfBothTypesComeBackAboutAsTheyWere) {
  const std::size_t n = 10'001;
  std::vector<double> values(n);
  std::mt19937 random(3);
  for (double& value : values) value = std::normal_distribution<double>()(random);
  const std::vector<float> singles(values.begin(), values.end());
  struct Case {
    Codec codec;
    double most;
    std::size_t bytes;
  };
  for (const auto& [codec, most, bytes] :
       {Case{Codec::float16(), 2e-3, 2 * n}, Case{Codec::bfloat16(), 2e-2, 2 * n},
        Case{Codec::int8(), 3e-2, n + 40 * 4}}) {
    Coder doubles(codec, DType::kFloat64, n, "w");
    Coder floats(codec, DType::kFloat32, n, "w");
    EXPECT_EQ(doubles.bytes(), bytes);
    EXPECT_EQ(floats.bytes(), bytes);
    const std::vector<double> a = round_trip(doubles, values);
    const std::vector<float> b = round_trip(floats, singles);
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_NEAR(a[i], values[i], most) << codec.name();
      ASSERT_EQ(static_cast<float>(a[i]), b[i]) << codec.name();
    }
  }
}

TEST(Coder, TopKSendsTheLargestAndTheRestLater) {
  const std::vector<float> values{1, -8, 0, 4, 2, -2, 16, 0.5F};
  Coder coder(Codec::top_k(0.25), DType::kFloat32, values.size(), "w");
  EXPECT_EQ(coder.bytes(), 2 * (sizeof(float) + sizeof(std::int32_t)));
  EXPECT_EQ(round_trip(coder, values), (std::vector<float>{0, -8, 0, 0, 0, 0, 16, 0}));
  const std::vector<float> none(values.size());
  EXPECT_EQ(round_trip(coder, none), (std::vector<float>{0, 0, 0, 4, 2, 0, 0, 0}));  // before -2
  EXPECT_EQ(round_trip(coder, none), (std::vector<float>{1, 0, 0, 0, 0, -2, 0, 0}));
  EXPECT_EQ(round_trip(coder, none), (std::vector<float>{0, 0, 0, 0, 0, 0, 0, 0.5F}));
}

// Few different magnitudes, or as many as elements, of all sizes, compared with a sort of all
// elements.
template <class T>
void expect_the_largest(bool has_equals) {
  std::mt19937 random(3);
  constexpr std::size_t kCount = 2000;
  std::vector<T> values(kCount);
  for (T& value : values) {
    const int exponent = static_cast<int>(random() % 600) - 300;
    const T size =
        has_equals ? static_cast<T>(random() % 5) : std::ldexp(static_cast<T>(random()), exponent);
    value = random() % 2 == 0 ? size : -size;
  }
  std::vector<std::size_t> order(kCount);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const T left = std::abs(values[a]);
    const T right = std::abs(values[b]);
    return left != right ? left > right : a < b;
  });
  for (const std::size_t largest : {std::size_t{1}, std::size_t{700}, kCount}) {
    std::vector<T> expected(kCount);
    for (std::size_t i = 0; i < largest; ++i) expected[order[i]] = values[order[i]];
    Coder coder(Codec::top_k(static_cast<double>(largest) / kCount),
                sizeof(T) == 4 ? DType::kFloat32 : DType::kFloat64, kCount, "w");
    EXPECT_EQ(round_trip(coder, values), expected) << largest;
  }
}

TEST(Coder, TopKOfAnyMagnitudesIsThatOfASort) {
  for (const bool has_equals : {false, true}) {
    expect_the_largest<float>(has_equals);
    expect_the_largest<double>(has_equals);
  }
}

TEST(Coder, TopKSendsANanAtOnce) {
  std::vector<double> values(100, 1e300);
  values[70] = std::numeric_limits<double>::quiet_NaN();
  Coder coder(Codec::top_k(0.01), DType::kFloat64, values.size(), "w");
  EXPECT_TRUE(std::isnan(round_trip(coder, values)[70]));
}

TEST(Coder, IndicesThatAreNotInOrderAreRefused) {
  Coder coder(Codec::top_k(0.5), DType::kFloat32, 6, "w");
  std::array<std::byte, 24> wire{};
  std::array<float, 6> values{};
  const auto is_taken = [&](std::array<std::int32_t, 3> indices) {
    std::memcpy(wire.data() + 12, indices.data(), 12);
    return coder.decode(reinterpret_cast<std::byte*>(values.data()), wire.data());
  };
  EXPECT_TRUE(is_taken({0, 1, 5}));
  EXPECT_FALSE(is_taken({0, 0, 5}));
  EXPECT_FALSE(is_taken({1, 0, 5}));
  EXPECT_FALSE(is_taken({-1, 0, 5}));
  EXPECT_FALSE(is_taken({0, 1, 6}));
  EXPECT_FALSE(is_taken({0, 1, std::numeric_limits<std::int32_t>::max()}));
}

TEST(Coder, RefusesWhatItCannotEncode) {
  EXPECT_THROW(Coder(Codec::int8(), DType::kInt32, 4, "w"), dstorm::ConfigError);
  EXPECT_THROW(Coder(Codec::top_k(0.1), DType::kFloat32, std::size_t{1} << 32, "w"),
               dstorm::ConfigError);
  for (const double fraction : {0.0, -1.0, 1.5, std::nan("")}) {
    EXPECT_THROW(Codec::top_k(fraction), dstorm::ConfigError);
  }
}

}  // namespace
}  // namespace vol
