// Codecs: a dense vector of floats goes over the wire in fewer bytes than it has in memory. Other
// ranks fold the decoded values; this rank's own values stay as they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "vol/dtype.hpp"

namespace vol {

// A value type: copy it freely.
class Codec {
 public:
  enum class Kind : std::uint8_t { kNone, kFloat16, kBfloat16, kInt8, kTopK };

  Codec() = default;  // none
  static Codec float16() { return Codec(Kind::kFloat16); }
  static Codec bfloat16() { return Codec(Kind::kBfloat16); }
  // Each 256 elements share a scale, the largest magnitude among them / 127. If one of them is not
  // finite, all of them become NaN.
  static Codec int8() { return Codec(Kind::kInt8); }
  // Sends the ceil(fraction * n) elements of largest magnitude. The receivers get zeros for the
  // others, which are kept and added to what is sent next (error feedback: Stich, Cordonnier,
  // Jaggi, "Sparsified SGD with Memory", 2018). For sums of gradients or differences. Throws
  // ConfigError unless 0 < fraction <= 1.
  static Codec top_k(double fraction);

  Kind kind() const noexcept { return kind_; }
  double fraction() const noexcept { return fraction_; }
  std::string name() const;  // "float16", "top-k 0.01", ...

 private:
  explicit Codec(Kind kind) : kind_(kind) {}

  Kind kind_ = Kind::kNone;
  double fraction_ = 1;
};

// A codec at work for one vector. For the one thread that uses the vector.
class Coder {
 public:
  // `what` names the vector in errors. Throws ConfigError if a codec is given for integers, or
  // top-k for more elements than an index can count.
  Coder(const Codec& codec, DType dtype, std::size_t count, const std::string& what);

  Codec::Kind kind() const noexcept { return codec_.kind(); }
  bool is_on() const noexcept { return kind() != Codec::Kind::kNone; }
  // The length of every update: that of the elements themselves if there is no codec.
  std::size_t bytes() const noexcept { return bytes_; }

  // Encodes the whole vector into `to`, which has bytes() bytes. get(place, first, last) copies
  // elements [first, last) to `place`. With top-k, encode() may be called only for an update that
  // is really sent, because the elements not sent are kept for the next one.
  template <class Get>
  void encode(std::byte* to, Get&& get) {
    if (codec_.kind() == Codec::Kind::kTopK) {
      block_.resize(count_ * dtype_size(dtype_));
      get(block_.data(), std::size_t{0}, count_);
      encode_largest(to);
      return;
    }
    block_.resize(kBlock * dtype_size(dtype_));
    for (std::size_t first = 0; first < count_; first += kBlock) {
      const std::size_t last = first + kBlock < count_ ? first + kBlock : count_;
      get(block_.data(), first, last);
      encode_block(to, first, last - first);
    }
  }

  // Decodes an update of bytes() bytes, which comes from another rank: whatever it holds, it is
  // decoded or refused. Returns false if its indices are not indices of `count` elements in rising
  // order.
  bool decode(std::byte* to, const std::byte* from);

 private:
  static constexpr std::size_t kBlock = 4096;  // elements converted at a time

  void encode_block(std::byte* to, std::size_t first, std::size_t n);
  void encode_largest(std::byte* to);
  template <class T>
  void encode_largest_of(std::byte* to);
  template <class T>
  bool decode_largest(std::byte* to, const std::byte* from);

  Codec codec_;
  DType dtype_;
  std::size_t count_;
  std::size_t largest_ = 0;  // elements that top-k sends
  std::size_t bytes_;
  std::vector<std::byte> block_;
  std::vector<float> floats_;
  std::vector<std::byte> kept_;  // by top-k, for the next update; of the vector's type
  std::vector<std::int32_t> indices_;
};

}  // namespace vol
