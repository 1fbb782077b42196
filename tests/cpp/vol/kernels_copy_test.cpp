#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "vol/kernels.hpp"
#include "vol/kernels_level.hpp"

namespace {

using vol::DType;

std::vector<unsigned char> some_bytes(std::size_t count) {
  std::vector<unsigned char> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<unsigned char>(i * 131 + i / 251);
  return bytes;
}

template <class Copy>
void expect_copies(Copy copy, std::size_t count, std::size_t to_offset, std::size_t from_offset) {
  constexpr std::size_t kMargin = 128;
  const auto from = some_bytes(count + kMargin);
  std::vector<unsigned char> to(count + 2 * kMargin, 0xAB);
  std::vector<unsigned char> expected = to;
  copy(to.data() + to_offset, from.data() + from_offset, count);
  std::copy_n(from.data() + from_offset, count, expected.data() + to_offset);
  ASSERT_TRUE(to == expected) << count << " bytes to +" << to_offset << " from +" << from_offset;
}

TEST(CopyTest, CopiesAnySize) {
  for (const std::size_t count : {0U, 1U, 63U, 64U, 4097U, 1U << 20})
    expect_copies(vol::copy, count, 1, 3);
  expect_copies(vol::copy, (std::size_t{48} << 20) + 77, 5, 0);
}

TEST(CopyTest, NothingMayBeCopiedFromNowhere) { vol::copy(nullptr, nullptr, 0); }

TEST(CopyTest, StreamsAnySizeAtAnyAddress) {
  std::vector<const vol::LevelKernels*> levels{&vol::kBaselineKernels};
#if defined(__x86_64__)
  if (vol::kernels_at(DType::kInt32, "avx2") != nullptr) levels.push_back(&vol::kAvx2Kernels);
  if (vol::kernels_at(DType::kInt32, "avx512") != nullptr) levels.push_back(&vol::kAvx512Kernels);
#endif
  for (const vol::LevelKernels* const level : levels) {
    if (level->stream_copy == nullptr) continue;
    for (const std::size_t count :
         {0U, 1U, 15U, 64U, 255U, 256U, 257U, 319U, 320U, 1000U, 70000U}) {
      for (const std::size_t to : {0U, 1U, 17U, 63U, 64U}) {
        for (const std::size_t from : {0U, 5U, 64U})
          expect_copies(level->stream_copy, count, to, from);
      }
    }
  }
}

}  // namespace
