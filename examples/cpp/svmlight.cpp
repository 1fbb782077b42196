#include "svmlight.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <random>
#include <stdexcept>

namespace {

// Takes a number off the front of `text`.
template <class Number>
bool take(const char*& text, const char* end, Number& number) {
  while (text != end && *text == ' ') ++text;
  if (text != end && *text == '+') ++text;
  const auto [rest, error] = std::from_chars(text, end, number);
  if (error != std::errc()) return false;
  text = rest;
  return true;
}

bool parse_line(const std::string& line, Rows& rows, std::size_t dim) {
  const char* text = line.data();
  const char* const end = text + line.size();
  float label = 0;
  if (!take(text, end, label)) return false;
  rows.labels.push_back(label > 0 ? 1.0F : -1.0F);
  for (std::uint32_t column = 0; take(text, end, column);) {
    float value = 0;
    if (column == 0 || text == end || *text++ != ':' || !take(text, end, value)) return false;
    if (dim != 0 && column > dim) continue;
    rows.columns.push_back(column - 1);
    rows.values.push_back(value);
    rows.dim = std::max<std::size_t>(rows.dim, column);
  }
  rows.starts.push_back(rows.columns.size());
  return std::all_of(text, end, [](char c) { return c == ' ' || c == '\r'; });
}

}  // namespace

Rows read_svmlight(const std::string& path, std::size_t dim) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  Rows rows;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (!parse_line(line, rows, dim)) {
      throw std::runtime_error(path + ", line " + std::to_string(number) +
                               ": this is not `label column:value ...`, columns from 1");
    }
  }
  if (rows.size() == 0) throw std::runtime_error(path + " is empty");
  if (dim != 0) rows.dim = dim;
  return rows;
}

Generated generate(std::size_t train_rows, std::size_t test_rows, std::size_t dim) {
  constexpr int kEntries = 40;  // in a row
  std::mt19937 random(0);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform;
  std::vector<float> plane(dim);
  for (float& x : plane) x = normal(random);

  Generated sets;
  for (std::size_t i = 0; i < train_rows + test_rows; ++i) {
    Rows& rows = i < train_rows ? sets.train : sets.test;
    float margin = 0;
    for (int k = 0; k < kEntries; ++k) {
      // Few columns are common and many are rare, as words are.
      const auto column = static_cast<std::uint32_t>(std::pow(dim, uniform(random))) - 1;
      const float value = 1 / std::sqrt(static_cast<float>(kEntries));
      rows.columns.push_back(column);
      rows.values.push_back(value);
      margin += plane[column] * value;
    }
    rows.starts.push_back(rows.columns.size());
    rows.labels.push_back((margin > 0) != (uniform(random) < 0.05F) ? 1.0F : -1.0F);
    rows.dim = dim;
  }
  return sets;
}
