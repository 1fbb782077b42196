// Notes that this rank is about to send NaN, which averages carry into the vectors of all ranks.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "callbacks.hpp"

namespace malt_bindings {

// The watch of one vector. It looks at a few elements in each round: of a short vector at all, of a
// long one at other elements each time. A rank notes only NaN of its own: elements that had none
// after its last fold.
class NanWatch {
 public:
  // To be called before the rank sends `pieces`. `call`: how it sends them.
  void before_send(std::span<const vol::Piece> pieces, vol::DType dtype,
                   const dstorm::Segment& segment, const char* call) {
    if (!is_on_ || !had_none_ || !has_nan(pieces, dtype)) return;
    is_on_ = false;
    callbacks().note_nan(segment.group().rank(), segment.options().name, call);
  }
  // To be called when the rank has folded other ranks' values into `pieces`.
  void after_fold(std::span<const vol::Piece> pieces, vol::DType dtype) {
    if (!is_on_) return;
    begin_ = end_;
    had_none_ = !has_nan(pieces, dtype);
  }
  // The program reckons with NaN: it screens updates, or has a fold of its own.
  void stop() noexcept { is_on_ = false; }

 private:
  static constexpr std::size_t kLook = 64;  // elements, in some 10 ns

  struct Position {
    std::size_t piece = 0, element = 0;
  };

  // Whether one of the kLook elements from begin_ on is NaN; end_ is then the position after them.
  bool has_nan(std::span<const vol::Piece> pieces, vol::DType dtype) {
    end_ = begin_;
    std::size_t left = kLook;
    for (std::size_t seen = 0; seen < pieces.size() && left > 0; ++seen) {
      const vol::Piece& piece = pieces[end_.piece];
      const std::size_t count = std::min(left, piece.count - end_.element);
      if (dtype == vol::DType::kFloat32 ? is_nan_in<float>(piece, end_.element, count)
                                        : is_nan_in<double>(piece, end_.element, count)) {
        return true;
      }
      left -= count;
      end_.element += count;
      if (end_.element == piece.count)
        end_ = {end_.piece + 1 < pieces.size() ? end_.piece + 1 : 0, 0};
    }
    return false;
  }

  template <class T>
  static bool is_nan_in(const vol::Piece& piece, std::size_t from, std::size_t count) {
    const std::span values(static_cast<const T*>(piece.data) + from, count);
    int found = 0;
    for (const T value : values) found |= static_cast<int>(std::isnan(value));
    return found != 0;
  }

  bool is_on_ = true;
  bool had_none_ = true;  // the elements from begin_ on, after the last fold
  Position begin_, end_;
};

}  // namespace malt_bindings
