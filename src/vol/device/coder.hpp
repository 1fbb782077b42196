// Codecs at work on a GPU: the same bytes as those of vol::Coder.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "vol/codec.hpp"
#include "vol/dense.hpp"
#include "vol/device/program.hpp"

namespace vol::device {

// For the one thread that uses the vector. The GPU is in use in every call.
class Coder {
 public:
  // Throws what the constructor of vol::Coder throws.
  Coder(const Codec& codec, DType dtype, std::size_t count, std::shared_ptr<Gpu> gpu,
        std::shared_ptr<Program> program, std::string what);

  Codec::Kind kind() const noexcept { return codec_.kind(); }
  Wire wire() const noexcept;
  std::size_t bytes() const noexcept { return bytes_; }  // of each update

  // Writes an update of the elements `pieces` to `to`.
  void encode(std::span<const Piece> pieces, Address to, Stream stream);
  // Top-k: writes all elements of the update at `from` to `to`. `wrong`: an int that the GPU can
  // write; it becomes 1 if the update is no update.
  void place(Address to, Address from, int* wrong, Stream stream);

 private:
  struct Largest {  // the memory of top-k
    dstorm::device::Memory kept, state, histogram, tallies;
  };

  Address flat(std::span<const Piece> pieces, Stream stream);
  void encode_largest(Address from, Address to, Stream stream);

  Codec codec_;
  DType dtype_;
  std::size_t count_;
  std::size_t bytes_;
  std::shared_ptr<Gpu> gpu_;
  std::shared_ptr<Program> program_;
  std::string what_;
  dstorm::device::Memory flat_;  // several arrays as one
  std::optional<Largest> largest_;
  bool has_kept_ = false;  // largest_ has what was not sent
};

// Copies the elements to one array, and from one.
void copy_out(std::span<const Piece> pieces, DType dtype, Address to, Stream stream);
void copy_in(std::span<const Piece> pieces, DType dtype, Address from, Stream stream);

}  // namespace vol::device
