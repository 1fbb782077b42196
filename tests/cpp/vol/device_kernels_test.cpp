// The device's kernels, run on the host, compared with those of the CPU. tests/fake_cuda explains
// what a block is here; test_device_kernels.py compiles the same source for GPUs.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels_reference.hpp"
#include "sanitizers.hpp"
#include "vol/codec.hpp"
#include "vol/kernels.hpp"
// Defines CUDA's words as macros, so it comes last.
#include "host_kernels.hpp"

namespace {

using namespace kernels_test;  // NOLINT(google-build-using-namespace): this test's own words
using vol::Codec;
using vol::Coder;
using vol::device::FoldKind;
using vol::device::kMostInputs;
using Format = vol::device::Wire;

constexpr unsigned kBlocks = 3;
constexpr std::size_t kCounts[] = {0, 1, 3, 255, 256, 257, 1000, 4099};

template <class T, class Args>
void launch(const std::string& verb, const Args& args, unsigned blocks = kBlocks) {
  const std::string name = verb + "_" + std::string(vol::dtype_name(kDType<T>));
  const auto kernel = vol::device::host_kernel(name);
  ASSERT_TRUE(kernel) << name;
  kernel(&args, blocks);
}

Codec codec_of(Format wire) {
  switch (wire) {
    case Format::kFloat16:
      return Codec::float16();
    case Format::kBfloat16:
      return Codec::bfloat16();
    case Format::kInt8:
      return Codec::int8();
    default:
      return {};
  }
}

// A vector as it goes over the wire, and the values that a receiver then has. The address of the
// former is `offset` elements past one that is aligned for vector accesses.
template <class T>
struct Sent {
  Sent(Format wire, const std::vector<T>& values, std::size_t offset = 0)
      : at(offset * unit(wire)), decoded(values) {
    if (wire == Format::kPlain) {
      bytes.resize(at + values.size() * sizeof(T));
      if (!values.empty()) std::memcpy(bytes.data() + at, values.data(), values.size() * sizeof(T));
      return;
    }
    Coder coder(codec_of(wire), kDType<T>, values.size(), "w");
    bytes.resize(at + coder.bytes());
    coder.encode(bytes.data() + at, [&](std::byte* to, std::size_t first, std::size_t last) {
      std::memcpy(to, values.data() + first, (last - first) * sizeof(T));
    });
    coder.decode(reinterpret_cast<std::byte*>(decoded.data()), bytes.data() + at);
  }
  const void* data() const { return bytes.data() + at; }

  static std::size_t unit(Format wire) {
    if (wire == Format::kPlain) return sizeof(T);
    return wire == Format::kInt8 ? sizeof(float) : sizeof(std::uint16_t);
  }

  std::size_t at;
  std::vector<std::byte> bytes;
  std::vector<T> decoded;
};

template <class T>
testing::AssertionResult same(const T* out, const T* expected, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (same_number(out[i], expected[i])) continue;
    return testing::AssertionFailure()
           << "element " << i << " of " << count << " is " << out[i] << ", not " << expected[i];
  }
  return testing::AssertionSuccess();
}

// Where the arrays of a fold begin, in elements.
struct Places {
  std::size_t own;    // as input number
  std::size_t begin;  // in the updates
  std::size_t out;    // past an aligned address
};

template <class T>
class DeviceFold {
 public:
  DeviceFold(Format wire, std::size_t k, std::size_t count, Places places, Random& random)
      : wire_(wire), k_(k), count_(count), places_(places) {
    const std::size_t total = places.begin + count + 3;
    for (std::size_t j = 0; j < k; ++j) {
      std::vector<T> values(total);
      // Not so many NaNs and infinities that most results are NaN.
      for (T& value : values) {
        value = random() % (4 * k) == 0 ? any_value<T>(random) : any_number<T>(random);
      }
      sent_.emplace_back(wire, values);
    }
    for (std::size_t i = 0; i < count; ++i) own_.push_back(any_number<T>(random));
  }

  void expect_bits_of_the_cpu(FoldKind kind, std::size_t trim = 0) const {
    std::vector<T> out(places_.out + count_ + 1, T{77});
    std::copy(own_.begin(), own_.end(), out.begin() + static_cast<std::ptrdiff_t>(places_.out));
    launch<T>("fold", args(kind, trim, out.data() + places_.out));
    EXPECT_EQ(out.back(), T{77}) << "written past the end";
    const std::vector<T> expected = on_cpu(kind, trim);
    EXPECT_TRUE(same(out.data() + places_.out, expected.data(), count_))
        << "kind " << static_cast<int>(kind) << ", wire " << static_cast<int>(wire_) << ", k " << k_
        << ", own " << places_.own << ", begin " << places_.begin << ", out " << places_.out;
  }

 private:
  vol::device::FoldArgs args(FoldKind kind, std::size_t trim, T* out) const {
    vol::device::FoldArgs args{};
    args.out = out;
    args.begin = places_.begin;
    args.count = count_;
    args.total = places_.begin + count_ + 3;
    args.kind = kind;
    args.wire = wire_;
    args.inputs = static_cast<int>(k_);
    args.own = static_cast<int>(places_.own);
    args.trim = static_cast<int>(trim);
    const std::vector<double> weights = some_weights(k_);
    for (std::size_t j = 0; j < k_; ++j) {
      args.in[j] = j == places_.own ? nullptr : sent_[j].data();
      args.weight[j] = weights[j];
    }
    return args;
  }

  std::vector<T> on_cpu(FoldKind kind, std::size_t trim) const {
    std::vector<const void*> in;
    for (std::size_t j = 0; j < k_; ++j) {
      in.push_back(j == places_.own ? own_.data() : sent_[j].decoded.data() + places_.begin);
    }
    std::vector<T> expected(count_);
    const Kernels& kernels = vol::kernels(kDType<T>);
    switch (kind) {
      case FoldKind::kMean:
        kernels.mean(expected.data(), in.data(), k_, count_);
        break;
      case FoldKind::kSum:
        kernels.sum(expected.data(), in.data(), k_, count_);
        break;
      case FoldKind::kWeighted:
        kernels.weighted(expected.data(), in.data(), some_weights(k_).data(), k_, count_);
        break;
      case FoldKind::kMedian:
        kernels.median(expected.data(), in.data(), k_, count_);
        break;
      case FoldKind::kTrimmedMean:
        kernels.trimmed_mean(expected.data(), in.data(), trim, k_, count_);
        break;
    }
    return expected;
  }

  Format wire_;
  std::size_t k_;
  std::size_t count_;
  Places places_;
  std::vector<Sent<T>> sent_;
  std::vector<T> own_;
};

struct TypeName {
  template <class T>
  static std::string GetName(int) {
    return std::string(vol::dtype_name(kDType<T>));
  }
};

template <class T>
std::vector<Format> wires() {
  if constexpr (std::is_floating_point_v<T>) {
    return {Format::kPlain, Format::kFloat16, Format::kBfloat16, Format::kInt8};
  } else {
    return {Format::kPlain};
  }
}

template <class T>
class DeviceFolds : public testing::Test {
 protected:
  static void expect_all_kinds(const DeviceFold<T>& fold, std::size_t k) {
    for (const FoldKind kind :
         {FoldKind::kMean, FoldKind::kSum, FoldKind::kWeighted, FoldKind::kMedian}) {
      fold.expect_bits_of_the_cpu(kind);
    }
    fold.expect_bits_of_the_cpu(FoldKind::kTrimmedMean, (k - 1) / 4);
  }

  Random random_{20150421};
};
using Types = testing::Types<float, double, std::int32_t, std::int64_t>;
TYPED_TEST_SUITE(DeviceFolds, Types, TypeName);

TYPED_TEST(DeviceFolds, AlignedOrNotHaveTheBitsOfTheCpu) {
  for (const Format wire : wires<TypeParam>()) {
    for (const std::size_t k : {1U, 2U, 3U, 4U, 5U, 8U, 17U, 64U}) {
      for (const std::size_t count : kCounts) {
        if (k > 8 && count > 1000) continue;
        if (kSanitized && k > 2 && count > 256) continue;
        for (const Places places :
             {Places{0, 0, 0}, Places{k - 1, 4, 0}, Places{k / 2, 257, 1}, Places{k / 2, 1, 0}}) {
          const DeviceFold<TypeParam> fold(wire, k, count, places, this->random_);
          this->expect_all_kinds(fold, k);
        }
      }
    }
  }
}

TYPED_TEST(DeviceFolds, OfAnyNumberOfInputsHaveTheBitsOfTheCpu) {
  for (std::size_t k = 1; k <= kMostInputs; ++k) {
    const DeviceFold<TypeParam> fold(Format::kPlain, k, 40, {k / 3, 0, 0}, this->random_);
    this->expect_all_kinds(fold, k);
  }
}

TYPED_TEST(DeviceFolds, WithEveryTrimHaveTheBitsOfTheCpu) {
  for (std::size_t k = 1; k <= 12; ++k) {
    const DeviceFold<TypeParam> fold(Format::kPlain, k, 300, {0, 0, 0}, this->random_);
    for (std::size_t trim = 0; 2 * trim < k; ++trim) {
      fold.expect_bits_of_the_cpu(FoldKind::kTrimmedMean, trim);
    }
  }
}

TYPED_TEST(DeviceFolds, OfUpdatesOnlyReadNothingFromTheResult) {
  const std::size_t k = 3;
  const DeviceFold<TypeParam> fold(Format::kPlain, k, 500, {k, 0, 0},
                                   this->random_);  // none is own
  this->expect_all_kinds(fold, k);
}

TYPED_TEST(DeviceFolds, OfExtremesHaveTheBitsOfTheCpu) {
  using T = TypeParam;
  using Limits = std::numeric_limits<T>;
  std::vector<T> extremes{0,
                          1,
                          static_cast<T>(-1),
                          Limits::lowest(),
                          Limits::max(),
                          static_cast<T>(Limits::lowest() + 1),
                          static_cast<T>(Limits::max() - 1)};
  if constexpr (std::is_floating_point_v<T>) {
    extremes.insert(extremes.end(),
                    {-T{0}, static_cast<T>(kNan), static_cast<T>(kInf), static_cast<T>(-kInf),
                     Limits::denorm_min(), -Limits::denorm_min(), Limits::min()});
  }
  for (const std::size_t k : {1U, 2U, 3U, 4U, 7U}) {
    std::vector<std::vector<T>> inputs(k, std::vector<T>(2000));
    std::vector<const void*> in;
    vol::device::FoldArgs args{};
    for (std::size_t j = 0; j < k; ++j) {
      for (T& value : inputs[j]) value = extremes[this->random_() % extremes.size()];
      in.push_back(inputs[j].data());
      args.in[j] = inputs[j].data();
      args.weight[j] = j % 2 == 0 ? 1.0 : -1e9;  // also sums beyond an integer's range
    }
    const std::vector<double> weights(args.weight, args.weight + k);
    std::vector<T> out(2000);
    std::vector<T> expected(2000);
    args.out = out.data();
    args.count = args.total = out.size();
    args.inputs = static_cast<int>(k);
    args.own = -1;
    const Kernels& kernels = vol::kernels(kDType<T>);
    const auto expect_same = [&](FoldKind kind) {
      args.kind = kind;
      launch<T>("fold", args);
      EXPECT_TRUE(same(out.data(), expected.data(), out.size())) << static_cast<int>(kind);
    };
    kernels.mean(expected.data(), in.data(), k, out.size());
    expect_same(FoldKind::kMean);
    kernels.sum(expected.data(), in.data(), k, out.size());
    expect_same(FoldKind::kSum);
    kernels.weighted(expected.data(), in.data(), weights.data(), k, out.size());
    expect_same(FoldKind::kWeighted);
    kernels.median(expected.data(), in.data(), k, out.size());
    expect_same(FoldKind::kMedian);
  }
}

TEST(DeviceFolds, OnSeveralThreadsAtOnceDoNotDisturbEachOther) {
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([seed] {
      Random random(seed);
      for (int repeat = 0; repeat < 20; ++repeat) {
        const DeviceFold<float> fold(Format::kPlain, 3, 1000, {1, 0, 0}, random);
        fold.expect_bits_of_the_cpu(FoldKind::kMean);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

template <class T>
class DeviceCodecs : public testing::Test {
 protected:
  // Values of all magnitudes, with groups that are not finite or very small.
  std::vector<T> values(std::size_t count) {
    std::vector<T> values(count);
    for (std::size_t i = 0; i < count; ++i) {
      const bool is_any = i / vol::device::kGroup % 3 == 2;
      values[i] = is_any ? any_value<T>(random_) : any_number<T>(random_);
      if (i / vol::device::kGroup % 5 == 3) values[i] *= static_cast<T>(1e-38);
    }
    return values;
  }

  Random random_{7};
};
using Floats = testing::Types<float, double>;
TYPED_TEST_SUITE(DeviceCodecs, Floats, TypeName);

TYPED_TEST(DeviceCodecs, EncodeToTheBytesOfTheCpu) {
  using T = TypeParam;
  for (const Format wire : {Format::kFloat16, Format::kBfloat16, Format::kInt8}) {
    for (const std::size_t count : kCounts) {
      for (const std::size_t offset : {0U, 1U}) {
        const std::vector<T> values = this->values(count);
        const Sent<T> expected(wire, values, offset);
        std::vector<T> in(offset);
        in.insert(in.end(), values.begin(), values.end());
        std::vector<std::byte> out(expected.bytes.size() + 1, std::byte{77});
        launch<T>("encode", vol::device::EncodeArgs{in.data() + offset, out.data() + expected.at,
                                                    count, wire});
        EXPECT_EQ(out.back(), std::byte{77}) << "written past the end";
        EXPECT_TRUE(std::equal(out.begin() + static_cast<std::ptrdiff_t>(expected.at),
                               out.end() - 1,
                               expected.bytes.begin() + static_cast<std::ptrdiff_t>(expected.at)))
            << "wire " << static_cast<int>(wire) << ", count " << count << ", offset " << offset;
      }
    }
  }
}

TYPED_TEST(DeviceCodecs, DecodeToTheBitsOfTheCpuTimesTheFactor) {
  using T = TypeParam;
  for (const Format wire : wires<T>()) {
    for (const std::size_t count : kCounts) {
      for (const std::size_t offset : {0U, 1U}) {
        for (const double factor : {1.0, 0.3}) {
          const Sent<T> sent(wire, this->values(count), offset);
          std::vector<T> expected = sent.decoded;
          for (T& value : expected) value *= static_cast<T>(factor);
          std::vector<T> out(offset + count + 1, T{77});
          launch<T>("decode",
                    vol::device::DecodeArgs{out.data() + offset, sent.data(), count, wire, factor});
          EXPECT_EQ(out.back(), T{77}) << "written past the end";
          EXPECT_TRUE(same(out.data() + offset, expected.data(), count))
              << "wire " << static_cast<int>(wire) << ", offset " << offset;
        }
      }
    }
  }
}

TYPED_TEST(DeviceCodecs, DecodeEveryHalfAsTheCpuDoes) {
  using T = TypeParam;
  std::vector<std::uint16_t> halves(1 << 16);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  for (const Format wire : {Format::kFloat16, Format::kBfloat16}) {
    std::vector<T> expected(halves.size());
    std::vector<T> out(halves.size());
    Coder coder(codec_of(wire), kDType<T>, halves.size(), "w");
    coder.decode(reinterpret_cast<std::byte*>(expected.data()),
                 reinterpret_cast<const std::byte*>(halves.data()));
    launch<T>("decode",
              vol::device::DecodeArgs{out.data(), halves.data(), halves.size(), wire, 1.0});
    EXPECT_TRUE(same(out.data(), expected.data(), out.size()));
  }
}

TEST(DeviceCodecs, EncodeFloatsOfAnyBitsAsTheCpuDoes) {
  Random random(8);
  std::vector<float> values(200'000);
  for (std::size_t i = 0; i < values.size(); ++i) {
    // Any bits, and those around which rounding to a half changes.
    const auto bits = static_cast<std::uint32_t>(random());
    const std::uint32_t middle =
        (bits & ~0x1FFFU) + 0x1000U + static_cast<std::uint32_t>(i % 3) - 1;
    values[i] = std::bit_cast<float>(i % 2 == 0 ? bits : middle);
  }
  for (const Format wire : {Format::kFloat16, Format::kBfloat16}) {
    const Sent<float> expected(wire, values);
    std::vector<std::byte> out(expected.bytes.size());
    launch<float>("encode",
                  vol::device::EncodeArgs{values.data(), out.data(), values.size(), wire});
    EXPECT_EQ(out, expected.bytes);
  }
}

TYPED_TEST(DeviceCodecs, ScreenFindsWhatTheCpuFinds) {
  using T = TypeParam;
  const Kernels& kernels = vol::kernels(kDType<T>);
  for (const Format wire : wires<T>()) {
    for (const std::size_t count : kCounts) {
      for (const bool is_finite : {false, true}) {
        std::vector<T> values = this->values(count);
        if (is_finite) {
          for (T& value : values) value = std::isfinite(value) ? std::fmod(value, T{100}) : T{1};
        }
        const Sent<T> sent(wire, values);
        std::vector<vol::device::Found> found(kBlocks);
        const vol::device::ScreenArgs args{sent.data(), count, wire, found.data()};
        launch<T>("screen", args);
        double squares = 0;
        vol::device::Count nonfinite = 0;
        for (const vol::device::Found& part : found) {
          squares += part.sum_of_squares;
          nonfinite += part.nonfinite;
        }
        EXPECT_EQ(nonfinite == 0, kernels.all_finite(sent.decoded.data(), count));
        EXPECT_EQ(nonfinite, std::count_if(sent.decoded.begin(), sent.decoded.end(),
                                           [](T value) { return !std::isfinite(value); }));
        const double expected = kernels.sum_of_squares(sent.decoded.data(), count);
        if (std::isfinite(expected)) {
          EXPECT_NEAR(squares, expected, 1e-12 * expected);
        } else {
          EXPECT_FALSE(std::isfinite(squares));
        }
        std::vector<vol::device::Found> again(kBlocks);
        launch<T>("screen", vol::device::ScreenArgs{sent.data(), count, wire, again.data()});
        EXPECT_EQ(std::memcmp(found.data(), again.data(), kBlocks * sizeof found[0]), 0);
      }
    }
  }
}

// The state of top-k on a device.
template <class T>
class Largest {
 public:
  Largest(std::size_t count, std::size_t largest)
      : count_(count), largest_(largest), kept_(count) {}

  // The bytes of an update.
  std::vector<std::byte> encode(const std::vector<T>& values) {
    std::vector<std::byte> out(largest_ * (sizeof(T) + sizeof(std::int32_t)));
    const vol::device::LargestArgs args{values.data(),     kept_.data(),   out.data(), count_,
                                        largest_,          is_first_,      kBlocks,    &state_,
                                        histogram_.data(), tallies_.data()};
    launch<T>("largest_begin", args);
    for (std::size_t byte = 0; byte < sizeof(T); ++byte) {
      launch<T>("largest_count", args);
      launch<T>("largest_choose", args, 1);
    }
    launch<T>("largest_tally", args);
    launch<T>("largest_place", args, 1);
    launch<T>("largest_write", args);
    is_first_ = 0;
    return out;
  }

 private:
  std::size_t count_;
  std::size_t largest_;
  std::vector<T> kept_;
  int is_first_ = 1;
  vol::device::LargestState state_{};
  std::vector<vol::device::Count> histogram_ = std::vector<vol::device::Count>(256, 99);
  std::vector<vol::device::LargestTally> tallies_{kBlocks};
};

// `value` makes the elements.
template <class T, class Value>
void expect_top_k_of_the_cpu(std::size_t count, double fraction, int rounds, Value value) {
  Coder coder(Codec::top_k(fraction), kDType<T>, count, "w");
  Largest<T> device(count, coder.bytes() / (sizeof(T) + sizeof(std::int32_t)));
  for (int round = 0; round < rounds; ++round) {
    std::vector<T> values(count);
    std::generate(values.begin(), values.end(), value);
    std::vector<std::byte> expected(coder.bytes());
    coder.encode(expected.data(), [&](std::byte* to, std::size_t first, std::size_t last) {
      std::memcpy(to, values.data() + first, (last - first) * sizeof(T));
    });
    ASSERT_EQ(device.encode(values), expected)
        << count << " elements, fraction " << fraction << ", round " << round;
  }
}

TYPED_TEST(DeviceCodecs, TopKSendsTheBytesOfTheCpuRoundAfterRound) {
  using T = TypeParam;
  Random& random = this->random_;
  for (const std::size_t count : kCounts) {
    if (count == 0) continue;
    for (const double fraction : {0.001, 0.1, 0.5, 1.0}) {
      expect_top_k_of_the_cpu<T>(count, fraction, 4, [&] { return any_number<T>(random); });
      expect_top_k_of_the_cpu<T>(count, fraction, 4, [&] {  // many of equal magnitude
        return static_cast<T>(static_cast<int>(random() % 9) - 4);
      });
      // One round, as a sum with NaN may be a NaN of other bits.
      expect_top_k_of_the_cpu<T>(count, fraction, 1, [&] { return any_value<T>(random); });
    }
  }
}

// What place_<dtype> makes of values and indices.
template <class T>
struct Placed {
  Placed(const std::vector<T>& values, const std::vector<std::int32_t>& indices, std::size_t count,
         double factor = 1)
      : bytes(values.size() * (sizeof(T) + sizeof(std::int32_t))), out(count + 2 * kGuard, T{77}) {
    std::memcpy(bytes.data(), values.data(), values.size() * sizeof(T));
    std::memcpy(bytes.data() + values.size() * sizeof(T), indices.data(),
                indices.size() * sizeof(std::int32_t));
    std::fill_n(out.begin() + kGuard, count, T{0});
    launch<T>("place", vol::device::PlaceArgs{out.data() + kGuard, bytes.data(), count,
                                              values.size(), factor, &wrong});
    for (std::size_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(out[i], T{77}) << "written before the first element";
      EXPECT_EQ(out[out.size() - 1 - i], T{77}) << "written past the end";
    }
  }
  static constexpr std::size_t kGuard = 64;
  std::vector<std::byte> bytes;
  std::vector<T> out;
  int wrong = 0;
};

TYPED_TEST(DeviceCodecs, PlacePutsValuesTimesTheFactorWhereTheyBelong) {
  using T = TypeParam;
  const Placed<T> placed({1, -2, static_cast<T>(0.1)}, {0, 3, 5}, 6, 0.3);
  const auto factor = static_cast<T>(0.3);
  const std::vector<T> expected{factor, 0, 0, T{-2} * factor, 0, static_cast<T>(0.1) * factor};
  EXPECT_EQ(placed.wrong, 0);
  EXPECT_TRUE(same(placed.out.data() + Placed<T>::kGuard, expected.data(), 6));
}

TYPED_TEST(DeviceCodecs, PlaceRefusesTheIndicesThatTheCpuRefusesAndStaysInBounds) {
  using T = TypeParam;
  constexpr std::size_t kCount = 40;
  Coder coder(Codec::top_k(0.1), kDType<T>, kCount, "w");
  const std::vector<T> values{1, 2, 3, 4};
  std::vector<T> decoded(kCount);
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
  for (int repeat = 0; repeat < 2000; ++repeat) {
    std::vector<std::int32_t> indices(values.size());
    for (std::int32_t& index : indices) {
      index = static_cast<std::int32_t>(this->random_() % kCount);
    }
    if (repeat % 2 == 0) std::sort(indices.begin(), indices.end());
    if (repeat % 3 == 0) {
      const std::int32_t hostile[] = {-1, -30, kLeast, kMost, kCount, kCount + 30};
      indices[this->random_() % indices.size()] = hostile[this->random_() % std::size(hostile)];
    }
    const Placed<T> placed(values, indices, kCount);
    const bool is_taken =
        coder.decode(reinterpret_cast<std::byte*>(decoded.data()), placed.bytes.data());
    ASSERT_EQ(placed.wrong == 0, is_taken);
    if (is_taken) {
      EXPECT_TRUE(same(placed.out.data() + Placed<T>::kGuard, decoded.data(), kCount));
    }
  }
}

}  // namespace
