// The instruction set that the kernels use, and their names of types.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#include "vol/kernels.hpp"

namespace {

using vol::DType;

constexpr std::string_view kLevels[] = {"baseline", "avx2", "avx512"};

TEST(DTypeTest, DTypesHaveNamesAndSizes) {
  EXPECT_EQ(vol::dtype_name(DType::kFloat32), "float32");
  EXPECT_EQ(vol::dtype_name(DType::kFloat64), "float64");
  EXPECT_EQ(vol::dtype_name(DType::kInt32), "int32");
  EXPECT_EQ(vol::dtype_name(DType::kInt64), "int64");
  EXPECT_EQ(vol::dtype_size(DType::kInt32), 4U);
  EXPECT_EQ(vol::dtype_size(DType::kFloat64), 8U);
}

TEST(KernelsAtTest, UnknownLevelIsRefused) {
  EXPECT_THROW(vol::kernels_at(DType::kFloat32, "sse9"), std::invalid_argument);
}

// MALT_SIMD is read once a process: each of these runs in one of its own.
class SimdLevelDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  [[noreturn]] static void report_level(const char* wish) {
    ::setenv("MALT_SIMD", wish, 1);
    try {
      const std::string level(vol::simd_level());
      const bool obeyed = &vol::kernels(DType::kInt32) == vol::kernels_at(DType::kInt32, level);
      std::fprintf(stderr, "level %s", level.c_str());
      std::exit(obeyed ? 0 : 1);
    } catch (const std::invalid_argument& refusal) {
      std::fprintf(stderr, "%s", refusal.what());
      std::exit(2);
    }
  }
};

TEST_F(SimdLevelDeathTest, IsTheBestByDefault) {
  std::string best;
  for (const std::string_view level : kLevels) {
    if (vol::kernels_at(DType::kFloat32, level) != nullptr) best = level;
  }
  EXPECT_EXIT(report_level(""), testing::ExitedWithCode(0), "level " + best);
}

TEST_F(SimdLevelDeathTest, CanBeLowered) {
  EXPECT_EXIT(report_level("baseline"), testing::ExitedWithCode(0), "level baseline");
}

TEST_F(SimdLevelDeathTest, UnknownNameIsRefusedWithThoseAllowed) {
  EXPECT_EXIT(report_level("mmx"), testing::ExitedWithCode(2),
              "MALT_SIMD=mmx: must be avx512, avx2 or baseline");
}

}  // namespace
