// One line of svmlight text.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "learn/decimal.hpp"

namespace learn {

// The error of a line.
enum class Flaw {
  kNone,
  kLabel,
  kQuery,
  kIndex,
  kIndexRange,
  kOrder,
  kValue,
  kNotFinite,
  kValueRange
};

inline Flaw flaw_of(Numeral numeral, Flaw no_number) {
  if (numeral == Numeral::kNotFinite) return Flaw::kNotFinite;
  return numeral == Numeral::kOutOfRange ? Flaw::kValueRange : no_number;
}

inline const char* skip_blanks(const char* at) {
  while (is_blank(*at)) ++at;
  return at;
}

// Takes digits and the ':' after them off the front of `text`. If it does not begin with them,
// returns false and leaves `text` where it is. An index beyond 32 bits may become another one
// beyond 32 bits.
inline bool take_index(const char*& text, std::int64_t& index) {
  const Digits digits = leading_digits(text);
  const char* at = text + digits.count;
  index = static_cast<std::int64_t>(digits.value);
  if (digits.count == 8) {
    constexpr std::int64_t kBeyond = std::int64_t{1} << 32U;
    for (; is_digit(*at); ++at) index = std::min(10 * index + (*at - '0'), kBeyond);
  }
  if (digits.count == 0 || *at != ':') return false;
  text = at + 1;
  return true;
}

// Takes "qid:number" off the front of `text`. Also true if there is none.
inline bool take_query(const char*& text) {
  if (std::string_view(text, 4) != "qid:") return true;
  const char* at = text + 4;
  while (is_digit(*at)) ++at;
  if (at == text + 4 || !ends_number(*at)) return false;
  text = skip_blanks(at);
  return true;
}

// The destinations of a line's parts. `column` and `value` have room for everything the line may
// hold.
template <class T>
struct Row {
  double label = 0;
  std::int32_t* column;
  T* value;
};

// Parses a line from its label up to its end, '\n' or '#', and leaves `text` there. In a line with
// an error `text` is left at the error, and the row is filled as far as it was parsed. After the
// line end there are kReadAhead bytes more.
template <class T>
Flaw parse_row(const char*& text, std::int64_t first_index, std::int64_t last_index, Row<T>& row) {
  const char* at = text;
  Numeral numeral = take_number(at, row.label);
  if (numeral != Numeral::kTaken) return flaw_of(numeral, Flaw::kLabel);
  if (!ends_number(*at)) return Flaw::kLabel;
  text = at = skip_blanks(at);
  if (!take_query(at)) return Flaw::kQuery;
  for (std::int64_t before = -1; *at != '\n' && *at != '#'; at = skip_blanks(at)) {
    text = at;
    std::int64_t index = 0;
    if (!take_index(at, index)) return Flaw::kIndex;
    if (index < first_index || index > last_index) return Flaw::kIndexRange;
    if (index <= before) return Flaw::kOrder;
    before = index;
    numeral = take_number(at, *row.value);
    if (numeral != Numeral::kTaken) return flaw_of(numeral, Flaw::kValue);
    if (!ends_number(*at)) return Flaw::kValue;
    *row.column++ = static_cast<std::int32_t>(index);
    ++row.value;
  }
  text = at;
  return Flaw::kNone;
}

}  // namespace learn
