// The one place in which a vector in the memory of a GPU is folded. As vol::Folding.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "vol/dense.hpp"
#include "vol/device/program.hpp"
#include "vol/elements.hpp"

namespace vol::device {

// The elements of a vector.
struct Elements {
  Elements(DType given_dtype, std::vector<Piece> given)
      : dtype(given_dtype), pieces(std::move(given)), count(total_count(pieces)) {}

  DType dtype;
  std::vector<Piece> pieces;
  std::size_t count;  // that the vector was made with; DeviceVector::move_to() may leave fewer

  std::size_t bytes() const { return count * dtype_size(dtype); }
};

// For the one thread that uses the vector. The GPU is in use in every call.
class Folding {
 public:
  // `elements` outlive it. `what` names the vector in errors.
  Folding(const Elements& elements, std::shared_ptr<Program> program, std::string what)
      : elements_(elements), program_(std::move(program)), what_(std::move(what)) {}

  // Begins to fold the updates at these addresses, and this rank's elements in their place among
  // them, into the elements. `weights`: for WEIGHTED, one for each in that order. Throws
  // ConfigError if there are too many.
  void fold(const Fold& fold, int own_rank, std::span<const dstorm::Update> updates,
            std::span<const Address> at, Wire wire, std::span<const double> weights, Stream stream);

 private:
  const Elements& elements_;
  std::shared_ptr<Program> program_;
  std::string what_;
};

}  // namespace vol::device
