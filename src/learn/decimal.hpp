// Reads decimal numbers from text, several times as fast as std::from_chars and with the same
// results.
//
// It reads eight digits at a time, as one integer (D. Lemire, "Number Parsing at a Gigabyte per
// Second", Software: Practice and Experience 51, 2021, section 3). A short number is then one exact
// integer times or divided by one exact power of ten, which rounds once (W. D. Clinger, "How to
// Read Floating Point Numbers Accurately", PLDI 1990, section 3). All other numbers are left to
// std::from_chars.
#pragma once

#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <system_error>

namespace learn {

// The text must go on for this many bytes after the line end that ends it. These bytes are read,
// and ignored.
inline constexpr int kReadAhead = 8;

enum class Numeral { kTaken, kNoNumber, kNotFinite, kOutOfRange };

inline constexpr bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
inline constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }
// Whether `c` may follow a number.
inline constexpr bool ends_number(char c) { return is_blank(c) || c == '\n' || c == '#'; }

// The digits at the beginning of a text, up to eight of them.
struct Digits {
  std::uint64_t value;
  int count;
};

inline Digits leading_digits(const char* text) {
  static_assert(std::endian::native == std::endian::little, "the first digit is the lowest byte");
  std::uint64_t digits = 0;
  std::memcpy(&digits, text, sizeof(digits));
  digits ^= 0x3030303030303030U;  // a digit's byte is 0 to 9 now
  // Sets the top bit of each byte that is no digit. A carry out of such a byte spoils only later
  // ones.
  const std::uint64_t others = ((digits + 0x7676767676767676U) | digits) & 0x8080808080808080U;
  const int count = std::countr_zero(others) / 8;
  // Shifts as if zeros stood before the digits. Two steps, because a shift by 64 would do nothing.
  const int half = 32 - 4 * count;
  digits = digits << half << half;
  digits = (digits * (1 + (10U << 8U))) >> 8U;  // pairs, fours, eight
  digits = ((digits & 0x00FF00FF00FF00FFU) * (1 + (100U << 16U))) >> 16U;
  digits = ((digits & 0x0000FFFF0000FFFFU) * (1 + (std::uint64_t{10000} << 32U))) >> 32U;
  return {digits, count};
}

inline constexpr std::array<std::uint64_t, 9> kTens{1,      10,      100,      1000,     10000,
                                                    100000, 1000000, 10000000, 100000000};
// The largest mantissa that so many more digits can follow within 64 bits.
inline constexpr auto kMostBefore = [] {
  std::array<std::uint64_t, kTens.size()> most{};
  for (std::size_t i = 0; i < most.size(); ++i)
    most[i] = std::numeric_limits<std::uint64_t>::max() / kTens[i] - 1;
  return most;
}();
// The powers of ten that a double holds exactly.
inline constexpr int kMostExponent = 22;
inline constexpr std::array<double, kMostExponent + 1> kExactTens{
    1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

// Computes mantissa * 10^exponent if this can be rounded here as exactly as std::from_chars does.
template <class T>
bool round_exactly(std::uint64_t mantissa, int exponent, T& value) {
  constexpr std::uint64_t kMostExact = std::uint64_t{1} << 53U;
  if (exponent < -kMostExponent || exponent > kMostExponent) return false;
  const auto rounded = static_cast<double>(mantissa);
  const double result = exponent < 0 ? rounded / kExactTens[static_cast<std::size_t>(-exponent)]
                                     : rounded * kExactTens[static_cast<std::size_t>(exponent)];
  if constexpr (std::is_same_v<T, double>) {
    if (mantissa > kMostExact) return false;
    value = result;
  } else {
    // Rounding a second time, to float, goes wrong only if the double is about half way between two
    // floats, as close as its own error: 2 units in its last place, if the mantissa was rounded.
    constexpr std::uint64_t kHalfWay = std::uint64_t{1} << 28U;
    constexpr std::uint64_t kNear = 4;
    const std::uint64_t below_float = std::bit_cast<std::uint64_t>(result) & (2 * kHalfWay - 1);
    if (below_float - (kHalfWay - kNear) <= 2 * kNear) return false;
    const bool is_normal =
        result >= std::numeric_limits<float>::min() && result <= std::numeric_limits<float>::max();
    if (!is_normal && mantissa != 0) return false;
    value = static_cast<float>(result);
  }
  return true;
}

// Reads any number as std::from_chars does, also with a leading '+'. A value too small for a float
// is zero.
template <class T>
Numeral take_any_number(const char*& text, T& value) {
  const char* begin = text + (*text == '+' ? 1 : 0);
  if (begin != text && *begin == '-') return Numeral::kNoNumber;
  const char* end = begin;
  while (!ends_number(*end)) ++end;
  const auto [rest, error] = std::from_chars(begin, end, value);
  if (error == std::errc::result_out_of_range) {
    double wide = 0;
    const bool is_small = std::is_same_v<T, float> &&
                          std::from_chars(begin, end, wide).ec == std::errc() && std::abs(wide) < 1;
    if (!is_small) return Numeral::kOutOfRange;
    value = static_cast<T>(wide);
  } else if (error != std::errc()) {
    return Numeral::kNoNumber;
  }
  if (!std::isfinite(value)) return Numeral::kNotFinite;
  text = rest;
  return Numeral::kTaken;
}

// Takes an exponent ("e-05") off the front of `text`. Returns false if there is none, or it has
// many digits.
inline bool take_exponent(const char*& text, int& exponent) {
  const bool is_negative = text[1] == '-';
  const char* first = text + (is_negative || text[1] == '+' ? 2 : 1);
  const Digits digits = leading_digits(first);
  if (digits.count == 0 || digits.count > 4) return false;
  exponent += is_negative ? -static_cast<int>(digits.value) : static_cast<int>(digits.value);
  text = first + digits.count;
  return true;
}

// Takes a number off the front of `text`, a line with its end and kReadAhead bytes more. T is float
// or double. `text` moves only if a number was taken.
template <class T>
inline Numeral take_number(const char*& text, T& value) {
  const bool is_negative = *text == '-';
  const char* at = text + (is_negative || *text == '+' ? 1 : 0);
  Digits digits{static_cast<std::uint64_t>(*at - '0'), 1};
  // Most often there is one digit, before the point or alone.
  if (!is_digit(*at) || is_digit(at[1])) digits = leading_digits(at);
  at += digits.count;
  std::uint64_t mantissa = digits.value;
  int exponent = 0;
  bool has_digits = digits.count > 0;
  if (*at == '.') {
    ++at;
    do {
      digits = leading_digits(at);
      const auto count = static_cast<std::size_t>(digits.count);
      if (mantissa > kMostBefore[count]) return take_any_number(text, value);
      mantissa = mantissa * kTens[count] + digits.value;
      exponent -= digits.count;
      at += digits.count;
      has_digits |= digits.count > 0;
    } while (digits.count == 8);
  }
  const bool has_exponent = *at == 'e' || *at == 'E';
  if (!has_digits || (has_exponent && !take_exponent(at, exponent)) || !ends_number(*at) ||
      !round_exactly(mantissa, exponent, value)) {
    return take_any_number(text, value);
  }
  if (is_negative) value = -value;
  text = at;
  return Numeral::kTaken;
}

}  // namespace learn
