// How text becomes a CSR matrix. feed() first completes the line that the last block began, and
// then parses the whole lines of the new block; the rest waits for the next block. parse() cuts the
// lines into parts of about equal length. Each thread parses one part into arrays of its own, and
// join() appends these to the rows found so far; with one part the lines go straight there. take()
// hands the rows over. svmlight_line.hpp parses a line, decimal.hpp a number.
#include "learn/svmlight.hpp"

#include <algorithm>
#include <cstring>
#include <future>

#include "dstorm/errors.hpp"
#include "learn/svmlight_line.hpp"

namespace learn {
namespace {

constexpr std::size_t kLeastPart = std::size_t{1} << 16U;  // bytes that are worth a thread
// The lengths of the shortest line and the shortest pair, with their separators. They limit how
// many there may be.
constexpr std::size_t kLeastLine = 2;  // "1\n"
constexpr std::size_t kLeastPair = 4;  // "1:1 "

std::string reason_of(Flaw flaw, const SvmlightOptions& options) {
  switch (flaw) {
    case Flaw::kLabel:
      return "the label is not one number";
    case Flaw::kQuery:
      return "qid: is without a whole number";
    case Flaw::kIndexRange:
      return "the index is not from " + std::to_string(options.first_index) + " to " +
             std::to_string(options.last_index);
    case Flaw::kOrder:
      return "the indices do not increase";
    case Flaw::kValue:
      return "the value is not a number";
    case Flaw::kNotFinite:
      return "the number is NaN or infinite";
    case Flaw::kValueRange:
      return "the number is out of the type's range";
    default:
      return "index:value was expected";
  }
}

std::string shortened(const char* at) {
  constexpr std::size_t kMost = 40;
  std::string text;
  for (; *at != '\n' && *at != '\r' && text.size() < kMost; ++at) {
    text += *at >= ' ' && *at <= '~' ? *at : '?';
  }
  return text.size() < kMost ? text : text + "...";
}

const char* after_line(const char* at, const char* end) {
  return static_cast<const char*>(std::memchr(at, '\n', static_cast<std::size_t>(end - at))) + 1;
}

template <class T>
void extend_to(GrowingArray<T>& array, std::size_t size) {
  const std::size_t more = size - array.size();
  array.reserve_more(more);
  array.extend(more);
}

// Calls of(0) to of(count - 1), the first on this thread and each other one on a thread of its own.
// When all have ended, it throws what one of them threw.
template <class Of>
void on_threads(std::size_t count, const Of& of) {
  std::vector<std::future<void>> others;
  for (std::size_t i = 1; i < count; ++i) {
    others.push_back(std::async(std::launch::async, [&of, i] { of(i); }));
  }
  of(0);
  for (std::future<void>& other : others) other.get();
}

// Splits `lines` at line ends into at most `count` parts of about the same length.
std::vector<std::string_view> split(std::string_view lines, std::size_t count) {
  std::vector<std::string_view> parts;
  count = std::min(count, lines.size() / kLeastPart + 1);
  for (; count > 1 && !lines.empty(); --count) {
    const std::size_t length = lines.find('\n', lines.size() / count) + 1;
    parts.push_back(lines.substr(0, length));
    lines.remove_prefix(length);
  }
  if (!lines.empty()) parts.push_back(lines);
  return parts;
}

}  // namespace

template <class T>
void SvmlightParser<T>::Found::clear() {
  rows.labels.clear();
  rows.starts.clear();
  rows.columns.clear();
  rows.values.clear();
  rows.starts.push_back(0);
  lowest = std::numeric_limits<std::int32_t>::max();
  highest = -1;
  lines = bad_count = 0;
  bad_lines.clear();
}

template <class T>
SvmlightParser<T>::SvmlightParser(const SvmlightOptions& options) : options_(options) {
  if (options.first_index < 0 || options.last_index < options.first_index) {
    throw dstorm::ConfigError("indices are to go from " + std::to_string(options.first_index) +
                              " to " + std::to_string(options.last_index) +
                              "; the first is at least 0, and the last at least the first");
  }
  if (options.threads < 1) {
    throw dstorm::ConfigError("threads is " + std::to_string(options.threads) +
                              "; it must be at least 1");
  }
}

template <class T>
void SvmlightParser<T>::feed(std::string_view block) {
  if (!waiting_.empty()) {
    const std::size_t line_end = block.find('\n');
    const std::string_view rest = block.substr(0, line_end == block.npos ? line_end : line_end + 1);
    if (waiting_.size() + rest.size() > kMostLineBytes) {
      throw dstorm::ConfigError("line " + std::to_string(found_.lines + 1) + " is longer than " +
                                std::to_string(kMostLineBytes) +
                                " bytes: this is not svmlight text");
    }
    waiting_ += rest;
    if (line_end == block.npos) return;
    parse_waiting();
    block.remove_prefix(rest.size());
  }
  std::size_t parsed = 0;
  if (block.size() > kReadAhead) parsed = block.rfind('\n', block.size() - kReadAhead - 1) + 1;
  parse(block.substr(0, parsed));
  waiting_ = block.substr(parsed);
}

template <class T>
void SvmlightParser<T>::end_text() {
  if (!waiting_.empty() && waiting_.back() != '\n') waiting_ += '\n';
  parse_waiting();
  found_.lines = 0;
}

template <class T>
void SvmlightParser<T>::parse_waiting() {
  const std::size_t length = waiting_.size();
  waiting_.append(kReadAhead, '\n');
  parse(std::string_view(waiting_).substr(0, length));
  waiting_.clear();
}

// `lines` ends with a line end, after which kReadAhead bytes can be read.
template <class T>
void SvmlightParser<T>::parse(std::string_view lines) {
  const auto parts = split(lines, static_cast<std::size_t>(options_.threads));
  if (parts.empty()) return;
  if (parts.size() == 1) return parse_lines(lines, found_);
  parts_.resize(std::max(parts_.size(), parts.size()));
  on_threads(parts.size(), [&](std::size_t i) {
    parts_[i].clear();
    parse_lines(parts[i], parts_[i]);
  });
  join(std::span(parts_).first(parts.size()));
}

template <class T>
void SvmlightParser<T>::parse_lines(std::string_view lines, Found& found) const {
  SvmlightRows<T>& rows = found.rows;
  rows.labels.reserve_more(lines.size() / kLeastLine);
  rows.starts.reserve_more(lines.size() / kLeastLine);
  rows.columns.reserve_more(lines.size() / kLeastPair + 1);
  rows.values.reserve_more(lines.size() / kLeastPair + 1);
  const char* const end = lines.data() + lines.size();
  for (const char* at = lines.data(); at != end; at = after_line(at, end)) {
    ++found.lines;
    at = skip_blanks(at);
    if (*at == '\n' || *at == '#') continue;
    Row<T> row{.column = rows.columns.end(), .value = rows.values.end()};
    const Flaw flaw = parse_row(at, options_.first_index, options_.last_index, row);
    if (flaw != Flaw::kNone) {
      ++found.bad_count;
      if (found.bad_lines.size() < kMostBadLines) {
        found.bad_lines.push_back({found.lines, reason_of(flaw, options_), shortened(at)});
      }
      continue;
    }
    const auto count = static_cast<std::size_t>(row.column - rows.columns.end());
    if (count != 0) {
      found.lowest = std::min(found.lowest, *rows.columns.end());
      found.highest = std::max(found.highest, row.column[-1]);
    }
    rows.columns.extend(count);
    rows.values.extend(count);
    rows.labels.push_back(row.label);
    rows.starts.push_back(static_cast<std::int64_t>(rows.columns.size()));
  }
}

// Appends what the threads have found.
template <class T>
void SvmlightParser<T>::join(std::span<Found> parts) {
  SvmlightRows<T>& all = found_.rows;
  std::vector<std::size_t> first_row{all.labels.size()};
  std::vector<std::size_t> first_pair{all.columns.size()};
  for (Found& part : parts) {
    for (BadLine& bad : part.bad_lines) {
      if (found_.bad_lines.size() == kMostBadLines) break;
      bad.line += found_.lines;
      found_.bad_lines.push_back(std::move(bad));
    }
    found_.bad_count += part.bad_count;
    found_.lines += part.lines;
    found_.lowest = std::min(found_.lowest, part.lowest);
    found_.highest = std::max(found_.highest, part.highest);
    first_row.push_back(first_row.back() + part.rows.labels.size());
    first_pair.push_back(first_pair.back() + part.rows.columns.size());
  }
  extend_to(all.labels, first_row.back());
  extend_to(all.starts, first_row.back() + 1);
  extend_to(all.columns, first_pair.back());
  extend_to(all.values, first_pair.back());
  on_threads(parts.size(), [&](std::size_t i) {
    const SvmlightRows<T>& rows = parts[i].rows;
    std::ranges::copy(rows.labels.span(), all.labels.data() + first_row[i]);
    std::ranges::transform(rows.starts.span().subspan(1), all.starts.data() + first_row[i] + 1,
                           [first = static_cast<std::int64_t>(first_pair[i])](std::int64_t start) {
                             return first + start;
                           });
    std::ranges::copy(rows.columns.span(), all.columns.data() + first_pair[i]);
    std::ranges::copy(rows.values.span(), all.values.data() + first_pair[i]);
  });
}

template <class T>
SvmlightRows<T> SvmlightParser<T>::take(std::int32_t base) {
  if (found_.highest >= 0 && found_.lowest < base) {
    throw dstorm::ConfigError("index " + std::to_string(found_.lowest) +
                              " occurs, where columns are counted from " + std::to_string(base));
  }
  SvmlightRows<T> taken = std::exchange(found_.rows, {});
  found_.rows.starts.push_back(0);
  found_.lowest = std::numeric_limits<std::int32_t>::max();
  found_.highest = -1;
  for (std::int32_t& column : taken.columns.span()) column -= base;
  taken.labels.shrink_to_fit();
  taken.starts.shrink_to_fit();
  taken.columns.shrink_to_fit();
  taken.values.shrink_to_fit();
  return taken;
}

template class SvmlightParser<float>;
template class SvmlightParser<double>;

}  // namespace learn
