#include "learn/topic_tokens.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>

#include "dstorm/errors.hpp"
#include "learn/splitmix.hpp"
#include "learn/topic_inference.hpp"
#include "learn/topic_kernels.hpp"
#include "sanitizers.hpp"

namespace learn {
namespace {

struct Corpus {
  std::vector<std::int64_t> starts{0};
  std::vector<std::int32_t> words;
  std::vector<std::int32_t> counts;
  std::int64_t vocabulary = 0;

  WordCounts view() const { return {starts, words, counts, vocabulary}; }
  void add(std::int32_t word, std::int32_t count) {
    words.push_back(word);
    counts.push_back(count);
  }
  void end_document() { starts.push_back(std::ssize(words)); }
  std::int64_t tokens() const {
    return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  }
};

// Each document has words of two of the topics; topic k has words 10 k to 10 k + 9.
Corpus separate_topics(std::int32_t topics, int documents) {
  Corpus corpus;
  corpus.vocabulary = 10 * topics;
  SplitMix random(7);
  for (int d = 0; d < documents; ++d) {
    const auto a = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(topics)));
    const auto b = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(topics)));
    for (int n = 0; n < 30; ++n) {
      const std::int32_t topic = random.below(2) == 0 ? a : b;
      corpus.add(topic * 10 + static_cast<std::int32_t>(random.below(10)), 1);
    }
    corpus.end_document();
  }
  return corpus;
}

struct Counts {
  Counts(std::int64_t vocabulary, std::int64_t topics)
      : by_word(static_cast<std::size_t>(vocabulary * topics)),
        totals(static_cast<std::size_t>(topics)) {}
  TopicCounts view() { return {by_word, totals}; }

  std::vector<std::int32_t> by_word;
  std::vector<std::int64_t> totals;
};

TopicPriors priors(std::int64_t topics) {
  return {std::vector<double>(static_cast<std::size_t>(topics), 0.1), 0.01};
}

// The counts, made anew from the topics that save() returns.
Counts recounted(const TopicTokens& tokens, const Corpus& corpus, std::int64_t topics) {
  std::vector<std::uint16_t> saved(static_cast<std::size_t>(tokens.size()));
  tokens.save(saved);
  Counts counts(corpus.vocabulary, topics);
  std::size_t at = 0;
  for (std::size_t n = 0; n < corpus.words.size(); ++n) {
    for (std::int32_t i = 0; i < corpus.counts[n]; ++i, ++at) {
      const auto row = static_cast<std::size_t>(corpus.words[n] * topics);
      ++counts.by_word[row + saved[at]];
      ++counts.totals[saved[at]];
    }
  }
  return counts;
}

void sweep(TopicTokens& tokens, const TopicCounts& counts, const TopicPriors& given,
           std::uint64_t seed, std::int64_t steps = 2) {
  for (std::int64_t step = 0; step < steps; ++step) {
    tokens.sweep(counts, given, seed + static_cast<std::uint64_t>(step) * 1000003, step, steps);
  }
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const dstorm::ConfigError& error) {
    return error.what();
  }
  return "nothing refused";
}

TEST(TopicTokens, CountsAreThoseOfTheTokensAfterEachSweep) {
  constexpr std::int64_t kTopics = 20;
  const Corpus corpus = separate_topics(5, 100);
  TopicTokens tokens(corpus.view(), kTopics);
  Counts counts(corpus.vocabulary, kTopics);
  tokens.draw(counts.view(), priors(kTopics), 1);
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    sweep(tokens, counts.view(), priors(kTopics), seed);
    const Counts again = recounted(tokens, corpus, kTopics);
    ASSERT_EQ(counts.by_word, again.by_word);
    ASSERT_EQ(counts.totals, again.totals);
    ASSERT_EQ(std::accumulate(counts.totals.begin(), counts.totals.end(), std::int64_t{0}),
              corpus.tokens());
  }
}

TEST(TopicTokens, SweepsFindSeparateTopics) {
  constexpr std::int32_t kTopics = 5;
  const Corpus corpus = separate_topics(kTopics, kSanitized ? 60 : 300);
  TopicTokens tokens(corpus.view(), kTopics);
  Counts counts(corpus.vocabulary, kTopics);
  tokens.draw(counts.view(), priors(kTopics), 1);
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    sweep(tokens, counts.view(), priors(kTopics), seed);
  }
  std::int64_t in_main_topic = 0;
  for (std::size_t topic = 0; topic < kTopics; ++topic) {
    std::vector<std::int64_t> of_words(kTopics);
    for (std::size_t n = 0; n < 10 * kTopics; ++n) {
      of_words[n % kTopics] += counts.by_word[topic * 10 * kTopics + n];
    }
    in_main_topic += *std::max_element(of_words.begin(), of_words.end());
  }
  EXPECT_GT(in_main_topic, corpus.tokens() * 95 / 100);
}

// The row of word 1 holds its token in topic 0. Tokens of other ranks are in both rows, so the
// probabilities of word 0's token are known.
TEST(TopicTokens, ATokenHasEachTopicAsOftenAsTheOtherTokensSay) {
  const std::vector<double> alpha{0.3, 1.0, 0.5};
  constexpr double kBeta = 0.5;
  Corpus corpus;
  corpus.vocabulary = 2;
  corpus.add(0, 1);
  corpus.add(1, 1);
  corpus.end_document();
  TopicTokens tokens(corpus.view(), 3);
  Counts counts(2, 3);
  counts.by_word = {2, 3, 0, 1000000, 0, 0};
  counts.totals = {1000002, 500003, 500000};
  tokens.draw(counts.view(), {alpha, kBeta}, 1);
  std::vector<double> found(3);
  constexpr int kSweeps = kSanitized ? 4000 : 40000;
  for (std::uint64_t seed = 0; seed < kSweeps; ++seed) {
    sweep(tokens, counts.view(), {alpha, kBeta}, seed);
    for (std::size_t k = 0; k < 3; ++k) {
      found[k] += (counts.by_word[k] - std::vector{2, 3, 0}[k]) / double{kSweeps};
    }
  }
  std::vector<double> expected{1.3 * 2.5 / 1000004, 1.0 * 3.5 / 500004, 0.5 * 0.5 / 500001};
  const double sum = std::accumulate(expected.begin(), expected.end(), 0.0);
  for (std::size_t k = 0; k < 3; ++k) EXPECT_NEAR(found[k], expected[k] / sum, 0.02) << k;
}

TEST(TopicTokens, EveryInstructionSetDrawsTheSameTopics) {
  constexpr std::size_t kTopics = 37;
  const auto sweep_with = [&](const TopicKernels& kernels) {
    std::vector<std::int64_t> totals(kTopics);
    std::vector<Token> document(100);
    SplitMix random(3);
    for (Token& token : document) {
      token.topic = static_cast<std::uint16_t>(random.below(kTopics));
      token.counted = token.topic;
      for (auto& proposed : token.proposed) {
        proposed = static_cast<std::uint16_t>(random.below(kTopics));
      }
      ++totals[token.topic];
    }
    TopicLoop loop(totals.data(), priors(kTopics).alpha, 0.01, 5, 9);
    std::vector<std::int32_t> row(kTopics);
    for (const Token& token : document) ++row[token.topic];
    for (int i = 0; i < 20; ++i) {
      kernels.visit_document(loop, document.data(), document.size());
      EXPECT_TRUE(kernels.visit_word(loop, document.data(), document.size(), row.data()));
    }
    std::vector<std::uint16_t> topics;
    for (const Token& token : document) {
      topics.push_back(token.topic);
      topics.insert(topics.end(), token.proposed.begin(), token.proposed.end());
    }
    return topics;
  };
  EXPECT_EQ(sweep_with(topic_kernels()), sweep_with(kBaselineTopicKernels));
}

// Such a prior is 0 or infinite as a float, and its share beside no other token was not a number.
TEST(TopicTokens, ATokenAloneTakesItsProposalsFromThePrior) {
  constexpr std::size_t kTopics = 5;
  for (const double prior : {1e-50, 1e-38, 1e38, 1e39}) {
    std::vector<std::int64_t> totals{1, 0, 0, 0, 0};
    TopicLoop loop(totals.data(), std::vector<double>(kTopics, prior), 0.01, 5, 9);
    // What lies beyond a document of one token must be neither read nor written.
    std::vector<Token> tokens(2, Token{0, 0, {0, 0}});
    tokens[1].topic = 999;
    for (int i = 0; i < 100; ++i) {
      topic_kernels().visit_document(loop, tokens.data(), 1);
      for (const std::uint16_t proposed : tokens[0].proposed) EXPECT_LT(proposed, kTopics);
    }
    EXPECT_EQ(tokens[1].topic, 999);
  }
}

// With enough sweeps at once all tokens move: if a step left a token out, it would never move.
TEST(TopicTokens, EverySharedSweepSamplesEachToken) {
  const Corpus corpus = separate_topics(3, 7);
  for (std::int64_t steps : {2, 4, 10, 60, 1000}) {
    TopicTokens tokens(corpus.view(), 50);
    Counts counts(corpus.vocabulary, 50);
    const TopicPriors even{std::vector<double>(50, 1e6), 1e6};
    tokens.draw(counts.view(), even, 1);
    std::vector<std::uint16_t> first(static_cast<std::size_t>(tokens.size()));
    tokens.save(first);
    std::vector<bool> has_moved(first.size());
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      sweep(tokens, counts.view(), even, seed, steps);
      std::vector<std::uint16_t> now(first.size());
      tokens.save(now);
      for (std::size_t n = 0; n < now.size(); ++n) {
        has_moved[n] = has_moved[n] || now[n] != first[n];
      }
    }
    EXPECT_EQ(std::count(has_moved.begin(), has_moved.end(), false), 0) << steps;
    EXPECT_EQ(counts.by_word, recounted(tokens, corpus, 50).by_word);
  }
}

TEST(TopicTokens, SavedTopicsAreRestored) {
  const Corpus corpus = separate_topics(3, 10);
  TopicTokens tokens(corpus.view(), 6);
  Counts counts(corpus.vocabulary, 6);
  tokens.draw(counts.view(), priors(6), 1);
  sweep(tokens, counts.view(), priors(6), 2);
  std::vector<std::uint16_t> saved(static_cast<std::size_t>(tokens.size()));
  tokens.save(saved);
  TopicTokens other(corpus.view(), 6);
  other.restore(saved);
  sweep(other, counts.view(), priors(6), 3);
  EXPECT_EQ(counts.by_word, recounted(other, corpus, 6).by_word);
  saved[0] = 6;
  EXPECT_EQ(refusal([&] { other.restore(saved); }), "token 0 has topic 6; there are topics 0 to 5");
}

TEST(TopicTokens, AWordWithMoreTokensThanUnitsIsSampled) {
  Corpus corpus;
  corpus.vocabulary = 2;
  for (int d = 0; d < 3; ++d) {
    corpus.add(0, static_cast<std::int32_t>(kMostTopicUnits));
    corpus.add(1, d);
    corpus.end_document();
  }
  TopicTokens tokens(corpus.view(), 4);
  Counts counts(2, 4);
  tokens.draw(counts.view(), priors(4), 1);
  sweep(tokens, counts.view(), priors(4), 2);
  sweep(tokens, counts.view(), priors(4), 3);
  EXPECT_EQ(counts.by_word, recounted(tokens, corpus, 4).by_word);
}

TEST(TopicTokens, DocumentsWithoutTokensAreSwept) {
  Corpus corpus;
  corpus.vocabulary = 3;
  corpus.end_document();
  corpus.add(2, 0);
  corpus.end_document();
  TopicTokens tokens(corpus.view(), 2);
  Counts counts(3, 2);
  tokens.draw(counts.view(), priors(2), 1);
  sweep(tokens, counts.view(), priors(2), 2);
  EXPECT_EQ(tokens.size(), 0);
  EXPECT_EQ(tokens.documents(), 2);
}

TEST(TopicTokens, RefusesWhatDoesNotFit) {
  Corpus corpus = separate_topics(2, 3);
  TopicTokens tokens(corpus.view(), 2);
  Counts counts(corpus.vocabulary, 2);
  EXPECT_EQ(refusal([&] { TopicTokens(corpus.view(), 0); }),
            "there are 0 topics; it may be 1 to 65536");
  EXPECT_EQ(refusal([&] { tokens.draw(counts.view(), priors(3), 1); }),
            "alpha has 3 elements; the tokens and topics need 2");
  EXPECT_EQ(refusal([&] { tokens.draw(counts.view(), {{0.1, 0.0}, 0.01}, 1); }),
            "a topic's alpha is 0; it must be from 1.17549e-38 to 3.40282e+38");
  EXPECT_EQ(refusal([&] { tokens.draw(counts.view(), {{3e38, 3e38}, 0.01}, 1); }),
            "the sum of alpha is 6e+38; it must be from 1.17549e-38 to 3.40282e+38");
  EXPECT_EQ(refusal([&] { tokens.draw(counts.view(), {{0.1, 0.1}, 1e38}, 1); }),
            "beta times the number of words is 2e+39; it must be from 1.17549e-38 to 3.40282e+38");
  tokens.draw(counts.view(), priors(2), 1);
  EXPECT_EQ(refusal([&] { tokens.sweep(counts.view(), priors(2), 1, 3, 3); }),
            "step 3 of 3: steps are an even number, and count from 0");
  Counts others(corpus.vocabulary, 2);
  EXPECT_NE(refusal([&] {
              sweep(tokens, others.view(), priors(2), 1);
            }).find("the counts are of other documents"),
            std::string::npos);
  corpus.words[4] = 20;
  EXPECT_EQ(refusal([&] { TopicTokens(corpus.view(), 2); }),
            "entry 4 is word 20; the vocabulary has words 0 to 19");
  corpus.words[4] = 0;
  corpus.counts[5] = -1;
  EXPECT_EQ(refusal([&] { TopicTokens(corpus.view(), 2); }),
            "entry 5 counts its word -1 times; a count is at least 0");
}

TEST(TopicTokens, FixedPointRecoversAlphaOfItsOwnTerms) {
  const Corpus corpus = separate_topics(2, 4);
  TopicTokens tokens(corpus.view(), 2);
  Counts counts(corpus.vocabulary, 2);
  tokens.draw(counts.view(), priors(2), 1);
  std::vector<double> terms(2);
  const double lengths = tokens.add_to_fixed_point({1.0, 1.0}, terms);
  double expected = 0;  // four documents of 30 tokens: 1/2 + 1/3 + ... + 1/31 each
  for (int n = 0; n < 30; ++n) expected += 4 / (2.0 + n);
  EXPECT_NEAR(lengths, expected, 1e-12);
  EXPECT_GT(terms[0], 0);
  EXPECT_LT(terms[0], 4 * 4.0);  // less than 1/1 + ... + 1/30 a document
}

TEST(TopicInference, PutsTokensWhereTheirWordsBelong) {
  Corpus corpus;
  corpus.vocabulary = 2;
  corpus.add(0, 3);
  corpus.add(1, 1);
  corpus.end_document();
  corpus.end_document();
  const std::vector<float> shares{1.0F, 0.0F, 0.0F, 1.0F};
  const std::vector<float> alpha{0.5F, 0.25F};
  std::vector<float> expected(4);
  TopicInference{shares, alpha}.infer(corpus.view(), expected);
  EXPECT_EQ(expected, (std::vector<float>{3.5F, 1.25F, 0.5F, 0.25F}));
  const std::vector<float> none(4);
  EXPECT_EQ(refusal([&] { TopicInference{none, alpha}.infer(corpus.view(), expected); }),
            "word 0 has no share in any topic");
}

}  // namespace
}  // namespace learn
