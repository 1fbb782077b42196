// A parser of text in the format of SVM-light and LIBSVM. It fills the arrays of a CSR matrix.
//
//   line:  [label {blank index:value}] [blank] [# comment]
//
// Label and value are decimal numbers. They are read as by std::from_chars, with the same results;
// a leading '+' is allowed; NaN and infinity are not. A value too small for a float is zero.
// Indices are whole numbers and rise within a line. A blank is spaces, tabs and '\r'. `qid:number`
// between the label and the first index, the query of a ranking, is skipped. Lines without a label
// are skipped.
//
// Sources: T. Joachims, SVM-light (svmlight.joachims.org); C.-C. Chang, C.-J. Lin, LIBSVM, ACM TIST
// 2, 2011, section 2 and its README.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "learn/growing_array.hpp"

namespace learn {

struct SvmlightOptions {
  // The range of the indices that a line may have; a line with another index is bad.
  std::int32_t first_index = 0;
  std::int32_t last_index = std::numeric_limits<std::int32_t>::max();
  int threads = 1;
};

// A line that was skipped because of an error.
struct BadLine {
  std::int64_t line;   // of its text, from 1
  std::string reason;  // "the indices do not rise"
  std::string text;    // from the error on, shortened, '?' for unprintable bytes
};

// A CSR matrix and its labels. T is float or double.
template <class T>
struct SvmlightRows {
  GrowingArray<double> labels;        // one a row
  GrowingArray<std::int64_t> starts;  // rows + 1: where each row begins, and the last one ends
  GrowingArray<std::int32_t> columns;
  GrowingArray<T> values;
};

// Parses text that comes in blocks of any size, from one or several files. It takes the memory of
// the rows; with several threads it takes the memory of the last block's rows once more. For one
// thread to call.
template <class T>
class SvmlightParser {
 public:
  static constexpr std::size_t kMostBadLines = 10;
  static constexpr std::size_t kMostLineBytes = std::size_t{1} << 30U;

  // Throws dstorm::ConfigError if an option is out of range.
  explicit SvmlightParser(const SvmlightOptions& options);

  // Takes the next block of a text. Its last line may go on in the next block, and waits for it.
  // Throws dstorm::ConfigError if a line is longer than kMostLineBytes.
  void feed(std::string_view block);
  // Ends the text, with or without a line end. The next feed() begins another text, at line 1.
  void end_text();

  // About the rows since the last take().
  std::int64_t rows() const { return static_cast<std::int64_t>(found_.rows.labels.size()); }
  std::int32_t lowest_index() const { return found_.lowest; }    // int32's largest if there is none
  std::int32_t highest_index() const { return found_.highest; }  // -1 if there is none

  // The number of lines skipped because of errors, in all texts.
  std::int64_t bad_count() const { return found_.bad_count; }
  // Returns the skipped lines since the last call, the first kMostBadLines of them.
  std::vector<BadLine> take_bad_lines() { return std::exchange(found_.bad_lines, {}); }

  // Hands over the rows so far. Columns are the indices less `base`. Throws dstorm::ConfigError if
  // an index is below it.
  SvmlightRows<T> take(std::int32_t base);

 private:
  // The contents of some lines.
  struct Found {
    Found() { rows.starts.push_back(0); }
    void clear();

    SvmlightRows<T> rows;
    std::int32_t lowest = std::numeric_limits<std::int32_t>::max();
    std::int32_t highest = -1;
    std::int64_t lines = 0;
    std::int64_t bad_count = 0;
    std::vector<BadLine> bad_lines;
  };

  void parse_waiting();
  void parse(std::string_view lines);
  void parse_lines(std::string_view lines, Found& found) const;
  void join(std::span<Found> parts);

  SvmlightOptions options_;
  Found found_;
  std::vector<Found> parts_;  // one a thread
  std::string waiting_;       // the end of the last block
};

}  // namespace learn
