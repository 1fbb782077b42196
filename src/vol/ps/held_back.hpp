// Gradients that a client holds back because they are small.
//  P8 A gradient that a client was given is in one place until it is in a message, which P2 and P3
//     protect from then on. It is added to the sum that is held back for its row. The sum goes into
//     a message as a whole when one of its values reaches the threshold, or when the client sends
//     all. The client sends at once what it takes out here, so that no time limit comes between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "vol/ps/table.hpp"

namespace vol::ps {

class HeldBack {
 public:
  explicit HeldBack(const TableOptions& options) : options_(options) {}

  // Rows to be sent; they grow.
  struct Sifted {
    std::vector<std::int64_t> keys;
    std::vector<std::byte> gradients;
    Rows rows() const { return {keys.data(), 0, keys.size()}; }
  };
  // Adds gradients to what is held back, and takes out the rows, of those given, that have a value
  // of at least the threshold or one that is not a number.
  Sifted add(const Rows& rows, const std::byte* gradients);
  // Takes out at most so many rows.
  Sifted take(std::size_t most);
  // Takes what another one holds back.
  void take_over(HeldBack& before);
  void clear() {
    places_.clear();
    sums_.clear();
    free_.clear();
  }
  // Rows that are held back.
  std::size_t rows() const { return places_.size(); }

 private:
  template <class T>
  Sifted add_of(const Rows& rows, const T* gradients);

  const TableOptions& options_;
  std::unordered_map<std::int64_t, std::size_t> places_;  // by row, in sums_
  std::vector<std::byte> sums_;                           // of row_bytes() each
  std::vector<std::size_t> free_;                         // places without a row
};

}  // namespace vol::ps
