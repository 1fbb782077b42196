#include "vol/elements.hpp"

#include <numeric>

#include "dstorm/errors.hpp"
#include "vol/kernels.hpp"

namespace vol {

std::vector<Piece> Elements::check_apart(std::vector<Piece> pieces, DType dtype,
                                         const std::string& what) {
  std::vector<std::size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto begin = [&](std::size_t i) {
    return reinterpret_cast<std::uintptr_t>(pieces[i].data);
  };
  const auto end = [&](std::size_t i) { return begin(i) + pieces[i].count * dtype_size(dtype); };
  std::ranges::sort(order, {}, begin);
  std::size_t last = 0;  // of those before, the one that ends last
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (end(order[last]) > begin(order[i])) {
      const auto [first, second] = std::minmax(order[last], order[i]);
      throw dstorm::ConfigError(
          what + ": its arrays " + std::to_string(first) + " and " + std::to_string(second) +
          " (counted from 0) share memory, which would be folded twice; give each "
          "array once, and of overlapping ones the array that has both");
    }
    if (end(order[i]) > end(order[last])) last = i;
  }
  return pieces;
}

Elements::Elements(DType dtype, std::vector<Piece> pieces)
    : dtype_(dtype), pieces_(std::move(pieces)) {
  for (const Piece& piece : pieces_) bytes_ += piece.count * dtype_size(dtype);
}

void Elements::copy_out(std::byte* to, Range range) const {
  visit(range, [&](const std::byte* data, std::size_t bytes, std::size_t place) {
    vol::copy(to + (place - range.begin), data, bytes);
  });
}

void Elements::copy_in(const std::byte* from, Range range) const {
  visit(range, [&](std::byte* data, std::size_t bytes, std::size_t place) {
    vol::copy(data, from + (place - range.begin), bytes);
  });
}

}  // namespace vol
