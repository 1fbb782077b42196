#include "learn/svmlight.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "dstorm/errors.hpp"
#include "learn/matrix.hpp"

namespace learn {
namespace {

using testing::Test;

// The result of parsing a text, for comparison.
struct Parsed {
  std::vector<double> labels;
  std::vector<std::int64_t> starts;
  std::vector<std::int32_t> columns;
  std::vector<float> values;
  std::vector<std::string> bad;  // "line: reason: text"

  bool operator==(const Parsed&) const = default;
};

template <class T>
std::vector<T> vector_of(std::span<const T> values) {
  return {values.begin(), values.end()};
}

Parsed taken_from(SvmlightParser<float>& parser, std::int32_t base = 0) {
  Parsed parsed;
  for (const BadLine& bad : parser.take_bad_lines()) {
    parsed.bad.push_back(std::to_string(bad.line) + ": " + bad.reason + ": " + bad.text);
  }
  const SvmlightRows<float> rows = parser.take(base);
  parsed.labels = vector_of(rows.labels.span());
  parsed.starts = vector_of(rows.starts.span());
  parsed.columns = vector_of(rows.columns.span());
  parsed.values = vector_of(rows.values.span());
  return parsed;
}

Parsed parse(const std::string& text, const SvmlightOptions& options = {}) {
  SvmlightParser<float> parser(options);
  parser.feed(text);
  parser.end_text();
  return taken_from(parser);
}

// Some hundred thousand bytes, with everything that a line may have.
std::string long_text() {
  std::mt19937 random(0);
  std::string text;
  for (int line = 0; line < 9000; ++line) {
    if (line % 1000 == 3) text += "# a comment\n\n";
    if (line % 1500 == 7) text += "1 3:4 2:1\n";
    text += std::to_string(static_cast<int>(random() % 3) - 1);
    for (std::uint64_t column = random() % 50; column < 1000; column += 1 + random() % 300) {
      text += ' ' + std::to_string(column) + ':' + std::to_string(random() % 100000) + "e-4";
    }
    text += line % 2 == 0 ? "\n" : " # more\r\n";
  }
  return text;
}

TEST(Svmlight, HasTheRowsOfTheText) {
  const Parsed parsed = parse("+1 1:0.5 3:-2e1\n-1 2:.25\n2.5\n");
  EXPECT_EQ(parsed.labels, (std::vector{1.0, -1.0, 2.5}));
  EXPECT_EQ(parsed.starts, (std::vector<std::int64_t>{0, 2, 3, 3}));
  EXPECT_EQ(parsed.columns, (std::vector{1, 3, 2}));
  EXPECT_EQ(parsed.values, (std::vector{0.5F, -20.0F, 0.25F}));
  EXPECT_TRUE(parsed.bad.empty());
}

TEST(Svmlight, SkipsCommentsBlankLinesQueriesAndCarriageReturns) {
  const Parsed parsed =
      parse("# head\r\n\r\n  \t\n1 qid:7  1:2\t3:4 # 5:6 nan\r\n0 qid:12#\n -1 1:1#2:2\n");
  EXPECT_EQ(parsed, parse("1 1:2 3:4\n0\n-1 1:1\n"));
  EXPECT_EQ(parsed.starts, (std::vector<std::int64_t>{0, 2, 2, 3}));
}

TEST(Svmlight, TakesTheLastLineWithoutItsEnd) {
  EXPECT_EQ(parse("1 1:2\n2 2:3"), parse("1 1:2\n2 2:3\n"));
  EXPECT_TRUE(parse("").labels.empty());
  EXPECT_EQ(parse("").starts, std::vector<std::int64_t>{0});
}

TEST(Svmlight, TellsTheLinesThatItLeavesOut) {
  const std::string good = "1 1:1\n";
  const std::string bad =
      "\n"
      "one 1:1\n"
      "1,2 1:1\n"
      "nan 1:1\n"
      "1 2:1 1:1\n"
      "1 2:1 2:1\n"
      "1 2:1 3\n"
      "1 2:x\n"
      "1 2:1:3\n"
      "1 2:inf # infinite\n";
  const Parsed parsed = parse(good + bad + good);
  EXPECT_EQ(parsed.bad, (std::vector<std::string>{
                            "3: the label is not one number: one 1:1",
                            "4: the label is not one number: 1,2 1:1",
                            "5: the number is NaN or infinite: nan 1:1",
                            "6: the indices do not increase: 1:1",
                            "7: the indices do not increase: 2:1",
                            "8: index:value was expected: 3",
                            "9: the value is not a number: 2:x",
                            "10: the value is not a number: 2:1:3",
                            "11: the number is NaN or infinite: 2:inf # infinite",
                        }));
  EXPECT_EQ(parsed.labels.size(), 2U);
  EXPECT_EQ(parsed.columns, (std::vector{1, 1})) << "nothing is left of a bad line";
}

TEST(Svmlight, RefusesIndicesOutsideTheLimits) {
  const SvmlightOptions options{.first_index = 1, .last_index = 30};
  const Parsed parsed =
      parse("1 1:1 30:1\n1 0:1\n1 31:1\n1 99999999999999999999:1\n1 -1:1\n", options);
  EXPECT_EQ(parsed.bad, (std::vector<std::string>{
                            "2: the index is not from 1 to 30: 0:1",
                            "3: the index is not from 1 to 30: 31:1",
                            "4: the index is not from 1 to 30: 99999999999999999999:1",
                            "5: index:value was expected: -1:1",
                        }));
  EXPECT_EQ(parse("1 2147483647:1\n").columns, std::vector{2147483647});
  EXPECT_EQ(parse("1 2147483648:1\n1 12345678901:1\n").bad.size(), 2U);
}

TEST(Svmlight, ShortensWhatItTellsOfBinaryData) {
  const Parsed parsed = parse(std::string("\0\x01\x7f\xff", 4) + std::string(100, 'x'));
  ASSERT_EQ(parsed.bad.size(), 1U);
  EXPECT_EQ(parsed.bad[0], "1: the label is not one number: ????" + std::string(36, 'x') + "...");
}

TEST(Svmlight, CountsMoreBadLinesThanItKeeps) {
  SvmlightParser<float> parser({});
  for (int i = 0; i < 30; ++i) parser.feed("bad\n");
  parser.end_text();
  EXPECT_EQ(parser.bad_count(), 30);
  EXPECT_EQ(parser.take_bad_lines().size(), SvmlightParser<float>::kMostBadLines);
  EXPECT_TRUE(parser.take_bad_lines().empty());
}

TEST(Svmlight, CutsTheTextAnywhereIntoBlocks) {
  const std::string text = "# c\n1 1:0.125 20:3\n\n2 x\n3 1:1 2:2 3:12345.5\r\n4 7:1e-3";
  const Parsed whole = parse(text);
  ASSERT_EQ(whole.bad.size(), 1U);
  for (std::size_t length = 1; length < text.size(); ++length) {
    SvmlightParser<float> parser({});
    for (std::size_t at = 0; at < text.size(); at += length) parser.feed(text.substr(at, length));
    parser.end_text();
    EXPECT_EQ(taken_from(parser), whole) << "in blocks of " << length;
  }
}

TEST(Svmlight, GivesTheSameWithSeveralThreads) {
  const std::string text = long_text();
  ASSERT_GT(text.size(), std::size_t{4} << 16U);
  const Parsed one = parse(text);
  ASSERT_EQ(one.bad.size(), 6U);
  EXPECT_EQ(one.labels.size(), 9000U);
  EXPECT_EQ(parse(text, {.threads = 4}), one);
}

TEST(Svmlight, TakesSeveralTextsOneAfterTheOther) {
  SvmlightParser<float> parser({});
  parser.feed("1 1:1\n1 3:1");
  parser.end_text();
  parser.feed("2 2:1\nbad");
  parser.end_text();
  EXPECT_EQ(parser.rows(), 3);
  EXPECT_EQ(parser.lowest_index(), 1);
  EXPECT_EQ(parser.highest_index(), 3);
  const Parsed parsed = taken_from(parser, 1);
  EXPECT_EQ(parsed.columns, (std::vector{0, 2, 1}));
  EXPECT_EQ(parsed.bad, std::vector<std::string>{"2: the label is not one number: bad"});

  EXPECT_EQ(parser.rows(), 0);
  EXPECT_EQ(parser.highest_index(), -1);
  parser.feed("5 0:1\n");
  parser.end_text();
  EXPECT_THROW(parser.take(1), dstorm::ConfigError) << "an index below the base";
  EXPECT_EQ(taken_from(parser).labels, std::vector{5.0});
}

TEST(Svmlight, MakesAMatrixForTheKernels) {
  SvmlightParser<double> parser({});
  parser.feed("1 1:0.1 9:2\n0 4:1\n");
  parser.end_text();
  const SvmlightRows<double> rows = parser.take(1);
  const Csr<double> csr{rows.starts.span(), rows.columns.span(), rows.values.span(), 9};
  csr.check();
  EXPECT_EQ(csr.row(0).values[0], 0.1);
}

TEST(Svmlight, RefusesOptionsThatCannotBe) {
  EXPECT_THROW(SvmlightParser<float>({.first_index = -1}), dstorm::ConfigError);
  EXPECT_THROW(SvmlightParser<float>({.first_index = 1, .last_index = 0}), dstorm::ConfigError);
  EXPECT_THROW(SvmlightParser<float>({.threads = 0}), dstorm::ConfigError);
}

}  // namespace
}  // namespace learn
