// The checksum of updates and records: its values, and the differences that it always detects.
#include "dstorm/slot/checksum.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <functional>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

namespace dstorm {
namespace {

using Words = std::vector<std::uint64_t>;
constexpr std::uint64_t kSign = std::uint64_t{1} << 63;

std::uint64_t checksum_of(const Words& words) {
  Checksum checksum;
  checksum.add(std::as_bytes(std::span(words)));
  return checksum.value();
}

Words random_words(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Words words(count);
  std::generate(words.begin(), words.end(), std::ref(random));
  return words;
}

// NVM Express, NVM Command Set Specification, "64b CRC": the values for 4 KiB.
TEST(Checksum, HasTheValuesOfItsStandard) {
  const auto value_of = [](auto byte_at) {
    std::vector<std::byte> bytes(4096);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(byte_at(i));
    Checksum checksum;
    checksum.add(bytes);
    return checksum.value();
  };
  EXPECT_EQ(value_of([](std::size_t) { return 0x00; }), 0x6482D367EB22B64EU);
  EXPECT_EQ(value_of([](std::size_t) { return 0xFF; }), 0xC0DDBA7302ECA3ACU);
  EXPECT_EQ(value_of([](std::size_t i) { return i & 255; }), 0x3E729F5F6750449CU);
  EXPECT_EQ(value_of([](std::size_t i) { return ~i & 255; }), 0x9A2DF64B8E9E517EU);
  EXPECT_EQ(Checksum().value(), 0U);
}

TEST(Checksum, IsTheSameInEveryWay) {
  const Words words = random_words(1100, 1);
  const auto ways = checksum_ways();
  ASSERT_TRUE(ways.back().is_possible);
  for (std::size_t count = 0; count < 1000; count += count < 300 ? 1 : 37) {
    for (const std::size_t from : {std::size_t{0}, count % 7}) {  // on other cache lines
      const auto part = std::as_bytes(std::span(words).subspan(from, count));
      for (const ChecksumWay& way : ways) {
        if (!way.is_possible) continue;
        ASSERT_EQ(way.add(words[count], part), ways.back().add(words[count], part))
            << way.name << ", " << count << " words";
      }
    }
  }
}

TEST(Checksum, IsTheSameInPieces) {
  const Words words = random_words(700, 2);
  const auto all = std::as_bytes(std::span(words));
  std::minstd_rand random(3);
  for (int round = 0; round < 200; ++round) {
    Checksum checksum;
    for (auto rest = all; !rest.empty();) {
      const std::size_t bytes = std::min<std::size_t>(8 * (random() % 200), rest.size());
      checksum.add(rest.first(bytes));
      rest = rest.subspan(bytes);
    }
    ASSERT_EQ(checksum.value(), checksum_of(words));
  }
}

TEST(Checksum, IsTheSameWhenItCopies) {
  for (std::size_t count = 0; count < 1200; count += count < 40 ? 1 : 61) {
    const Words words = random_words(count, count);
    Words copy(count + 1, 7);
    Checksum checksum;
    checksum.add_copying(std::as_bytes(std::span(words)),
                         reinterpret_cast<std::byte*>(copy.data()));
    EXPECT_EQ(checksum.value(), checksum_of(words));
    EXPECT_TRUE(std::equal(words.begin(), words.end(), copy.begin()));
    EXPECT_EQ(copy.back(), 7U) << "written beyond " << count << " words";
  }
}

TEST(Checksum, IsOfWhatWasCopiedThoughTheSourceChanges) {
  constexpr std::size_t kWords = 4096;
  Words words(kWords);
  std::atomic<bool> is_done = false;
  std::thread changing([&] {
    for (std::uint64_t round = 1; !is_done; ++round) {
      for (std::uint64_t& word : words) std::atomic_ref(word).store(round);
    }
  });
  int wrong = 0;
  for (int round = 0; round < 500; ++round) {
    Words copy(kWords);
    Checksum checksum;
    checksum.add_copying(std::as_bytes(std::span(words)),
                         reinterpret_cast<std::byte*>(copy.data()));
    wrong += checksum.value() != checksum_of(copy);
  }
  is_done = true;
  changing.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Checksum, TellsEveryChangeOfOneWord) {
  std::mt19937_64 random(4);
  for (const std::size_t count : {1U, 2U, 3U, 4U, 5U, 8U, 31U, 512U}) {
    Words words = random_words(count, count);
    const std::uint64_t right = checksum_of(words);
    for (std::uint64_t& word : words) {
      const std::uint64_t was = word;
      for (int bit = 0; bit < 64; ++bit) {
        word = was ^ std::uint64_t{1} << bit;
        ASSERT_NE(checksum_of(words), right);
      }
      for (const std::uint64_t other : {std::uint64_t{0}, ~std::uint64_t{0}, random()}) {
        word = other;
        ASSERT_NE(checksum_of(words), right);
      }
      word = was;
    }
  }
}

// The differences of two updates that differ only in signs: +1 and -1 in doubles, and in both
// floats of a word.
TEST(Checksum, TellsTheSameChangeOfAnyTwoWords) {
  for (const std::uint64_t change : {kSign, kSign | kSign >> 32, std::uint64_t{1},
                                     ~std::uint64_t{0}, std::uint64_t{0x9A6C9329AC4BC9B5}}) {
    Words words(160, std::bit_cast<std::uint64_t>(1.0));
    const std::uint64_t right = checksum_of(words);
    for (std::size_t i = 0; i < words.size(); ++i) {
      words[i] ^= change;
      for (std::size_t j = i + 1; j < words.size(); ++j) {
        words[j] ^= change;
        ASSERT_NE(checksum_of(words), right) << i << " and " << j;
        words[j] ^= change;
      }
      words[i] ^= change;
    }
  }
}

TEST(Checksum, TellsOrderAndLength) {
  for (const std::size_t count : {std::size_t{8}, std::size_t{160}}) {
    Words words(count);
    std::iota(words.begin(), words.end(), 1);
    const std::uint64_t right = checksum_of(words);
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t j = i + 1; j < count; ++j) {
        std::swap(words[i], words[j]);
        ASSERT_NE(checksum_of(words), right) << i << " and " << j << " swapped";
        std::swap(words[i], words[j]);
      }
    }
  }
  for (std::size_t count = 0; count < 40; ++count) {
    ASSERT_NE(checksum_of(Words(count)), checksum_of(Words(count + 1))) << count << " zeros";
  }
}

// Any subset of the lines of the newer update has arrived.
TEST(Checksum, TellsEveryMixOfTwoUpdates) {
  constexpr std::size_t kLines = 14;
  const Words older(8 * kLines, std::bit_cast<std::uint64_t>(1.0));
  for (const Words& newer :
       {Words(8 * kLines, std::bit_cast<std::uint64_t>(-1.0)),
        Words(8 * kLines, std::bit_cast<std::uint64_t>(2.0)), random_words(8 * kLines, 5)}) {
    for (std::uint32_t mix = 1; mix + 1 < 1U << kLines; ++mix) {
      Words words = older;
      for (std::size_t line = 0; line < kLines; ++line) {
        if ((mix >> line & 1) == 0) continue;
        const auto at = static_cast<std::ptrdiff_t>(8 * line);
        std::copy_n(newer.begin() + at, 8, words.begin() + at);
      }
      ASSERT_NE(checksum_of(words), checksum_of(older)) << "mix " << mix;
      ASSERT_NE(checksum_of(words), checksum_of(newer)) << "mix " << mix;
    }
  }
}

}  // namespace
}  // namespace dstorm
