#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "dstorm/errors.hpp"
#include "learn/dual_ascent.hpp"

namespace learn {
namespace {

// Two rows, and what an error may be about.
struct Given {
  DualOptions options;
  std::vector<float> values{1, 2, 3, 4};
  std::vector<float> targets{1, -1};
  std::vector<float> weights{1, 1};
  DualStart<float> start;
  std::vector<float> alphas;
  DualDeal<float> deal;

  DualAscent<float> make() const {
    return {options, Dense<float>{values, 2}, {targets, weights}, {alphas, start.intercept}, deal};
  }
};

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const dstorm::ConfigError& error) {
    return error.what();
  }
  return "";
}
std::string refusal_of(const std::function<void(Given&)>& change) {
  Given given;
  change(given);
  return refusal([&] { given.make(); });
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(DualAscent, AcceptsPlainRows) {
  EXPECT_EQ(refusal_of([](Given&) {}), "");
}

TEST(DualAscent, NamesTheOptionThatIsOutOfRange) {
  EXPECT_EQ(refusal_of([](Given& given) { given.options.c = 0; }),
            "C is 0; it must be above 0 and finite");
  EXPECT_EQ(refusal_of([](Given& given) { given.options.epsilon = -1e-9; }),
            "epsilon is -1e-09; it must be at least 0");
  EXPECT_EQ(refusal_of([](Given& given) { given.options.least_kappa = -2; }),
            "least_kappa is -2; it must be at least 0");
  EXPECT_EQ(refusal_of([](Given& given) { given.options.ranks = 0; }),
            "ranks is 0; it must be at least 1");
  EXPECT_NE(refusal_of([](Given& given) { given.options.loss = Loss::kHuber; }), "");
  EXPECT_EQ(refusal_of([](Given& given) { given.start.intercept = kNan; }),
            "the intercept to start with is nan; it must be finite");
}

TEST(DualAscent, NamesTheRowThatIsWrong) {
  EXPECT_EQ(refusal_of([](Given& given) { given.values[2] = kNan; }),
            "|x|^2 of row 1 is nan; it must be finite; replace values that are not, and scale "
            "columns down");
  EXPECT_NE(refusal_of([](Given& given) { given.values[0] = 1e30F; }), "");
  EXPECT_EQ(refusal_of([](Given& given) { given.targets[1] = 2; }),
            "the target of row 1 is 2; it must be -1 or 1 for this loss");
  EXPECT_EQ(refusal_of([](Given& given) {
              given.options.loss = Loss::kSquared;
              given.targets[0] = kNan;
            }),
            "the target of row 0 is nan; it must be finite");
  EXPECT_EQ(refusal_of([](Given& given) { given.weights[1] = -1; }),
            "the weight of row 1 is -1; it must be at least 0");
  EXPECT_EQ(refusal_of([](Given& given) { given.weights[1] = kNan; }),
            "the weight of row 1 is nan; it must be at least 0");
  EXPECT_EQ(refusal_of([](Given& given) { given.options.c = 1e300; }),
            "C times the weight of row 0 is inf; it must be finite; lower C or the weight");
  EXPECT_EQ(refusal_of([](Given& given) { given.alphas = {0, kNan}; }),
            "the alpha of row 1 is nan; it must be finite");
}

TEST(DualAscent, NamesTheLengthThatIsWrong) {
  EXPECT_EQ(refusal_of([](Given& given) { given.targets = {1}; }),
            "targets has 1 values; it needs 2, one for each row");
  EXPECT_EQ(refusal_of([](Given& given) { given.weights = {1}; }),
            "weights of rows has 1 values; it needs 2, one for each row");
  EXPECT_EQ(refusal_of([](Given& given) { given.alphas = {1}; }),
            "the alphas to start with has 1 values; it needs 2, one for each row");
  const Given given;
  DualAscent<float> ascent = given.make();
  std::vector<float> wrong(7);
  EXPECT_EQ(refusal([&] { ascent.take_change(wrong); }),
            "the change has 7 values; it needs 4, features + 2");
  EXPECT_NE(refusal([&] { ascent.add_changes(wrong); }), "");
  std::vector<double> wrong_sum(7);
  EXPECT_NE(refusal([&] { ascent.contribute({}, wrong_sum); }), "");
  EXPECT_NE(refusal([&] { ascent.settle(wrong_sum); }), "");
  EXPECT_NE(refusal([&] { ascent.losses({}, wrong_sum); }), "");
  EXPECT_NE(refusal([&] { ascent.gap({}, wrong_sum); }), "");
  EXPECT_NE(refusal([&] { ascent.copy_alphas(wrong); }), "");
}

TEST(DualAscent, ChecksTheRowsThatAreItsOwn) {
  const std::vector<std::int64_t> starts{0, 2, 4};
  const std::vector<std::int32_t> columns{0, 1, 1, 0};
  const std::vector<float> values{1, 2, 3, 4};
  const std::vector<float> targets{1, -1};
  const Csr<float> matrix{starts, columns, values, 2};
  const auto refusal_on_rank = [&](int rank) {
    std::vector<float> memory(8);
    std::vector<std::uint32_t> lists(2 * dealt_list_length(2, 2));
    DualOptions options;
    options.ranks = 2;
    return refusal(
        [&] { DualAscent<float>(options, matrix, {targets, {}}, {}, {memory, lists, rank}); });
  };
  EXPECT_EQ(refusal_on_rank(0), "");
  EXPECT_NE(refusal_on_rank(1).find("row 1 of the CSR matrix has column 0 after 1"),
            std::string::npos);
  EXPECT_NE(refusal([&] { DualAscent<float>({}, matrix, {targets, {}}); }), "");
}

TEST(DualAscent, NamesWhatIsWrongWithDealtRows) {
  const auto refusal_of_deal = [](std::size_t memory_length, std::size_t lists_length, int rank) {
    std::vector<float> memory(memory_length);
    std::vector<std::uint32_t> lists(lists_length);
    return refusal_of([&](Given& given) {
      given.options.ranks = 2;
      given.deal = {memory, lists, rank};
    });
  };
  const std::size_t length = 2 * dealt_list_length(2, 2);
  EXPECT_EQ(refusal_of_deal(8, length, 0), "");
  EXPECT_EQ(refusal_of_deal(8, length, 1), "");
  EXPECT_EQ(refusal_of_deal(7, length, 0),
            "the memory of dealt rows has 7 values; it needs 8, 4 values a row");
  EXPECT_EQ(refusal_of_deal(9, length, 0),
            "the memory of dealt rows has 9 values; it needs 8, 4 values a row");
  EXPECT_EQ(refusal_of_deal(8, length - 1, 0),
            "the lists of dealt rows has 135 values; it needs 136, dealt_list_length() values a "
            "rank");
  EXPECT_NE(refusal_of_deal(8, 0, 0), "");
  EXPECT_EQ(refusal_of_deal(8, length, 2),
            "the rank is 2; it must be from 0 to below the number of ranks");
  EXPECT_EQ(refusal_of_deal(8, length, -1),
            "the rank is -1; it must be from 0 to below the number of ranks");
}

TEST(DualAscent, NamesTooFewPiecesOfDealtRows) {
  Given given;
  given.options.ranks = 2;
  std::vector<float> memory(8);
  std::vector<std::uint32_t> lists(2 * dealt_list_length(2, 2));
  given.deal = {memory, lists, 0};
  DualAscent<float> ascent = given.make();
  std::vector<double> sum(ascent.contribution_length());
  ascent.contribute(ascent.scales(), sum);
  ascent.settle(sum);
  ascent.begin_sweep();
  EXPECT_NE(refusal([&] { ascent.sweep(0, 1); }).find("pieces is 1; it must be at least 2"),
            std::string::npos);
  EXPECT_EQ(refusal([&] { ascent.sweep(0, 2); }), "");
}

TEST(DualAscent, NamesTheLengthOfADealtRanksAlphas) {
  std::vector<float> memory(8);
  std::vector<std::uint32_t> lists(2 * dealt_list_length(2, 2));
  Given given;
  given.options.ranks = 2;
  given.deal = {memory, lists, 1};
  const DualAscent<float> ascent = given.make();
  std::vector<float> alphas(2);
  EXPECT_EQ(refusal([&] { ascent.copy_alphas(alphas); }),
            "alphas has 2 values; it needs 1, one for each of the rank's rows");
}

TEST(DualAscent, RefusesCallsOutOfTurn) {
  Given given;
  DualAscent<float> ascent = given.make();
  EXPECT_EQ(refusal([&] { ascent.sweep(2, 2); }),
            "the piece is 2; it must be from 0 to below the number of pieces");
  EXPECT_NE(refusal([&] { ascent.sweep(0, 0); }), "");
  ascent.set_ranks(2);
  EXPECT_NE(refusal([&] { ascent.begin_sweep(); }), "");
  EXPECT_NE(refusal([&] { measure(ascent); }), "");
  EXPECT_NE(refusal([&] { ascent.set_ranks(0); }), "");
}

TEST(DualAscent, RefusesSumsThatAreNotFinite) {
  const Given given;
  DualAscent<float> ascent = given.make();
  EXPECT_EQ(refusal([&] { ascent.settle(std::vector<double>{1, kNan}); }),
            "|w|^2 is nan; it must be finite; scale columns down, or lower C");
}

}  // namespace
}  // namespace learn
