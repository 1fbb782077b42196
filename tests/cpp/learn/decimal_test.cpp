#include "learn/decimal.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <random>
#include <string>

namespace learn {
namespace {

template <class T>
class Decimal : public testing::Test {
 protected:
  // The rest of the text after the number.
  std::string take(const std::string& text, Numeral expected = Numeral::kTaken) {
    const std::string line = text + '\n' + std::string(kReadAhead, '7');
    const char* at = line.c_str();
    EXPECT_EQ(take_number(at, value_), expected) << text;
    return line.substr(static_cast<std::size_t>(at - line.c_str()));
  }
  void expect_as_from_chars(const std::string& text) {
    T expected{};
    std::from_chars(text.data(), text.data() + text.size(), expected);
    take(text);
    ASSERT_EQ(value_, expected) << text;
    ASSERT_EQ(std::signbit(value_), std::signbit(expected)) << text;
  }

  T value_{};
};

using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(Decimal, Types);

TYPED_TEST(Decimal, IsWhatFromCharsGives) {
  for (const char* text : {"0",
                           "-0",
                           "1",
                           "-1",
                           "7.",
                           ".5",
                           "-.5",
                           "0.1",
                           "12345678",
                           "123456789",
                           "1234567.8901",
                           "0.12345678",
                           "0.123456789",
                           "0.1234567890123456",
                           "0.12345678901234567",
                           "0.123456789012345678901234567890",
                           "9007199254740992",
                           "9007199254740993",
                           "9007199254740993e5",
                           "18446744073709551615.5",
                           "1e5",
                           "1E+5",
                           "1e-5",
                           "1.5e0005",
                           "1e22",
                           "1e23",
                           "123e-22",
                           "123e-23",
                           "1.17549435e-38",
                           "1.4e-45",
                           "3.4028234e38",
                           "16777217",
                           "16777217.0000001",
                           "0.000000000000000000000000000000000001",
                           "0.50000002980232238769531250",
                           "1.00000017881393432617187499",
                           "8388609.5",
                           "00000000001"}) {
    this->expect_as_from_chars(text);
  }
}

TYPED_TEST(Decimal, IsWhatFromCharsGivesForRandomNumbers) {
  std::mt19937_64 random(0);
  std::array<char, 64> text{};
  for (int i = 0; i < 20000; ++i) {
    const auto digits = static_cast<int>(random() % 19);
    const auto exponent = static_cast<int>(random() % 60) - 30;
    const double number = std::ldexp(static_cast<double>(random() % (1U << 30U)), exponent);
    std::snprintf(text.data(), text.size(), i % 3 == 0 ? "%.*e" : "%.*g", digits, number);
    this->expect_as_from_chars(text.data());
  }
}

// The midpoints between two floats, and their neighbours, are where rounding twice goes wrong.
TYPED_TEST(Decimal, RoundsOnceNextToTheMiddleOfTwoFloats) {
  std::mt19937 random(0);
  std::array<char, 64> text{};
  for (int i = 0; i < 2000; ++i) {
    const auto low =
        std::ldexp(static_cast<float>(random() | 1U), -static_cast<int>(random() % 40));
    const double middle = (static_cast<double>(low) + std::nextafter(low, 1e30F)) / 2;
    for (const double number : {middle, std::nextafter(middle, 0), std::nextafter(middle, 1e30)}) {
      for (const int digits : {15, 16, 17, 20}) {
        std::snprintf(text.data(), text.size(), "%.*g", digits, number);
        this->expect_as_from_chars(text.data());
      }
    }
  }
}

TYPED_TEST(Decimal, EndsWhereTheNumberEnds) {
  const std::string end = "\n" + std::string(kReadAhead, '7');
  EXPECT_EQ(this->take("+1.5 2:3"), " 2:3" + end);
  EXPECT_EQ(this->value_, TypeParam{1.5});
  EXPECT_EQ(this->take("12\t"), "\t" + end);
  EXPECT_EQ(this->take("12#34"), "#34" + end);
  EXPECT_EQ(this->take("12:34"), ":34" + end);
  EXPECT_EQ(this->take("1e5x"), "x" + end);
  EXPECT_EQ(this->take("2ex"), "ex" + end);
}

TYPED_TEST(Decimal, IsRefusedWhereThereIsNone) {
  const std::string end = "\n" + std::string(kReadAhead, '7');
  for (const char* text : {"", " ", "-", "+", ".", "-.", "e5", "x", "+-1", "--1", "+e", "\xff"}) {
    EXPECT_EQ(this->take(text, Numeral::kNoNumber), text + end) << "it stays where it is";
  }
  for (const char* text : {"nan", "-NaN", "inf", "-Infinity", "+inf"}) {
    this->take(text, Numeral::kNotFinite);
  }
  this->take("1e999", Numeral::kOutOfRange);
  this->take("-1e99999999", Numeral::kOutOfRange);
}

TEST(DecimalFloat, HasZeroForWhatIsTooSmallAndRefusesWhatIsTooLarge) {
  const auto take = [](const std::string& text, float& value) {
    const std::string line = text + '\n' + std::string(kReadAhead, ' ');
    const char* at = line.c_str();
    return take_number(at, value);
  };
  float value = 1;
  EXPECT_EQ(take("-1e-60", value), Numeral::kTaken);
  EXPECT_EQ(value, 0);
  EXPECT_EQ(take("1e39", value), Numeral::kOutOfRange);
}

}  // namespace
}  // namespace learn
