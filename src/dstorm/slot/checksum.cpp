#include "dstorm/slot/checksum.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "dstorm/slot/processor.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#define MALT_HAS_PRODUCTS [[gnu::target("pclmul")]]
#elif defined(__aarch64__) && !defined(__clang__)  // Clang names these features differently
#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#define MALT_HAS_PRODUCTS [[gnu::target("+crypto")]]
#endif

namespace dstorm {
namespace {

// A word is a polynomial of degree 63 at most. Its lowest bit is the coefficient of x^63.
using Word = std::uint64_t;
constexpr Word kPolynomial = 0x9A6C9329AC4BC9B5U;  // without its term x^64

constexpr Word times_x(Word word) { return word >> 1 ^ ((word & 1) != 0 ? kPolynomial : 0); }

Word load(const std::byte* from) {
  Word word = 0;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

// ---- With tables: one word at a time ----

using Tables = std::array<std::array<Word, 256>, 8>;  // [n][b]: byte b with n bytes after it

constexpr Tables make_tables() {
  Tables tables{};
  for (std::size_t byte = 0; byte < 256; ++byte) {
    Word word = byte;
    for (auto& table : tables) {
      for (int bit = 0; bit < 8; ++bit) word = times_x(word);
      table[byte] = word;
    }
  }
  return tables;
}
constexpr Tables kTables = make_tables();

Word add_by_tables(Word state, std::span<const std::byte> words) {
  for (std::size_t at = 0; at < words.size(); at += sizeof(Word)) {
    Word word = state ^ load(words.data() + at);
    state = 0;
    for (std::size_t i = 8; i-- > 0; word >>= 8) state ^= kTables[i][word & 255];
  }
  return state;
}

#ifdef MALT_HAS_PRODUCTS
// ---- With carry-less products: 16 bytes at a time, four such blocks side by side ----
// Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel,
// 2009. The product of two words has 128 bits, of which the lowest is the coefficient of x^127. So
// the result is the product of the polynomials times x.

constexpr Word power_of_x(int exponent) {
  Word word = Word{1} << 63;
  for (int i = 0; i < exponent; ++i) word = times_x(word);
  return word;
}
// The quotient of x^128 by the polynomial, without its term x^64.
constexpr Word quotient() {
  Word quotient = 0;
  Word rest = kPolynomial;
  for (int i = 0; i < 64; ++i, rest = times_x(rest)) quotient |= (rest & 1) << i;
  return quotient;
}
// The quotient and the polynomial, with their highest terms, divided by x.
constexpr Word kQuotient = quotient() << 1 | 1;
constexpr Word kDivisor = kPolynomial << 1 | 1;

// The factors that shift 16 bytes by `bits` bits: one for their first word, one for their second.
struct Shift {
  explicit constexpr Shift(int bits) : first(power_of_x(bits + 63)), second(power_of_x(bits - 1)) {}
  Word first, second;
};
constexpr Shift kBy16(128);
constexpr Shift kBy64(512);

#if defined(__x86_64__)
using Bytes16 = __m128i;

Bytes16 pair(Word first, Word second) {
  return _mm_set_epi64x(static_cast<long long>(second), static_cast<long long>(first));
}
Word first_of(Bytes16 bytes) { return static_cast<Word>(_mm_cvtsi128_si64(bytes)); }
Word second_of(Bytes16 bytes) { return first_of(_mm_unpackhi_epi64(bytes, bytes)); }
MALT_HAS_PRODUCTS inline Bytes16 product_of_first(Bytes16 a, Bytes16 b) {
  return _mm_clmulepi64_si128(a, b, 0x00);
}
MALT_HAS_PRODUCTS inline Bytes16 product_of_second(Bytes16 a, Bytes16 b) {
  return _mm_clmulepi64_si128(a, b, 0x11);
}
bool has_products() { return processor().pclmul; }
#else
using Bytes16 = uint64x2_t;

Bytes16 pair(Word first, Word second) {
  return vcombine_u64(vcreate_u64(first), vcreate_u64(second));
}
Word first_of(Bytes16 bytes) { return vgetq_lane_u64(bytes, 0); }
Word second_of(Bytes16 bytes) { return vgetq_lane_u64(bytes, 1); }
MALT_HAS_PRODUCTS inline Bytes16 product_of_first(Bytes16 a, Bytes16 b) {
  return vreinterpretq_u64_p128(vmull_p64(first_of(a), first_of(b)));
}
MALT_HAS_PRODUCTS inline Bytes16 product_of_second(Bytes16 a, Bytes16 b) {
  return vreinterpretq_u64_p128(vmull_high_p64(vreinterpretq_p64_u64(a), vreinterpretq_p64_u64(b)));
}
bool has_products() { return (getauxval(AT_HWCAP) & HWCAP_PMULL) != 0; }
#endif

Bytes16 load_16(const std::byte* from) {
  Bytes16 bytes;
  std::memcpy(&bytes, from, sizeof(bytes));
  return bytes;
}

MALT_HAS_PRODUCTS inline Bytes16 shift(Bytes16 bytes, Bytes16 by, Bytes16 to) {
  return product_of_first(bytes, by) ^ product_of_second(bytes, by) ^ to;
}

// The remainder of 16 bytes with 8 zeros after them, by Barrett reduction.
MALT_HAS_PRODUCTS inline Word reduce(Bytes16 bytes) {
  const Bytes16 nearly = product_of_first(bytes, pair(kBy16.second, 0)) ^ pair(second_of(bytes), 0);
  const Bytes16 times = product_of_first(nearly, pair(kQuotient, 0));
  const Bytes16 less = product_of_first(times, pair(kDivisor, 0));
  return second_of(less) ^ first_of(times) ^ second_of(nearly);
}

// The remainder of 16 bytes and of `rest`, which follows them.
MALT_HAS_PRODUCTS inline Word finish(Bytes16 bytes, std::span<const std::byte> rest) {
  const Bytes16 by = pair(kBy16.first, kBy16.second);
  for (; rest.size() >= 16; rest = rest.subspan(16)) bytes = shift(bytes, by, load_16(rest.data()));
  return add_by_tables(reduce(bytes), rest);
}

MALT_HAS_PRODUCTS Word add_by_products(Word state, std::span<const std::byte> words) {
  if (words.size() < 32) return add_by_tables(state, words);
  Bytes16 first = load_16(words.data()) ^ pair(state, 0);
  if (words.size() < 128) return finish(first, words.subspan(16));
  Bytes16 second = load_16(words.data() + 16);
  Bytes16 third = load_16(words.data() + 32);
  Bytes16 fourth = load_16(words.data() + 48);
  const Bytes16 by = pair(kBy64.first, kBy64.second);
  for (words = words.subspan(64); words.size() >= 64; words = words.subspan(64)) {
    first = shift(first, by, load_16(words.data()));
    second = shift(second, by, load_16(words.data() + 16));
    third = shift(third, by, load_16(words.data() + 32));
    fourth = shift(fourth, by, load_16(words.data() + 48));
  }
  const Bytes16 on = pair(kBy16.first, kBy16.second);
  return finish(shift(shift(shift(first, on, second), on, third), on, fourth), words);
}
#endif

#if defined(__x86_64__)
// ---- With wide carry-less products: 64 bytes at a time ----
#define MALT_HAS_WIDE_PRODUCTS [[gnu::target("avx512f,pclmul,vpclmulqdq")]]

constexpr Shift kBy256(2048);

MALT_HAS_WIDE_PRODUCTS inline __m512i load_64(const std::byte* from) {
  return _mm512_loadu_si512(from);
}
MALT_HAS_WIDE_PRODUCTS inline __m512i four_of(const Shift& by) {
  const auto first = static_cast<long long>(by.first);
  const auto second = static_cast<long long>(by.second);
  return _mm512_set4_epi64(second, first, second, first);
}
MALT_HAS_WIDE_PRODUCTS inline __m512i shift(__m512i bytes, __m512i by, __m512i to) {
  return _mm512_clmulepi64_epi128(bytes, by, 0x00) ^ _mm512_clmulepi64_epi128(bytes, by, 0x11) ^ to;
}

MALT_HAS_WIDE_PRODUCTS Word add_by_wide_products(Word state, std::span<const std::byte> words) {
  if (words.size() < 512) return add_by_products(state, words);
  __m512i first = load_64(words.data()) ^ _mm512_zextsi128_si512(pair(state, 0));
  __m512i second = load_64(words.data() + 64);
  __m512i third = load_64(words.data() + 128);
  __m512i fourth = load_64(words.data() + 192);
  const __m512i by = four_of(kBy256);
  for (words = words.subspan(256); words.size() >= 256; words = words.subspan(256)) {
    first = shift(first, by, load_64(words.data()));
    second = shift(second, by, load_64(words.data() + 64));
    third = shift(third, by, load_64(words.data() + 128));
    fourth = shift(fourth, by, load_64(words.data() + 192));
  }
  const __m512i on = four_of(kBy64);
  fourth = shift(shift(shift(first, on, second), on, third), on, fourth);
  for (; words.size() >= 64; words = words.subspan(64)) {
    fourth = shift(fourth, on, load_64(words.data()));
  }
  std::array<std::byte, 64> last{};
  _mm512_storeu_si512(last.data(), fourth);
  return add_by_products(finish(load_16(last.data()), std::span(last).subspan(16)), words);
}

bool has_wide_products() { return has_products() && processor().avx512f && processor().vpclmulqdq; }
#endif

}  // namespace

std::span<const ChecksumWay> checksum_ways() {
  static const std::array ways{
#if defined(__x86_64__)
      ChecksumWay{"wide products", has_wide_products(), add_by_wide_products},
#endif
#ifdef MALT_HAS_PRODUCTS
      ChecksumWay{"products", has_products(), add_by_products},
#endif
      ChecksumWay{"tables", true, add_by_tables}};
  return ways;
}

void Checksum::add(std::span<const std::byte> words) {
  static const auto way = std::find_if(checksum_ways().begin(), checksum_ways().end(),
                                       [](const ChecksumWay& one) { return one.is_possible; });
  state_ = way->add(state_, words);
}

void Checksum::add_copying(std::span<const std::byte> words, std::byte* to) {
  constexpr std::size_t kBlock = 4096;  // small enough to be in the cache when it is added
  while (!words.empty()) {
    const std::size_t bytes = std::min(words.size(), kBlock);
    const auto* from = reinterpret_cast<const Word*>(words.data());
    for (std::size_t i = 0; i < bytes / sizeof(Word); ++i) {
      // Atomic: otherwise the compiler might read the word twice.
      const Word word = __atomic_load_n(from + i, __ATOMIC_RELAXED);
      std::memcpy(to + i * sizeof(Word), &word, sizeof(Word));
    }
    add({to, bytes});
    words = words.subspan(bytes);
    to += bytes;
  }
}

}  // namespace dstorm
