#include "learn/topic_inference.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "dstorm/errors.hpp"
#include "learn/topic_kernels.hpp"

namespace learn {

void TopicInference::infer(const WordCounts& documents, std::span<float> expected) const {
  documents.check();
  const std::size_t topics = alpha.size();
  if (shares.size() != static_cast<std::size_t>(documents.vocabulary) * topics ||
      expected.size() != static_cast<std::size_t>(documents.documents()) * topics) {
    throw dstorm::ConfigError("shares has " + std::to_string(shares.size()) +
                              " elements and expected " + std::to_string(expected.size()) +
                              ", which does not fit " + std::to_string(topics) + " topics");
  }
  const TopicKernels& kernels = topic_kernels();
  std::vector<float> sums(topics);
  const auto step = [&](float* mine, std::size_t first, std::size_t last) {
    std::fill(sums.begin(), sums.end(), 0.0F);
    for (std::size_t n = first; n < last; ++n) {
      if (documents.counts[n] == 0) continue;
      const float* row = shares.data() + static_cast<std::size_t>(documents.words[n]) * topics;
      const float total = kernels.dot(mine, row, topics);
      if (!(total > 0)) {
        throw dstorm::ConfigError("word " + std::to_string(documents.words[n]) +
                                  " has no share in any topic");
      }
      kernels.add(sums.data(), row, static_cast<float>(documents.counts[n]) / total, topics);
    }
    float moved = 0;
    for (std::size_t k = 0; k < topics; ++k) {
      const float now = alpha[k] + mine[k] * sums[k];
      moved += std::abs(now - mine[k]);
      mine[k] = now;
    }
    return moved;
  };
  for (std::size_t d = 0; d + 1 < documents.starts.size(); ++d) {
    const auto first = static_cast<std::size_t>(documents.starts[d]);
    const auto last = static_cast<std::size_t>(documents.starts[d + 1]);
    float tokens = 0;
    for (std::size_t n = first; n < last; ++n) tokens += static_cast<float>(documents.counts[n]);
    float* mine = expected.data() + d * topics;
    for (std::size_t k = 0; k < topics; ++k) {
      mine[k] = alpha[k] + tokens / static_cast<float>(topics);
    }
    for (int i = 0; i < most_steps; ++i) {
      if (step(mine, first, last) <= 2 * tolerance * tokens) break;
    }
  }
}

}  // namespace learn
