// svmlight text, cut into blocks anywhere.
//
// input: first index, length of a block (1 byte each), then the text
#include "learn/svmlight.hpp"

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

#include "learn/decimal.hpp"
#include "learn/matrix.hpp"
#include "target.hpp"

namespace fuzz {
namespace {

using learn::SvmlightParser;
using learn::SvmlightRows;

template <class T>
bool are_equal(std::span<const T> a, std::span<const T> b) {
  return std::ranges::equal(a, b);
}

template <class T>
SvmlightParser<T> parse(std::string_view text, const learn::SvmlightOptions& options,
                        std::size_t block_bytes) {
  SvmlightParser<T> parser(options);
  for (; !text.empty(); text.remove_prefix(std::min(block_bytes, text.size()))) {
    parser.feed(text.substr(0, block_bytes));
  }
  parser.end_text();
  return parser;
}

template <class T>
void check_number(std::string_view text) {
  std::string line(text.substr(0, text.find('\n')));
  line += '\n' + std::string(learn::kReadAhead, '\n');
  const char* at = line.c_str();
  T value{};
  if (learn::take_number(at, value) != learn::Numeral::kTaken) return;
  const char* begin = line.c_str() + (line[0] == '+' ? 1 : 0);
  T expected{};
  const auto [end, error] = std::from_chars(begin, begin + line.size(), expected);
  require(end == at, "a number ends where std::from_chars ends it");
  require(error != std::errc() || value == expected, "a number is as std::from_chars gives it");
}

template <class T>
void check(std::string_view text, std::int32_t first_index, std::size_t block_bytes) {
  const learn::SvmlightOptions options{.first_index = first_index, .last_index = 1000};
  SvmlightParser<T> whole = parse<T>(text, options, text.size());
  SvmlightParser<T> cut = parse<T>(text, options, block_bytes);
  require(whole.bad_count() == cut.bad_count(), "blocks change no line");
  require(!whole.take_bad_lines().empty() || whole.bad_count() == 0, "bad lines are told");
  const SvmlightRows<T> rows = whole.take(first_index);
  const SvmlightRows<T> same = cut.take(first_index);
  require(are_equal<double>(rows.labels.span(), same.labels.span()) &&
              are_equal<std::int64_t>(rows.starts.span(), same.starts.span()) &&
              are_equal<std::int32_t>(rows.columns.span(), same.columns.span()) &&
              are_equal<T>(rows.values.span(), same.values.span()),
          "blocks change no row");
  const learn::Csr<T> csr{rows.starts.span(), rows.columns.span(), rows.values.span(),
                          1001 - first_index};
  csr.check();
  require(csr.rows() == static_cast<std::int64_t>(rows.labels.size()), "a label a row");
}

}  // namespace

void run(Input input) {
  const std::int32_t first_index = input.take<std::uint8_t>() % 2;
  const std::size_t block_bytes = 1 + input.take<std::uint8_t>();
  const auto rest = input.rest();
  const std::string text(reinterpret_cast<const char*>(rest.data()), rest.size());
  check_number<float>(text);
  check_number<double>(text);
  check<float>(text, first_index, block_bytes);
  check<double>(text, first_index, block_bytes);
}

}  // namespace fuzz
