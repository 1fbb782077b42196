// The topics of documents that a topic model has not seen.
#pragma once

#include <span>

#include "learn/topic_tokens.hpp"

namespace learn {

// For each document, alpha plus the expected number of its tokens in each topic. It is the fixed
// point of expected[k] = alpha[k] + sum over tokens of the share of expected[k] * shares[word][k]
// among the topics: CVB0 without its taking out of the token itself (Asuncion, Welling, Smyth,
// Teh, "On smoothing and inference for topic models", UAI 2009). A document's result does not
// depend on the others. A document ends when a step moves less than `tolerance` of its tokens from
// topic to topic, or after `most_steps` steps.
struct TopicInference {
  std::span<const float> shares;  // vocabulary x topics: of a topic's tokens those of this word
  std::span<const float> alpha;   // by topic, above 0
  int most_steps = 100;
  float tolerance = 1e-3F;

  // Writes documents x topics values, row by row. Throws dstorm::ConfigError as WordCounts::check()
  // does, or if an array has another length or a word has a share of 0 in all topics.
  void infer(const WordCounts& documents, std::span<float> expected) const;
};

}  // namespace learn
