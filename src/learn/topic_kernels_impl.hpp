// The topic sampler's inner loops. Each level's translation unit compiles them once; the loops over
// lanes have a fixed length, so that the compiler makes vectors of them. vol/kernels_simd.hpp
// explains why everything here has internal linkage.
#pragma once

#include <algorithm>

#include "learn/topic_kernels.hpp"

namespace learn {
namespace {

struct TopicLanes {
  [[gnu::always_inline]] static std::uint32_t rotated(std::uint32_t x, int by) {
    return (x << by) | (x >> (32 - by));
  }

  [[gnu::always_inline]] static void draw(LaneRandom& random, LaneRandom::Row& out) {
    auto& [a, b, c, d] = random.state;
    for (std::size_t i = 0; i < kTopicLanes; ++i) {
      out[i] = rotated(a[i] + d[i], 7) + a[i];
      const std::uint32_t shifted = b[i] << 9;
      c[i] ^= a[i];
      d[i] ^= b[i];
      b[i] ^= c[i];
      a[i] ^= d[i];
      c[i] ^= shifted;
      d[i] = rotated(d[i], 11);
    }
  }

  // A number below `bound`, from 32 random bits.
  [[gnu::always_inline]] static std::uint32_t scaled(std::uint32_t random, std::uint32_t bound) {
    return static_cast<std::uint32_t>((std::uint64_t{random} * bound) >> 32);
  }

  [[gnu::always_inline]] static float to_unit(std::uint32_t random) {
    return static_cast<float>(static_cast<std::int32_t>(random >> 8)) * 0x1p-24F;
  }

  // The share of proposals that come from a prior with this total, beside so many counted tokens.
  [[gnu::always_inline]] static float share_of_prior(float total, std::uint32_t others) {
    return others == 0 ? 1.0F : total / (static_cast<float>(others) + total);
  }

  // Metropolis-Hastings steps of each token, from its topic to those proposed for it. A proposal
  // was drawn in proportion to one of the two factors of a topic's probability, so only the other
  // factor, (counts + prior) / divisor, decides. The token itself is not counted meanwhile.
  static void decide(TopicLoop& loop, Token* tokens, std::size_t n, std::int32_t* counts,
                     const float* prior) {
    float* divisor = loop.divisor.data();
    for (std::size_t begin = 0; begin < n; begin += kTopicLanes) {
      const std::size_t count = std::min(kTopicLanes, n - begin);
      std::array<LaneRandom::Row, kTopicProposals> bits;
      for (LaneRandom::Row& row : bits) draw(loop.random, row);
      for (std::size_t i = 0; i < count; ++i) {
        Token& token = tokens[begin + i];
        const std::uint16_t from = token.topic;
        std::uint16_t to = from;
        float now = static_cast<float>(counts[from] - 1) + prior[from];
        float now_divisor = divisor[from] - 1;
        for (std::size_t m = 0; m < kTopicProposals; ++m) {
          const std::uint16_t next = token.proposed[m];
          const float self = next == from ? 1.0F : 0.0F;
          const float then = static_cast<float>(counts[next]) - self + prior[next];
          const float then_divisor = divisor[next] - self;
          const bool accepts = to_unit(bits[m][i]) * now * then_divisor < then * now_divisor;
          to = accepts ? next : to;
          now = accepts ? then : now;
          now_divisor = accepts ? then_divisor : now_divisor;
        }
        if (to == from) continue;
        --counts[from];
        ++counts[to];
        divisor[from] = static_cast<float>(--loop.totals[from]) + loop.spread;
        divisor[to] = static_cast<float>(++loop.totals[to]) + loop.spread;
        token.topic = to;
      }
    }
  }

  // Lists the topics of a word's tokens, or of an even sample of them; returns how many.
  static std::size_t list_units(TopicLoop& loop, const std::int32_t* row, std::int64_t row_tokens) {
    const bool is_whole = row_tokens <= static_cast<std::int64_t>(kMostTopicUnits);
    LaneRandom::Row bits;
    draw(loop.random, bits);
    const double share =
        is_whole ? 1 : static_cast<double>(kMostTopicUnits) / static_cast<double>(row_tokens);
    double place = is_whole ? 0 : static_cast<double>(bits[0]) * 0x1p-32;
    std::uint16_t* units = loop.units.data();
    std::size_t end = 0;
    const auto add = [&](std::size_t k, std::size_t to) {
      loop.first_unit[k] = static_cast<std::uint32_t>(end);
      for (; end < to; ++end) units[end] = static_cast<std::uint16_t>(k);
    };
    for (std::size_t begin = 0; begin < loop.topics; begin += kTopicLanes) {
      const std::size_t stop = std::min(begin + kTopicLanes, loop.topics);
      std::int32_t any = 0;
      for (std::size_t k = begin; k < stop; ++k) any |= row[k];
      if (any == 0) continue;
      for (std::size_t k = begin; k < stop; ++k) {
        if (row[k] == 0) continue;
        if (is_whole) {
          add(k, end + static_cast<std::size_t>(row[k]));
        } else {
          place += share * row[k];
          add(k, std::min(static_cast<std::size_t>(place), kMostTopicUnits));
        }
      }
    }
    return end;
  }

  // Proposes one of the other units, or with the prior's share any topic.
  [[gnu::always_inline]] static void propose_by_word(TopicLoop& loop, Token* tokens, std::size_t n,
                                                     std::size_t units, bool is_whole) {
    const auto topics = static_cast<std::uint32_t>(loop.topics);
    const auto others = static_cast<std::uint32_t>(is_whole ? units - 1 : units);
    const float from_prior = share_of_prior(loop.beta_total, others);
    for (std::size_t begin = 0; begin < n; begin += kTopicLanes) {
      const std::size_t count = std::min(kTopicLanes, n - begin);
      for (std::size_t m = 0; m < kTopicProposals; ++m) {
        LaneRandom::Row which, bits, any, place;
        draw(loop.random, which);
        draw(loop.random, bits);
        for (std::size_t i = 0; i < kTopicLanes; ++i) {
          any[i] = to_unit(which[i]) < from_prior ? 1 : 0;
          place[i] = scaled(bits[i], any[i] != 0 ? topics : others);
        }
        for (std::size_t i = 0; i < count; ++i) {
          Token& token = tokens[begin + i];
          std::uint32_t unit = place[i];
          if (is_whole && unit == loop.first_unit[token.topic]) unit = others;
          const std::uint16_t drawn = loop.units[unit];
          token.proposed[m] = any[i] != 0 ? static_cast<std::uint16_t>(place[i]) : drawn;
        }
      }
    }
  }

  [[gnu::always_inline]] static void propose_by_document(TopicLoop& loop, Token* tokens,
                                                         std::size_t n) {
    const auto topics = static_cast<std::uint32_t>(loop.topics);
    const auto others = static_cast<std::uint32_t>(n - 1);
    const float from_prior = share_of_prior(static_cast<float>(loop.alpha_table.total), others);
    for (std::size_t begin = 0; begin < n; begin += kTopicLanes) {
      const std::size_t count = std::min(kTopicLanes, n - begin);
      for (std::size_t m = 0; m < kTopicProposals; ++m) {
        LaneRandom::Row which, bits, more, any, place;
        draw(loop.random, which);
        draw(loop.random, bits);
        draw(loop.random, more);
        for (std::size_t i = 0; i < kTopicLanes; ++i) {
          any[i] = to_unit(which[i]) < from_prior ? 1 : 0;
          place[i] = scaled(bits[i], any[i] != 0 ? topics : others);
          const auto self = static_cast<std::uint32_t>(begin + i);
          place[i] += any[i] == 0 && place[i] >= self ? 1 : 0;
        }
        for (std::size_t i = 0; i < count; ++i) {
          const std::uint32_t at = place[i];
          std::uint32_t drawn;
          if (any[i] != 0) {
            drawn = more[i] <= loop.alpha_table.keep[at] ? at : loop.alpha_table.others[at];
          } else {
            drawn = tokens[at].topic;
          }
          tokens[begin + i].proposed[m] = static_cast<std::uint16_t>(drawn);
        }
      }
    }
  }

  static bool visit_word(TopicLoop& loop, Token* tokens, std::size_t n, std::int32_t* row) {
    for (std::size_t i = 0; i < n; ++i) {
      --row[tokens[i].counted];
      ++row[tokens[i].topic];
    }
    decide(loop, tokens, n, row, loop.word_prior.data());
    for (std::size_t i = 0; i < n; ++i) tokens[i].counted = tokens[i].topic;
    std::int64_t sum = 0;
    std::int32_t least = 0;
    for (std::size_t k = 0; k < loop.topics; ++k) {
      sum += row[k];
      least = std::min(least, row[k]);
    }
    if (least < 0 || sum < static_cast<std::int64_t>(n)) return false;
    const std::size_t units = list_units(loop, row, sum);
    propose_by_word(loop, tokens, n, units, units == static_cast<std::size_t>(sum));
    return true;
  }

  static void visit_document(TopicLoop& loop, Token* tokens, std::size_t n) {
    std::int32_t* counts = loop.in_document.data();
    for (std::size_t i = 0; i < n; ++i) ++counts[tokens[i].topic];
    decide(loop, tokens, n, counts, loop.document_prior.data());
    propose_by_document(loop, tokens, n);
    for (std::size_t i = 0; i < n; ++i) counts[tokens[i].topic] = 0;
  }

  static float dot(const float* a, const float* b, std::size_t n) {
    std::array<float, kTopicLanes> sums{};
    std::size_t k = 0;
    for (; k + kTopicLanes <= n; k += kTopicLanes) {
      for (std::size_t i = 0; i < kTopicLanes; ++i) sums[i] += a[k + i] * b[k + i];
    }
    for (std::size_t i = 0; k + i < n; ++i) sums[i] += a[k + i] * b[k + i];
    for (std::size_t half = kTopicLanes / 2; half > 0; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
    }
    return sums[0];
  }

  static void add(float* sums, const float* row, float by, std::size_t n) {
    for (std::size_t k = 0; k < n; ++k) sums[k] += by * row[k];
  }
};

inline constexpr TopicKernels kTopicTable{TopicLanes::visit_word, TopicLanes::visit_document,
                                          TopicLanes::dot, TopicLanes::add};

}  // namespace
}  // namespace learn
