// How tokens are kept and swept. The inner loops are in topic_kernels_impl.hpp.
#include "learn/topic_tokens.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <sstream>
#include <string>

#include "dstorm/errors.hpp"
#include "learn/digamma.hpp"
#include "learn/topic_kernels.hpp"
#include "vol/kernels.hpp"

namespace learn {
namespace {

// A document's tokens are fetched into the cache while this many tokens before them are copied.
constexpr std::size_t kTokensAhead = 32;

void require_of_topics(bool holds, const std::string& otherwise) {
  if (!holds) throw dstorm::ConfigError(otherwise);
}

void require_topic_length(const char* name, std::size_t length, std::int64_t wanted) {
  require_of_topics(static_cast<std::int64_t>(length) == wanted,
                    std::string(name) + " has " + std::to_string(length) +
                        " elements; the tokens and topics need " + std::to_string(wanted));
}

}  // namespace

const TopicKernels& topic_kernels() {
#if defined(__x86_64__)
  if (vol::simd_level() == "avx512") return kAvx512TopicKernels;
  if (vol::simd_level() == "avx2") return kAvx2TopicKernels;
#endif
  return kBaselineTopicKernels;
}

AliasTable::AliasTable(const std::vector<double>& weights)
    : total(std::accumulate(weights.begin(), weights.end(), 0.0)),
      keep(weights.size(), std::numeric_limits<std::uint32_t>::max()),
      others(weights.size()) {
  std::iota(others.begin(), others.end(), 0U);
  std::vector<double> left(weights.size());  // in units of the mean
  std::vector<std::uint32_t> small;
  std::vector<std::uint32_t> large;
  for (std::uint32_t n = 0; n < left.size(); ++n) {
    left[n] = weights[n] / total * static_cast<double>(left.size());
    (left[n] < 1 ? small : large).push_back(n);
  }
  while (!small.empty() && !large.empty()) {
    const std::uint32_t below = small.back();
    const std::uint32_t above = large.back();
    small.pop_back();
    keep[below] = static_cast<std::uint32_t>(left[below] * 0x1p32);
    others[below] = above;
    left[above] -= 1 - left[below];
    if (left[above] >= 1) continue;
    large.pop_back();
    small.push_back(above);
  }
}

TopicLoop::TopicLoop(std::int64_t* topic_totals, const std::vector<double>& alpha, double beta,
                     std::int64_t words, std::uint64_t seed)
    : topics(alpha.size()),
      totals(topic_totals),
      divisor(topics),
      spread(static_cast<float>(static_cast<double>(words) * beta)),
      document_prior(alpha.begin(), alpha.end()),
      word_prior(topics, static_cast<float>(beta)),
      beta_total(static_cast<float>(static_cast<double>(topics) * beta)),
      alpha_table(alpha),
      random(seed),
      in_document(topics),
      units(kMostTopicUnits),
      first_unit(topics) {
  for (std::size_t k = 0; k < topics; ++k) {
    divisor[k] = static_cast<float>(totals[k]) + spread;
  }
}

void WordCounts::check() const {
  require_of_topics(
      !starts.empty() && starts.front() == 0 && std::is_sorted(starts.begin(), starts.end()),
      "the documents' starts do not rise from 0");
  require_of_topics(starts.back() == std::ssize(words) && words.size() == counts.size(),
                    "the documents have " + std::to_string(starts.back()) + " entries, with " +
                        std::to_string(words.size()) + " words and " +
                        std::to_string(counts.size()) + " counts; these numbers must be equal");
  for (std::size_t n = 0; n < words.size(); ++n) {
    if (words[n] < 0 || words[n] >= vocabulary) {
      throw dstorm::ConfigError("entry " + std::to_string(n) + " is word " +
                                std::to_string(words[n]) + "; the vocabulary has words 0 to " +
                                std::to_string(vocabulary - 1));
    }
    if (counts[n] < 0) {
      throw dstorm::ConfigError("entry " + std::to_string(n) + " counts its word " +
                                std::to_string(counts[n]) + " times; a count is at least 0");
    }
  }
}

TopicTokens::TopicTokens(const WordCounts& documents, std::int64_t topics)
    : vocabulary_(documents.vocabulary), topics_(topics) {
  require_of_topics(topics >= 1 && topics <= kMostTopics, "there are " + std::to_string(topics) +
                                                              " topics; it may be 1 to " +
                                                              std::to_string(kMostTopics));
  documents.check();
  std::vector<std::int64_t> ends(static_cast<std::size_t>(vocabulary_));  // by word, in tokens_
  std::int64_t total = 0;
  for (std::size_t n = 0; n < documents.words.size(); ++n) {
    ends[static_cast<std::size_t>(documents.words[n])] += documents.counts[n];
    total += documents.counts[n];
  }
  require_of_topics(total <= std::numeric_limits<std::uint32_t>::max(),
                    "the documents have " + std::to_string(total) +
                        " tokens; at most 4294967295 go into one object: use several");
  std::int64_t at = 0;
  for (std::size_t w = 0; w < ends.size(); ++w) {
    const std::int64_t count = ends[w];
    ends[w] = at;  // rises to the end below
    if (count == 0) continue;
    words_.push_back(static_cast<std::int32_t>(w));
    word_starts_.push_back(at);
    at += count;
  }
  word_starts_.push_back(total);
  tokens_.resize(static_cast<std::size_t>(total));
  places_.reserve(tokens_.size());
  starts_.reserve(documents.starts.size());
  starts_.push_back(0);
  for (std::int64_t d = 0; d < documents.documents(); ++d) {
    const auto first = static_cast<std::size_t>(documents.starts[static_cast<std::size_t>(d)]);
    const auto last = static_cast<std::size_t>(documents.starts[static_cast<std::size_t>(d) + 1]);
    for (std::size_t n = first; n < last; ++n) {
      std::int64_t& end = ends[static_cast<std::size_t>(documents.words[n])];
      for (std::int32_t i = 0; i < documents.counts[n]; ++i) {
        places_.push_back(static_cast<std::uint32_t>(end++));
      }
    }
    starts_.push_back(std::ssize(places_));
  }
}

TopicTokens::~TopicTokens() = default;
TopicTokens::TopicTokens(TopicTokens&&) noexcept = default;
TopicTokens& TopicTokens::operator=(TopicTokens&&) noexcept = default;

std::int64_t TopicTokens::size() const { return std::ssize(tokens_); }

void TopicTokens::check(const TopicCounts& counts, const TopicPriors& priors) const {
  require_topic_length("by_word", counts.by_word.size(), vocabulary_ * topics_);
  require_topic_length("totals", counts.totals.size(), topics_);
  require_topic_length("alpha", priors.alpha.size(), topics_);
  const auto require = [](const char* name, double value) {
    using Limits = std::numeric_limits<float>;  // the sampler computes in floats
    if (value >= double{Limits::min()} && value <= double{Limits::max()}) return;
    std::ostringstream text;
    text << name << " is " << value << "; it must be from " << Limits::min() << " to "
         << Limits::max();
    throw dstorm::ConfigError(text.str());
  };
  for (const double alpha : priors.alpha) require("a topic's alpha", alpha);
  require("the sum of alpha", std::accumulate(priors.alpha.begin(), priors.alpha.end(), 0.0));
  require("beta", priors.beta);
  require("beta times the number of topics", static_cast<double>(topics_) * priors.beta);
  if (vocabulary_ > 0) {
    require("beta times the number of words", static_cast<double>(vocabulary_) * priors.beta);
  }
}

void TopicTokens::draw(const TopicCounts& counts, const TopicPriors& priors, std::uint64_t seed) {
  check(counts, priors);
  SplitMix random(seed);
  const auto topics = static_cast<std::size_t>(topics_);
  std::vector<double> sums(topics);
  for (std::size_t n = 0; n < words_.size(); ++n) {
    std::int32_t* row = counts.by_word.data() + static_cast<std::size_t>(words_[n]) * topics;
    double sum = 0;
    for (std::size_t k = 0; k < topics; ++k) sums[k] = sum += row[k] + priors.beta;
    for (std::int64_t at = word_starts_[n]; at < word_starts_[n + 1]; ++at) {
      const double drawn = static_cast<double>(random.next() >> 11) * 0x1p-53 * sum;
      const auto found = std::upper_bound(sums.begin(), sums.end() - 1, drawn) - sums.begin();
      const auto topic = static_cast<std::uint16_t>(found);
      tokens_[static_cast<std::size_t>(at)] = {topic, topic, {topic, topic}};
      ++row[topic];
      ++counts.totals[topic];
    }
  }
}

void TopicTokens::restore(std::span<const std::uint16_t> topics) {
  require_topic_length("topics", topics.size(), size());
  for (std::size_t n = 0; n < topics.size(); ++n) {
    const std::uint16_t topic = topics[n];
    if (topic >= topics_) {
      throw dstorm::ConfigError("token " + std::to_string(n) + " has topic " +
                                std::to_string(topic) + "; there are topics 0 to " +
                                std::to_string(topics_ - 1));
    }
    tokens_[places_[n]] = {topic, topic, {topic, topic}};
  }
}

void TopicTokens::save(std::span<std::uint16_t> topics) const {
  require_topic_length("topics", topics.size(), size());
  for (std::size_t n = 0; n < topics.size(); ++n) topics[n] = tokens_[places_[n]].topic;
}

void TopicTokens::sweep(const TopicCounts& counts, const TopicPriors& priors, std::uint64_t seed,
                        std::int64_t step, std::int64_t steps) {
  check(counts, priors);
  require_of_topics(steps >= 2 && steps % 2 == 0 && step >= 0 && step < steps,
                    "step " + std::to_string(step) + " of " + std::to_string(steps) +
                        ": steps are an even number, and count from 0");
  TopicLoop loop(counts.totals.data(), priors.alpha, priors.beta, vocabulary_, seed);
  const std::int64_t half = steps / 2;
  // The first of the runs that begins in the share, or behind it.
  const auto first_of = [&](const std::vector<std::int64_t>& starts, std::int64_t share) {
    const std::int64_t token = share == half ? size() + 1 : size() / half * share;
    const auto found = std::lower_bound(starts.begin(), starts.end() - 1, token);
    return static_cast<std::size_t>(found - starts.begin());
  };
  if (step < half) {
    sweep_documents(loop, first_of(starts_, step), first_of(starts_, step + 1));
  } else {
    const std::int64_t share = step - half;
    sweep_words(loop, counts.by_word, first_of(word_starts_, share),
                first_of(word_starts_, share + 1));
  }
}

void TopicTokens::sweep_documents(TopicLoop& loop, std::size_t begin, std::size_t end) {
  const auto visit = topic_kernels().visit_document;
  std::vector<Token> document;
  for (std::size_t d = begin; d < end; ++d) {
    const auto first = static_cast<std::size_t>(starts_[d]);
    const auto last = static_cast<std::size_t>(starts_[d + 1]);
    document.resize(last - first);
    for (std::size_t n = first; n < last; ++n) {
      if (n + kTokensAhead < places_.size()) {
        __builtin_prefetch(&tokens_[places_[n + kTokensAhead]], 1);
      }
      document[n - first] = tokens_[places_[n]];
    }
    visit(loop, document.data(), document.size());
    for (std::size_t n = first; n < last; ++n) tokens_[places_[n]] = document[n - first];
  }
}

void TopicTokens::sweep_words(TopicLoop& loop, std::span<std::int32_t> by_word, std::size_t begin,
                              std::size_t end) {
  const auto visit = topic_kernels().visit_word;
  for (std::size_t n = begin; n < end; ++n) {
    const auto first = static_cast<std::size_t>(word_starts_[n]);
    const auto last = static_cast<std::size_t>(word_starts_[n + 1]);
    std::int32_t* row = by_word.data() + static_cast<std::size_t>(words_[n]) * loop.topics;
    if (!visit(loop, tokens_.data() + first, last - first, row)) {
      throw dstorm::ConfigError("the row of word " + std::to_string(words_[n]) +
                                " does not count its " + std::to_string(last - first) +
                                " tokens: the counts are of other documents");
    }
  }
}

double TopicTokens::add_to_fixed_point(const std::vector<double>& alpha,
                                       std::span<double> gradient) const {
  require_topic_length("alpha", alpha.size(), topics_);
  require_topic_length("gradient", gradient.size(), topics_);
  const double sum = std::accumulate(alpha.begin(), alpha.end(), 0.0);
  DigammaRise of_length(sum);
  std::vector<DigammaRise> of_topic(alpha.begin(), alpha.end());
  std::vector<std::int64_t> counts(alpha.size());
  double lengths = 0;
  for (std::size_t d = 0; d + 1 < starts_.size(); ++d) {
    const auto first = static_cast<std::size_t>(starts_[d]);
    const auto last = static_cast<std::size_t>(starts_[d + 1]);
    for (std::size_t n = first; n < last; ++n) {
      if (n + kTokensAhead < places_.size()) {
        __builtin_prefetch(&tokens_[places_[n + kTokensAhead]]);
      }
      ++counts[tokens_[places_[n]].topic];
    }
    for (std::size_t n = first; n < last; ++n) {
      const std::size_t topic = tokens_[places_[n]].topic;
      gradient[topic] += of_topic[topic](counts[topic]);
      counts[topic] = 0;
    }
    lengths += of_length(starts_[d + 1] - starts_[d]);
  }
  return lengths;
}

}  // namespace learn
