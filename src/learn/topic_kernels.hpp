// One table of the topic sampler's inner loops per instruction set. Internal to the topic models.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "learn/splitmix.hpp"

namespace learn {

// The number of proposals that a token takes from its document, and again from its word, a sweep.
inline constexpr std::size_t kTopicProposals = 2;

// A token, kept beside the others of its word.
struct Token {
  std::uint16_t topic = 0;
  std::uint16_t counted = 0;  // the topic under which its word's row counts it
  std::array<std::uint16_t, kTopicProposals> proposed{};
};

// Tokens are sampled this many at a time; the counts are brought up to date after each batch. It is
// the same for every instruction set, so the set does not show in the topics that are drawn.
inline constexpr std::size_t kTopicLanes = 16;

// A word with more tokens than this draws its proposals from so many of them, taken at equal
// distances from a random start.
inline constexpr std::size_t kMostTopicUnits = std::size_t{1} << 16;

// kTopicLanes generators side by side: xoshiro128++ (Blackman and Vigna, "Scrambled linear
// pseudorandom number generators", ACM TOMS 2021).
struct LaneRandom {
  using Row = std::array<std::uint32_t, kTopicLanes>;

  explicit LaneRandom(std::uint64_t seed) {
    SplitMix mix(seed);
    for (Row& row : state) {
      for (std::uint32_t& word : row) word = static_cast<std::uint32_t>(mix.next() >> 32);
    }
  }

  alignas(64) std::array<Row, 4> state;
};

// Draws index n with a probability in proportion to the n-th weight, in constant time (Walker's
// alias method; Vose, "A linear algorithm for generating random numbers with a given distribution",
// IEEE TSE 1991).
struct AliasTable {
  explicit AliasTable(const std::vector<double>& weights);

  double total = 0;                   // of the weights
  std::vector<std::uint32_t> keep;    // index n stays n if a random word is at most this,
  std::vector<std::uint32_t> others;  // and becomes others[n] otherwise
};

// The state of a sweep.
struct TopicLoop {
  TopicLoop(std::int64_t* topic_totals, const std::vector<double>& alpha, double beta,
            std::int64_t words, std::uint64_t seed);

  std::size_t topics;
  std::int64_t* totals;        // tokens by topic, in the caller's memory
  std::vector<float> divisor;  // totals + words * beta
  float spread;                // words * beta
  std::vector<float> document_prior;
  std::vector<float> word_prior;  // beta, as often as there are topics
  float beta_total;               // topics * beta
  AliasTable alpha_table;
  LaneRandom random;
  std::vector<std::int32_t> in_document;  // by topic; zeros between two documents
  std::vector<std::uint16_t> units;       // of a word: each topic as often as the word has it
  std::vector<std::uint32_t> first_unit;  // by topic: where its units begin
};

struct TopicKernels {
  // Brings a word's row of counts up to date, decides the proposals of its tokens, and proposes
  // topics in proportion to row + beta. Returns false, and proposes nothing, if a count is negative
  // or the row counts fewer than n tokens: then it does not count these tokens.
  bool (*visit_word)(TopicLoop& loop, Token* tokens, std::size_t n, std::int32_t* row);
  // Decides the proposals of a document's tokens, and proposes topics in proportion to the
  // document's counts + alpha.
  void (*visit_document)(TopicLoop& loop, Token* tokens, std::size_t n);
  // The product of two rows of n elements; every level gives the same bits.
  float (*dot)(const float* a, const float* b, std::size_t n);
  // sums += by * row
  void (*add)(float* sums, const float* row, float by, std::size_t n);
};

extern const TopicKernels kBaselineTopicKernels;
#if defined(__x86_64__)
extern const TopicKernels kAvx2TopicKernels;
extern const TopicKernels kAvx512TopicKernels;
#endif

// The kernels of the level that vol::simd_level() names.
const TopicKernels& topic_kernels();

}  // namespace learn
