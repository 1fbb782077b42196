#include "vol/device/coder.hpp"

#include "dstorm/device/driver.hpp"

namespace vol::device {

using dstorm::device::check;
using dstorm::device::Driver;
using dstorm::device::Memory;

namespace {

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

}  // namespace

void copy_out(std::span<const Piece> pieces, DType dtype, Address to, Stream stream) {
  for (const Piece& piece : pieces) {
    const std::size_t bytes = piece.count * dtype_size(dtype);
    check(Driver::get().copy_async(to, reinterpret_cast<Address>(piece.data), bytes, stream),
          "copying on the GPU");
    to += bytes;
  }
}

void copy_in(std::span<const Piece> pieces, DType dtype, Address from, Stream stream) {
  for (const Piece& piece : pieces) {
    const std::size_t bytes = piece.count * dtype_size(dtype);
    check(Driver::get().copy_async(reinterpret_cast<Address>(piece.data), from, bytes, stream),
          "copying to the GPU");
    from += bytes;
  }
}

Coder::Coder(const Codec& codec, DType dtype, std::size_t count, std::shared_ptr<Gpu> gpu,
             std::shared_ptr<Program> program, std::string what)
    : codec_(codec),
      dtype_(dtype),
      count_(count),
      bytes_(vol::Coder(codec, dtype, count, what).bytes()),
      gpu_(std::move(gpu)),
      program_(std::move(program)),
      what_(std::move(what)) {}

Wire Coder::wire() const noexcept {
  switch (codec_.kind()) {
    case Codec::Kind::kFloat16:
      return Wire::kFloat16;
    case Codec::Kind::kBfloat16:
      return Wire::kBfloat16;
    case Codec::Kind::kInt8:
      return Wire::kInt8;
    case Codec::Kind::kTopK:
      return Wire::kLargest;
    case Codec::Kind::kNone:
      break;
  }
  return Wire::kPlain;
}

void Coder::encode(std::span<const Piece> pieces, Address to, Stream stream) {
  if (wire() == Wire::kPlain) return copy_out(pieces, dtype_, to, stream);
  const Address from = flat(pieces, stream);
  if (wire() == Wire::kLargest) return encode_largest(from, to, stream);
  program_->launch("encode", program_->blocks_for(count_),
                   EncodeArgs{at<const void>(from), at<void>(to), count_, wire()}, stream);
}

Address Coder::flat(std::span<const Piece> pieces, Stream stream) {
  if (pieces.size() == 1) return reinterpret_cast<Address>(pieces[0].data);
  if (flat_.bytes() == 0) flat_ = Memory(gpu_, count_ * dtype_size(dtype_), what_);
  copy_out(pieces, dtype_, flat_.at(), stream);
  return flat_.at();
}

void Coder::encode_largest(Address from, Address to, Stream stream) {
  const unsigned blocks = program_->blocks_for(count_);
  if (!largest_) {
    largest_.emplace(Largest{Memory(gpu_, count_ * dtype_size(dtype_), what_),
                             Memory(gpu_, sizeof(LargestState), what_),
                             Memory(gpu_, 256 * sizeof(Count), what_),
                             Memory(gpu_, blocks * sizeof(LargestTally), what_)});
  }
  const LargestArgs args{at<const void>(from),
                         at<void>(largest_->kept.at()),
                         at<void>(to),
                         count_,
                         bytes_ / (dtype_size(dtype_) + sizeof(int)),
                         has_kept_ ? 0 : 1,
                         blocks,
                         at<LargestState>(largest_->state.at()),
                         at<Count>(largest_->histogram.at()),
                         at<LargestTally>(largest_->tallies.at())};
  program_->launch("largest_begin", blocks, args, stream);
  has_kept_ = true;
  for (std::size_t byte = 0; byte < dtype_size(dtype_); ++byte) {
    program_->launch("largest_count", blocks, args, stream);
    program_->launch("largest_choose", 1, args, stream);
  }
  program_->launch("largest_tally", blocks, args, stream);
  program_->launch("largest_place", 1, args, stream);
  program_->launch("largest_write", blocks, args, stream);
}

void Coder::place(Address to, Address from, int* wrong, Stream stream) {
  const Count largest = bytes_ / (dtype_size(dtype_) + sizeof(int));
  check(Driver::get().set_async(to, 0, count_ * dtype_size(dtype_), stream), what_);
  program_->launch("place", program_->blocks_for(largest),
                   PlaceArgs{at<void>(to), at<const void>(from), count_, largest, 1.0, wrong},
                   stream);
}

}  // namespace vol::device
