#include "dstorm/graph.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numbers>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "dstorm/errors.hpp"
#include "sanitizers.hpp"

namespace {

using dstorm::ConfigError;
using dstorm::Graph;
using Pairs = std::vector<std::pair<int, int>>;

std::vector<Graph> every_kind() {
  return {Graph::all(),      Graph::halton(),      Graph::ring(),         Graph::exponential(),
          Graph::one_peer(), Graph::random(1, 17), Graph::random(3, 170), Graph::star()};
}

// Enough rounds to show a whole graph: a period, or for a random graph some early and late rounds.
std::vector<std::uint64_t> rounds_of(const Graph& graph, int size) {
  if (!graph.repeats()) return {0, 1, 12345, std::uint64_t{1} << 63};
  std::vector<std::uint64_t> rounds(graph.period(size));
  std::iota(rounds.begin(), rounds.end(), std::uint64_t{0});
  return rounds;
}

// The number of ranks that have a path from rank 0. `next(rank)` returns those one step from
// `rank`.
template <class Next>
int reached_along(int size, Next&& next) {
  std::vector<bool> reached(static_cast<std::size_t>(size));
  reached[0] = true;
  std::vector<int> open{0};
  int count = 0;
  while (!open.empty()) {
    const int rank = open.back();
    open.pop_back();
    ++count;
    for (const int neighbour : next(rank)) {
      if (!reached[static_cast<std::size_t>(neighbour)]) open.push_back(neighbour);
      reached[static_cast<std::size_t>(neighbour)] = true;
    }
  }
  return count;
}

int reached_over(const std::vector<int>& offsets, int size) {
  return reached_along(size, [&](int rank) {
    std::vector<int> next = offsets;
    for (int& neighbour : next) neighbour = (rank + neighbour) % size;
    return next;
  });
}

// N/2, N/4, 3N/4, N/8, ...: `count` numbers of the base-2 Halton sequence times `size`.
std::vector<int> published_halton(int size, int count) {
  std::vector<int> offsets;
  for (int index = 1; index <= count; ++index) {
    double number = 0;
    double digit = 0.5;
    for (int rest = index; rest > 0; rest /= 2, digit /= 2) number += digit * (rest % 2);
    offsets.push_back(static_cast<int>(size * number));
  }
  return offsets;
}

int floor_log2(int size) { return static_cast<int>(std::floor(std::log2(size))); }

double ring_gap(int size) { return 1 - (1 + 2 * std::cos(2 * std::numbers::pi / size)) / 3; }

// The text of the ConfigError that `call` throws.
template <class Call>
std::string refusal(Call&& call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

void expect_mentions(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' in: " << message;
  }
}

Pairs both_ways(const Pairs& pairs) {
  Pairs doubled = pairs;
  for (const auto& [a, b] : pairs) doubled.emplace_back(b, a);
  return doubled;
}

Pairs pairs_of(const Graph& graph, int size) {
  Pairs pairs;
  for (int rank = 0; rank < size; ++rank) {
    for (const int to : graph.out(rank, size)) pairs.emplace_back(rank, to);
  }
  return pairs;
}

// ---- neighbours ----

constexpr int kMostRanks = kSanitized ? 40 : 130;

TEST(Graph, NeighboursAreSortedDistinctAndNeverTheRankItself) {
  for (const Graph& graph : every_kind()) {
    for (int size = 1; size <= kMostRanks; ++size) {
      for (const std::uint64_t round : rounds_of(graph, size)) {
        for (int rank = 0; rank < size; ++rank) {
          for (const auto& ranks : {graph.out(rank, size, round), graph.in(rank, size, round)}) {
            ASSERT_TRUE(std::is_sorted(ranks.begin(), ranks.end(), std::less_equal<>()))
                << graph.name() << " rank " << rank << " of " << size << " round " << round;
            ASSERT_EQ(std::count(ranks.begin(), ranks.end(), rank), 0) << graph.name();
            ASSERT_TRUE(ranks.empty() || (ranks.front() >= 0 && ranks.back() < size));
          }
        }
      }
    }
  }
}

TEST(Graph, InListsExactlyThoseWhoseOutListsTheRank) {
  for (const Graph& graph : every_kind()) {
    for (int size = 1; size <= kMostRanks; ++size) {
      for (const std::uint64_t round : rounds_of(graph, size)) {
        std::vector<std::vector<int>> senders(static_cast<std::size_t>(size));
        for (int rank = 0; rank < size; ++rank) {
          for (const int to : graph.out(rank, size, round)) {
            senders[static_cast<std::size_t>(to)].push_back(rank);
          }
        }
        for (int rank = 0; rank < size; ++rank) {
          ASSERT_EQ(graph.in(rank, size, round), senders[static_cast<std::size_t>(rank)])
              << graph.name() << " rank " << rank << " of " << size << " round " << round;
        }
      }
    }
  }
}

TEST(Graph, EveryRankReachesEveryOtherOverOnePeriod) {
  for (const Graph& graph : every_kind()) {
    for (int size = 1; size <= kMostRanks; ++size) {
      EXPECT_NO_THROW(graph.check(size)) << graph.name();
      const std::vector<std::uint64_t> rounds = rounds_of(graph, size);
      const auto over_rounds = [&](auto neighbours) {
        return reached_along(size, [&](int rank) {
          std::vector<int> next;
          for (const std::uint64_t round : rounds) {
            for (const int neighbour : neighbours(rank, round)) next.push_back(neighbour);
          }
          return next;
        });
      };
      EXPECT_EQ(over_rounds([&](int r, std::uint64_t t) { return graph.out(r, size, t); }), size);
      EXPECT_EQ(over_rounds([&](int r, std::uint64_t t) { return graph.in(r, size, t); }), size);
    }
  }
}

TEST(Graph, JobOfOneHasNoNeighboursAndAgreesAtOnce) {
  for (const Graph& graph : every_kind()) {
    EXPECT_TRUE(graph.out(0, 1).empty()) << graph.name();
    EXPECT_TRUE(graph.in(0, 1, 5).empty()) << graph.name();
    EXPECT_TRUE(graph.weights(0, 1).empty()) << graph.name();
    EXPECT_EQ(graph.period(1), 1U) << graph.name();
    EXPECT_EQ(graph.spectral_gap(1), 1.0) << graph.name();
  }
}

TEST(Graph, JobOfTwoHasOneNeighbour) {
  for (const Graph& graph : every_kind()) {
    EXPECT_EQ(graph.out(0, 2), std::vector<int>{1}) << graph.name();
    EXPECT_EQ(graph.in(0, 2), std::vector<int>{1}) << graph.name();
    EXPECT_DOUBLE_EQ(graph.spectral_gap(2), 1.0) << graph.name();
  }
}

TEST(Graph, NeighboursOfEachKindAreAsDescribed) {
  using Ranks = std::vector<int>;
  EXPECT_EQ(Graph::all().out(2, 5), (Ranks{0, 1, 3, 4}));
  EXPECT_EQ(Graph::ring().out(0, 5), (Ranks{1, 4}));
  EXPECT_EQ(Graph::halton().out(0, 12), (Ranks{1, 3, 6}));
  EXPECT_EQ(Graph::halton().out(10, 12), (Ranks{1, 4, 11}));
  EXPECT_EQ(Graph::exponential().out(0, 12), (Ranks{1, 2, 4, 8}));
  EXPECT_EQ(Graph::one_peer().out(0, 12, 2), (Ranks{4}));
  EXPECT_EQ(Graph::one_peer().out(0, 12, 4), (Ranks{1}));
  EXPECT_EQ(Graph::star().out(0, 4), (Ranks{1, 2, 3}));
  EXPECT_EQ(Graph::star().in(0, 4), (Ranks{1, 2, 3}));
  EXPECT_EQ(Graph::star().out(3, 4), (Ranks{0}));
  EXPECT_EQ(Graph::edges({{2, 0}, {0, 1}, {1, 2}, {0, 1}}).out(0, 3), (Ranks{1}));
  EXPECT_EQ(Graph::edges({{2, 0}, {0, 1}, {1, 2}, {0, 1}}).in(0, 3), (Ranks{2}));
}

TEST(Graph, TheLargestJobsDoNotOverflow) {
  constexpr int kSize = 2'000'000'000;
  EXPECT_EQ(Graph::ring().out(kSize - 1, kSize), (std::vector<int>{0, kSize - 2}));
  EXPECT_EQ(Graph::halton().out(kSize - 1, kSize).size(), 30U);
  EXPECT_EQ(Graph::exponential().in(0, kSize).size(), 31U);
  EXPECT_EQ(Graph::one_peer().out(kSize - 1, kSize, 30), (std::vector<int>{(1 << 30) - 1}));
}

// ---- HALTON ----

TEST(Halton, IsConnectedAtEverySizeWithLogNNeighbours) {
  for (int size = 1; size <= 1024; ++size) {
    EXPECT_NO_THROW(Graph::halton().check(size)) << size;
    const std::vector<int> offsets = Graph::halton().out(0, size);
    EXPECT_EQ(static_cast<int>(offsets.size()), floor_log2(size)) << size;
    EXPECT_EQ(reached_over(offsets, size), size);
  }
}

TEST(Halton, PublishedRuleIsDisconnected) {
  EXPECT_EQ(published_halton(12, floor_log2(12)), (std::vector<int>{6, 3, 9}));
  EXPECT_EQ(reached_over(published_halton(12, 3), 12), 4) << "every third rank of 12 only";
  EXPECT_EQ(reached_over(published_halton(8, 3), 8), 4) << "the even ranks of 8 only";
  int disconnected = 0;
  for (int size = 2; size <= 1024; ++size) {
    if (reached_over(published_halton(size, floor_log2(size)), size) < size) ++disconnected;
  }
  EXPECT_EQ(disconnected, 81) << "of the sizes up to 1024";
}

TEST(Halton, IsThePublishedRuleWhereThatIsInOrder) {
  for (int size = 2; size <= 7; ++size) {
    std::vector<int> published = published_halton(size, floor_log2(size));
    std::sort(published.begin(), published.end());
    EXPECT_EQ(Graph::halton().out(0, size), published) << size;
  }
}

TEST(Halton, GapFallsOnlyAsTheNumberOfNeighboursGrows) {
  for (int size = 4; size <= 1024; ++size) {
    EXPECT_GT(Graph::halton().spectral_gap(size), 1.2 / (floor_log2(size) + 1)) << size;
  }
}

// ---- RANDOM ----

TEST(Random, IsAPureFunctionOfSeedRoundAndSize) {
  for (const std::uint64_t round : {0U, 1U, 77U}) {
    EXPECT_EQ(Graph::random(2, 7).out(3, 16, round), Graph::random(2, 7).out(3, 16, round));
  }
}

// If the drawing changed with the compiler, the machine or the release, ranks of one job that
// differ in these would use different graphs without notice.
TEST(Random, DrawsTheSameOnEveryMachineAndInEveryRelease) {
  EXPECT_EQ(Graph::random(2, 7).out(0, 16, 0), (std::vector<int>{6, 15}));
  EXPECT_EQ(Graph::random(2, 7).out(0, 16, 1), (std::vector<int>{3, 8}));
  EXPECT_EQ(Graph::random(3, 0xfeedfacecafebeef).out(99, 100, 123456789),
            (std::vector<int>{40, 45, 49}));
}

TEST(Random, DiffersBySeedAndByRound) {
  const Graph graph = Graph::random(2, 7);
  const Graph other_seed = Graph::random(2, 8);
  int same_by_round = 0;
  int same_by_seed = 0;
  for (int rank = 0; rank < 64; ++rank) {
    same_by_round += graph.out(rank, 64, 0) == graph.out(rank, 64, 1);
    same_by_seed += graph.out(rank, 64, 0) == other_seed.out(rank, 64, 0);
  }
  EXPECT_LE(same_by_round, 2);
  EXPECT_LE(same_by_seed, 2);
}

TEST(Random, DrawsBeyondTheRoundsItIsJudgedOver) {
  const Graph graph = Graph::random(2, 7);
  EXPECT_FALSE(graph.repeats());
  EXPECT_NE(graph.out(0, 64, 0), graph.out(0, 64, graph.period(64)));
}

TEST(Random, EveryRankSendsToAndHearsFromTheSameNumber) {
  for (const int k : {1, 2, 5, 11}) {
    for (std::uint64_t round = 0; round < 50; ++round) {
      for (int rank = 0; rank < 12; ++rank) {
        EXPECT_EQ(Graph::random(k, 3).out(rank, 12, round).size(), static_cast<std::size_t>(k));
        EXPECT_EQ(Graph::random(k, 3).in(rank, 12, round).size(), static_cast<std::size_t>(k));
      }
    }
  }
}

TEST(Random, SendsToEveryoneWhereTheJobIsSmallerThanK) {
  EXPECT_EQ(Graph::random(9, 1).out(1, 4), (std::vector<int>{0, 2, 3}));
  EXPECT_EQ(Graph::random(9, 1).spectral_gap(4), 1.0);
}

TEST(Random, EveryPairIsDrawnAboutAsOften) {
  constexpr int kSize = 7;
  constexpr int kRounds = 6000;
  std::vector<std::vector<int>> drawn(kSize, std::vector<int>(kSize));
  for (int round = 0; round < kRounds; ++round) {
    for (int rank = 0; rank < kSize; ++rank) {
      for (const int to : Graph::random(2, 5).out(rank, kSize, static_cast<std::uint64_t>(round))) {
        ++drawn[static_cast<std::size_t>(rank)][static_cast<std::size_t>(to)];
      }
    }
  }
  const double expected = kRounds * 2.0 / (kSize - 1);
  for (int rank = 0; rank < kSize; ++rank) {
    for (int to = 0; to < kSize; ++to) {
      if (to == rank) continue;
      EXPECT_NEAR(drawn[static_cast<std::size_t>(rank)][static_cast<std::size_t>(to)], expected,
                  expected / 10);
    }
  }
}

TEST(Random, IsConnectedInEachRoundWithASingleNeighbour) {
  const Graph graph = Graph::random(1, 9);
  for (std::uint64_t round = 0; round < 100; ++round) {
    int rank = 0;
    int steps = 0;
    do {
      rank = graph.out(rank, 12, round).front();
      ++steps;
    } while (rank != 0);
    EXPECT_EQ(steps, 12) << "round " << round;
  }
}

TEST(Random, RefusesToSendToNoOne) {
  expect_mentions(refusal([] { Graph::random(0, 1); }), {"k=0", "at least 1"});
  expect_mentions(refusal([] { Graph::random(-3, 1); }), {"k=-3", "at least 1"});
}

// ---- weights ----

TEST(Weights, KeepTheMeanWhereTheGraphAllowsIt) {
  std::vector<Graph> graphs = every_kind();
  const Pairs path = both_ways({{0, 1}, {1, 2}, {2, 3}, {3, 4}, {2, 5}, {5, 6}, {5, 7}, {8, 7}});
  for (int size = 1; size <= 40; ++size) {
    if (size == 9) graphs.push_back(Graph::edges(path));
    if (size == 10) graphs.pop_back();
    for (const Graph& graph : graphs) {
      for (const std::uint64_t round : rounds_of(graph, size)) {
        std::vector<double> column(static_cast<std::size_t>(size));
        for (int rank = 0; rank < size; ++rank) {
          const std::vector<int> in = graph.in(rank, size, round);
          const std::vector<double> weights = graph.weights(rank, size, round);
          ASSERT_EQ(in.size(), weights.size());
          const double row = std::accumulate(weights.begin(), weights.end(), 0.0);
          ASSERT_LT(row, 1.0) << graph.name() << ": nothing is left for the rank's own value";
          column[static_cast<std::size_t>(rank)] += 1 - row;
          for (std::size_t i = 0; i < in.size(); ++i) {
            ASSERT_GT(weights[i], 0.0) << graph.name();
            column[static_cast<std::size_t>(in[i])] += weights[i];
          }
        }
        for (const double sum : column) ASSERT_NEAR(sum, 1.0, 1e-12) << graph.name();
      }
    }
  }
}

TEST(Weights, AreEqualWhereAllRanksHaveAsManyNeighbours) {
  EXPECT_EQ(Graph::ring().weights(3, 8), (std::vector<double>{1.0 / 3, 1.0 / 3}));
  EXPECT_EQ(Graph::all().weights(0, 4), (std::vector<double>{0.25, 0.25, 0.25}));
  EXPECT_EQ(Graph::edges({{0, 1}, {1, 2}, {2, 0}}).weights(0, 3), (std::vector<double>{0.5}));
}

TEST(Weights, AreThoseOfTheBetterConnectedEndWhereEdgesGoBothWays) {
  const Graph graph = Graph::edges(both_ways({{0, 1}, {1, 2}, {1, 3}, {0, 4}}));
  EXPECT_EQ(graph.weights(0, 5), (std::vector<double>{1.0 / 4, 1.0 / 3}));
  EXPECT_EQ(graph.weights(4, 5), (std::vector<double>{1.0 / 3}));
}

TEST(Weights, AreThoseOfAnAverageWhereEdgesGoOneWay) {
  const Graph graph = Graph::edges({{0, 1}, {1, 2}, {2, 0}, {0, 2}});
  EXPECT_EQ(graph.weights(2, 3), (std::vector<double>{1.0 / 3, 1.0 / 3}));
  EXPECT_EQ(graph.weights(0, 3), (std::vector<double>{1.0 / 2}));
}

// ---- spectral gap ----

TEST(SpectralGap, OfAllIsOne) {
  for (const int size : {2, 3, 8, 100, 1000}) EXPECT_EQ(Graph::all().spectral_gap(size), 1.0);
}

TEST(SpectralGap, OfARingIsItsClosedForm) {
  for (const int size : {3, 4, 5, 16, 100, 1001}) {
    EXPECT_NEAR(Graph::ring().spectral_gap(size), ring_gap(size), 1e-12) << size;
  }
}

TEST(SpectralGap, OfOnePeerIsOneAtPowersOfTwo) {
  for (const int size : {2, 4, 8, 64, 1024}) {
    EXPECT_EQ(Graph::one_peer().spectral_gap(size), 1.0) << "exact average after log2 N rounds";
  }
  EXPECT_LT(Graph::one_peer().spectral_gap(6), 0.99);
}

TEST(SpectralGap, OfExponentialAndHaltonIsTwoOverNeighboursPlusOneAtPowersOfTwo) {
  for (int log2_size = 1; log2_size <= 10; ++log2_size) {
    const double expected = 2.0 / (log2_size + 1);
    EXPECT_NEAR(Graph::exponential().spectral_gap(1 << log2_size), expected, 1e-12);
    EXPECT_NEAR(Graph::halton().spectral_gap(1 << log2_size), expected, 1e-12);
  }
}

TEST(SpectralGap, OfAStarIsOneOverN) {
  for (const int size : {3, 4, 50, 1024}) {
    EXPECT_NEAR(Graph::star().spectral_gap(size), 1.0 / size, 1e-12) << size;
  }
}

TEST(SpectralGap, OfAPathIsItsClosedForm) {
  for (const int size : {3, 10, 100, 400}) {
    Pairs pairs;
    for (int rank = 1; rank < size; ++rank) pairs.emplace_back(rank - 1, rank);
    const double expected = 2.0 / 3 * (1 - std::cos(std::numbers::pi / size));
    EXPECT_NEAR(Graph::edges(both_ways(pairs)).spectral_gap(size), expected, 1e-11) << size;
  }
}

// The user's edges go through Lanczos, the built-in circulants through a closed form.
TEST(SpectralGap, IsTheSameForAGraphAndForItsEdges) {
  for (const Graph& graph :
       {Graph::all(), Graph::halton(), Graph::ring(), Graph::exponential(), Graph::star()}) {
    for (const int size : {2, 3, 8, 12, 31, 60}) {
      const Graph copy = Graph::edges(pairs_of(graph, size));
      EXPECT_NEAR(copy.spectral_gap(size), graph.spectral_gap(size), 1e-12)
          << graph.name() << " at " << size;
    }
  }
}

TEST(SpectralGap, OfADirectedCycleIsItsClosedForm) {
  for (const int size : {3, 8, 200}) {
    Pairs pairs;
    for (int rank = 0; rank < size; ++rank) pairs.emplace_back(rank, (rank + 1) % size);
    const double expected = 1 - std::cos(std::numbers::pi / size);
    EXPECT_NEAR(Graph::edges(pairs).spectral_gap(size), expected, 1e-12) << size;
  }
}

// W = [[1/2, 0, 1/2], [1/2, 1/2, 0], [1/3, 1/3, 1/3]] has the stationary distribution (4, 2, 3)/9.
// The trace of D W D^-1 W^T without the eigenvalue 1 is s^2 + t^2, and its determinant is s^2 t^2 =
// det(W)^2.
TEST(SpectralGap, IsTakenInTheStationaryNormIfColumnsDoNotAddUp) {
  const Graph graph = Graph::edges({{0, 1}, {1, 2}, {2, 0}, {0, 2}});
  const double weight[3][3] = {{1. / 2, 0, 1. / 2}, {1. / 2, 1. / 2, 0}, {1. / 3, 1. / 3, 1. / 3}};
  const double stationary[3] = {4. / 9, 2. / 9, 3. / 9};
  double sum = -1;
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) {
      sum += stationary[i] * weight[i][j] * weight[i][j] / stationary[j];
    }
  }
  const double product = 1.0 / 144;  // det(W) = 1/12
  const double largest = (sum + std::sqrt(sum * sum - 4 * product)) / 2;
  EXPECT_NEAR(graph.spectral_gap(3), 1 - std::sqrt(largest), 1e-12);
}

TEST(SpectralGap, SurvivesRanksThatCountForNextToNothing) {
  constexpr int kSize = 300;  // from 16 on, each counts for less than a tenth of the one before
  Pairs pairs;
  for (int rank = 0; rank < kSize; ++rank) {
    if (rank + 1 < kSize) pairs.emplace_back(rank + 1, rank);
    for (int lower = 0; lower < std::min(rank, 16); ++lower) pairs.emplace_back(lower, rank);
  }
  const double gap = Graph::edges(pairs).spectral_gap(kSize);
  EXPECT_GT(gap, 0.0);
  EXPECT_LT(gap, 1.0);
}

TEST(SpectralGap, OfADisconnectedGraphIsZero) {
  EXPECT_EQ(Graph::edges(both_ways({{0, 1}, {2, 3}})).spectral_gap(4), 0.0);
  EXPECT_EQ(Graph::edges({{0, 1}, {1, 0}, {1, 2}}).spectral_gap(3), 0.0);
}

TEST(SpectralGap, OfRandomIsNearThatOfAsManyIndependentDrawings) {
  for (const int size : {16, 64, 256}) {
    for (const int k : {1, 2, 4}) {
      const double expected = 1 - 1 / std::sqrt(k + 1.0);
      EXPECT_NEAR(Graph::random(k, 11).spectral_gap(size), expected, 0.15) << k << " of " << size;
    }
  }
}

// ---- refusals ----

TEST(Check, NamesTheRanksThatCannotBeReached) {
  const Graph graph = Graph::edges({{0, 1}, {1, 0}, {2, 0}, {3, 4}, {4, 3}, {3, 2}});
  const std::string message = refusal([&] { graph.check(5); });
  expect_mentions(message, {"ranks 2, 3, 4 cannot be reached from rank 0", "add edges"});
  EXPECT_EQ(message.find("cannot reach rank 0"), std::string::npos) << message;
}

TEST(Check, NamesTheRanksThatCannotReachTheOthers) {
  const std::string message = refusal([] { Graph::edges({{0, 1}, {1, 0}, {1, 2}}).check(3); });
  expect_mentions(message, {"rank 2 cannot reach rank 0"});
}

TEST(Check, NamesARankWithoutAnyEdge) {
  const std::string message = refusal([] { Graph::edges({{0, 2}, {2, 0}}).check(3); });
  expect_mentions(message, {"rank 1 cannot be reached from rank 0", "rank 1 cannot reach rank 0"});
}

TEST(Check, OfALargeJobNamesSomeRanksAndCountsTheRest) {
  const std::string message = refusal([] { Graph::edges({{0, 99}, {99, 0}}).check(100); });
  expect_mentions(message, {"ranks 1, 2, 3", "and 82 more"});
}

TEST(Edges, BeyondTheJobAreRefusedByName) {
  const Graph graph = Graph::edges({{0, 1}, {1, 0}, {1, 5}, {5, 0}});
  for (const auto& message : {refusal([&] { graph.check(4); }), refusal([&] { graph.out(0, 4); }),
                              refusal([&] { graph.spectral_gap(4); })}) {
    expect_mentions(message, {"(1, 5)", "4 ranks", "start 6 ranks"});
  }
}

TEST(Edges, OfASmallerJobAreRefused) {
  const Graph graph = Graph::edges({{0, 1}, {1, 0}});
  expect_mentions(refusal([&] { graph.check(4); }), {"0..1", "rank", "3", "start 2 ranks"});
}

TEST(Edges, WithANegativeRankOrASelfLoopAreRefused) {
  expect_mentions(refusal([] { Graph::edges({{0, 1}, {1, -1}}); }), {"(1, -1)", "negative"});
  expect_mentions(refusal([] { Graph::edges({{0, 1}, {1, 1}}); }), {"(1, 1)", "rank 1 to itself"});
}

TEST(Edges, WithAHugeRankCostNoMemory) {
  const Graph graph = Graph::edges({{0, 2'147'483'647}, {2'147'483'647, 0}});
  expect_mentions(refusal([&] { graph.out(0, 2); }), {"2147483647", "2147483648"});
}

// Whichever ranks die, the others stay connected, also with edges of the user's own, and the
// repaired graph has only live ranks.
TEST(Repaired, IsConnectedWhoeverIsLost) {
  std::vector<Graph> graphs = every_kind();
  for (const Graph& graph : {Graph::ring(), Graph::halton(), Graph::star()}) {
    Pairs pairs;
    for (int rank = 0; rank < 9; ++rank) {
      for (const int to : graph.out(rank, 9)) pairs.emplace_back(rank, to);
    }
    graphs.push_back(Graph::edges(pairs));
  }
  Pairs circle;
  for (int rank = 0; rank < 9; ++rank) circle.emplace_back(rank, (rank + 1) % 9);
  graphs.push_back(Graph::edges(circle));
  for (const Graph& graph : graphs) {
    for (unsigned lost = 0; lost < 511; ++lost) {  // every set of bits except all nine
      std::vector<int> living;
      for (int rank = 0; rank < 9; ++rank) {
        if ((lost >> rank & 1U) == 0) living.push_back(rank);
      }
      const Graph repaired = graph.repaired(living, 9);
      EXPECT_NO_THROW(repaired.check(static_cast<int>(living.size())))
          << graph.name() << " without " << lost;
    }
  }
}

TEST(Repaired, LeadsPastTheLostAndLeavesOtherEdgesAlone) {
  const Graph line = Graph::edges({{0, 1}, {1, 0}, {1, 2}, {2, 1}, {2, 3}, {3, 2}});
  const std::vector<int> living{0, 2, 3};
  EXPECT_EQ(line.repaired(living, 4), Graph::edges({{0, 1}, {1, 0}, {1, 2}, {2, 1}}));
  const std::vector<int> all{0, 1, 2, 3};
  EXPECT_EQ(line.repaired(all, 4), line);
  EXPECT_EQ(Graph::halton().repaired(living, 4), Graph::halton());
}

TEST(Graph, RankOrSizeOutOfRangeIsRefused) {
  for (const Graph& graph : every_kind()) {
    expect_mentions(refusal([&] { graph.out(4, 4); }), {"rank 4", "size 4", "0..3"});
    expect_mentions(refusal([&] { graph.in(-1, 4); }), {"rank -1", "0..3"});
    expect_mentions(refusal([&] { graph.weights(9, 4); }), {"rank 9"});
    expect_mentions(refusal([&] { graph.out(0, 0); }), {"size of the job is 0", "at least 1"});
    expect_mentions(refusal([&] { graph.check(-2); }), {"size of the job is -2", "at least 1"});
    EXPECT_THROW(graph.period(0), ConfigError);
    EXPECT_THROW(graph.spectral_gap(0), ConfigError);
  }
}

// ---- identity ----

TEST(Graph, FingerprintsAreEqualExactlyWhereGraphsAre) {
  std::vector<Graph> graphs = every_kind();
  graphs.push_back(Graph::random(1, 18));
  graphs.push_back(Graph::random(2, 17));
  graphs.push_back(Graph::edges({{0, 1}, {1, 0}}));
  graphs.push_back(Graph::edges({{0, 1}, {1, 0}, {1, 2}, {2, 1}}));
  for (std::size_t a = 0; a < graphs.size(); ++a) {
    for (std::size_t b = 0; b < graphs.size(); ++b) {
      EXPECT_EQ(graphs[a] == graphs[b], a == b);
      EXPECT_EQ(graphs[a].fingerprint() == graphs[b].fingerprint(), a == b);
    }
  }
}

TEST(Graph, OrderAndRepetitionOfEdgesDoNotMatter) {
  const Graph graph = Graph::edges({{0, 1}, {1, 0}});
  const Graph other = Graph::edges({{1, 0}, {0, 1}, {1, 0}});
  EXPECT_EQ(graph, other);
  EXPECT_EQ(graph.fingerprint(), other.fingerprint());
}

TEST(Graph, NamesSayHowTheGraphWasMade) {
  EXPECT_EQ(Graph::halton().name(), "HALTON");
  EXPECT_EQ(Graph::one_peer().name(), "ONE_PEER");
  EXPECT_EQ(Graph::random(2, 7).name(), "RANDOM(2, seed=7)");
  EXPECT_EQ(Graph::edges({{0, 1}, {1, 0}}).name(), "Graph(2 edges)");
}

TEST(Graph, OnlyOnePeerAndRandomVaryByRound) {
  EXPECT_TRUE(Graph::halton().is_static());
  EXPECT_FALSE(Graph::one_peer().is_static());
  EXPECT_FALSE(Graph::random(1, 1).is_static());
  EXPECT_EQ(Graph::one_peer().period(12), 4U);
  EXPECT_EQ(Graph::all().period(12), 1U);
}

TEST(DescribeRanks, ReadsAsInASentence) {
  EXPECT_EQ(dstorm::describe_ranks({3}), "rank 3");
  EXPECT_EQ(dstorm::describe_ranks({1, 4, 7}), "ranks 1, 4, 7");
  EXPECT_EQ(dstorm::describe_ranks({}), "no rank");
}

}  // namespace
