// Topic models: latent Dirichlet allocation by sampling a topic for each token (each occurrence of
// a word in a document).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace learn {

struct Token;
struct TopicLoop;

// Documents as rows of a sparse matrix: document d has word words[n] counts[n] times, for n from
// starts[d] to starts[d + 1] - 1. It borrows its arrays.
struct WordCounts {
  std::span<const std::int64_t> starts;  // documents + 1, from 0
  std::span<const std::int32_t> words;   // in [0, vocabulary)
  std::span<const std::int32_t> counts;  // at least 0
  std::int64_t vocabulary = 0;

  std::int64_t documents() const { return std::ssize(starts) - 1; }
  // Throws dstorm::ConfigError unless all of this holds.
  void check() const;
};

// How many tokens of each word have each topic, in the caller's memory (for example a shared array,
// which also counts the tokens of other ranks).
struct TopicCounts {
  std::span<std::int32_t> by_word;  // vocabulary x topics, row by row
  std::span<std::int64_t> totals;   // by topic: the sums of by_word's columns
};

// Dirichlet priors: a document's topics come from Dirichlet(alpha), a topic's words from the
// symmetric Dirichlet(beta).
struct TopicPriors {
  // Each, their sum, and beta times the topics or words, must be normal positive floats.
  std::vector<double> alpha;  // by topic
  double beta = 0;
};

// The tokens of some documents, and their topics. A sweep gives each token a new topic by
// Metropolis-Hastings steps whose cost does not depend on the number of topics: first document by
// document, with topics proposed by the words' counts, then word by word, with topics proposed by
// the documents' counts. So each pass has only one kind of counts in the cache (WarpLDA: Chen, Li,
// Zhu, Chen, "WarpLDA: a cache efficient O(1) algorithm for latent Dirichlet allocation", VLDB
// 2016). As in collapsed Gibbs sampling, and unlike in WarpLDA, a token is taken out of the counts
// that decide about it, and its new topic counts at once. Only the proposals are as old as the pass
// before. One cost depends on the number of topics: each word's row of counts is read once a sweep.
//
// One thread at a time may use an object.
class TopicTokens {
 public:
  static constexpr std::int64_t kMostTopics = 1 << 16;

  // Copies the documents: 12 bytes a token. Throws dstorm::ConfigError as WordCounts::check() does,
  // if there are 2^32 tokens or more, or `topics` is not in [1, kMostTopics].
  TopicTokens(const WordCounts& documents, std::int64_t topics);
  ~TopicTokens();
  TopicTokens(TopicTokens&&) noexcept;
  TopicTokens& operator=(TopicTokens&&) noexcept;

  std::int64_t size() const;
  std::int64_t documents() const { return std::ssize(starts_) - 1; }

  // Draws a first topic for each token in proportion to its word's counts + beta, and counts it.
  // Throws dstorm::ConfigError if the counts or priors are of other lengths than these tokens need,
  // or a prior is not as TopicPriors says.
  void draw(const TopicCounts& counts, const TopicPriors& priors, std::uint64_t seed);

  // Takes topics that have been counted before, in the order of save(). Throws dstorm::ConfigError
  // if there are not as many as tokens, or one is no topic.
  void restore(std::span<const std::uint16_t> topics);
  // Writes the topics, document by document. Throws dstorm::ConfigError if the length is another.
  void save(std::span<std::uint16_t> topics) const;

  // Samples each token once, if it is called for each step from 0 to steps - 1 in turn. The first
  // half of the steps take a share of the documents each, and the second half a share of the words.
  // Between steps the counts may change by other tokens' topics. The same seeds give the same
  // topics on every processor. Throws dstorm::ConfigError as draw() does, if there is no such step,
  // `steps` is odd, or `counts` does not count these tokens.
  void sweep(const TopicCounts& counts, const TopicPriors& priors, std::uint64_t seed,
             std::int64_t step = 0, std::int64_t steps = 2);

  // Adds to gradient[k], over the documents, digamma(tokens of topic k + alpha[k]) -
  // digamma(alpha[k]), and returns the sum of digamma(tokens + sum alpha) - digamma(sum alpha). Of
  // all documents these give Minka's fixed point for alpha ("Estimating a Dirichlet distribution",
  // 2000, equation 55).
  double add_to_fixed_point(const std::vector<double>& alpha, std::span<double> gradient) const;

 private:
  void check(const TopicCounts& counts, const TopicPriors& priors) const;
  void sweep_documents(TopicLoop& loop, std::size_t begin, std::size_t end);
  void sweep_words(TopicLoop& loop, std::span<std::int32_t> by_word, std::size_t begin,
                   std::size_t end);

  std::int64_t vocabulary_;
  std::int64_t topics_;
  std::vector<std::int64_t> starts_;       // of the documents, in places_
  std::vector<std::uint32_t> places_;      // where in tokens_ a document's tokens are
  std::vector<std::int32_t> words_;        // those that occur, in increasing order
  std::vector<std::int64_t> word_starts_;  // of these words, in tokens_
  std::vector<Token> tokens_;              // word by word
};

}  // namespace learn
