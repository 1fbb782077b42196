#include "vol/codec.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "dstorm/errors.hpp"
#include "vol/kernels_level.hpp"
#include "vol/largest.hpp"

namespace vol {
namespace {

using dstorm::ConfigError;

constexpr std::size_t kScaled = WireKernels::kScaled;

std::size_t scales(std::size_t count) { return (count + kScaled - 1) / kScaled; }

bool is_float(DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kFloat64; }

}  // namespace

Codec Codec::top_k(double fraction) {
  if (!(fraction > 0 && fraction <= 1)) {
    throw ConfigError("TOP_K(" + std::to_string(fraction) +
                      "): the fraction of elements to send must be above 0 and at most 1");
  }
  Codec codec(Kind::kTopK);
  codec.fraction_ = fraction;
  return codec;
}

std::string Codec::name() const {
  switch (kind_) {
    case Kind::kNone:
      break;
    case Kind::kFloat16:
      return "float16";
    case Kind::kBfloat16:
      return "bfloat16";
    case Kind::kInt8:
      return "int8";
    case Kind::kTopK:
      return "top-k " + std::to_string(fraction_);
  }
  return "none";
}

Coder::Coder(const Codec& codec, DType dtype, std::size_t count, const std::string& what)
    : codec_(codec), dtype_(dtype), count_(count), bytes_(count * dtype_size(dtype)) {
  if (!is_on()) return;
  if (!is_float(dtype)) {
    throw ConfigError(what + " has dtype " + std::string(dtype_name(dtype)) + ", which codec " +
                      codec.name() + " cannot encode; use float32 or float64, or no codec");
  }
  switch (codec.kind()) {
    case Codec::Kind::kNone:
      break;
    case Codec::Kind::kFloat16:
    case Codec::Kind::kBfloat16:
      bytes_ = count * sizeof(std::uint16_t);
      break;
    case Codec::Kind::kInt8:
      bytes_ = scales(count) * sizeof(float) + count;
      break;
    case Codec::Kind::kTopK:
      if (count > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
        throw ConfigError(what + " has " + std::to_string(count) + " elements, top-k takes up to " +
                          std::to_string(std::numeric_limits<std::int32_t>::max()) +
                          "; split the vector");
      }
      largest_ = std::min(count, static_cast<std::size_t>(
                                     std::ceil(codec.fraction() * static_cast<double>(count))));
      bytes_ = largest_ * (dtype_size(dtype) + sizeof(std::int32_t));
      break;
  }
}

void Coder::encode_block(std::byte* to, std::size_t first, std::size_t n) {
  const WireKernels& kernel = wire_kernels();
  const auto* values = reinterpret_cast<const float*>(block_.data());
  if (dtype_ == DType::kFloat64) {
    floats_.resize(kBlock);
    kernel.narrow(floats_.data(), block_.data(), n);
    values = floats_.data();
  }
  switch (codec_.kind()) {
    case Codec::Kind::kFloat16:
      kernel.to_float16(to + first * sizeof(std::uint16_t), values, n);
      break;
    case Codec::Kind::kBfloat16:
      kernel.to_bfloat16(to + first * sizeof(std::uint16_t), values, n);
      break;
    default:
      kernel.to_int8(to + scales(count_) * sizeof(float) + first,
                     to + first / kScaled * sizeof(float), values, n);
      break;
  }
}

bool Coder::decode(std::byte* to, const std::byte* from) {
  if (codec_.kind() == Codec::Kind::kTopK) {
    return dtype_ == DType::kFloat32 ? decode_largest<float>(to, from)
                                     : decode_largest<double>(to, from);
  }
  const WireKernels& kernel = wire_kernels();
  floats_.resize(kBlock);
  for (std::size_t first = 0; first < count_; first += kBlock) {
    const std::size_t n = std::min(kBlock, count_ - first);
    void* const values = dtype_ == DType::kFloat64 ? static_cast<void*>(floats_.data())
                                                   : static_cast<void*>(to + first * sizeof(float));
    switch (codec_.kind()) {
      case Codec::Kind::kFloat16:
        kernel.from_float16(values, from + first * sizeof(std::uint16_t), n);
        break;
      case Codec::Kind::kBfloat16:
        kernel.from_bfloat16(values, from + first * sizeof(std::uint16_t), n);
        break;
      default:
        kernel.from_int8(values, from + scales(count_) * sizeof(float) + first,
                         from + first / kScaled * sizeof(float), n);
        break;
    }
    if (dtype_ == DType::kFloat64) kernel.widen(to + first * sizeof(double), values, n);
  }
  return true;
}

void Coder::encode_largest(std::byte* to) {
  if (dtype_ == DType::kFloat32) {
    encode_largest_of<float>(to);
  } else {
    encode_largest_of<double>(to);
  }
}

// Writes the values, then their indices in ascending order.
template <class T>
void Coder::encode_largest_of(std::byte* to) {
  const bool is_first = kept_.empty();
  kept_.resize(count_ * sizeof(T));
  T* const kept = reinterpret_cast<T*>(kept_.data());
  const T* const values = reinterpret_cast<const T*>(block_.data());
  for (std::size_t i = 0; i < count_; ++i) kept[i] = is_first ? values[i] : kept[i] + values[i];

  if (largest_ == 0) return;
  Least<T> least = least_of_largest<T>({kept, count_}, largest_);
  indices_.resize(largest_);
  std::size_t sent = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    const MagnitudeKey<T> key = magnitude_key(kept[i]);
    if (key < least.key) continue;
    if (key == least.key) {  // the first of these, so that equal vectors are sent alike
      if (least.equal == 0) continue;
      --least.equal;
    }
    std::memcpy(to + sent * sizeof(T), &kept[i], sizeof(T));
    indices_[sent++] = static_cast<std::int32_t>(i);
    kept[i] = 0;
  }
  std::memcpy(to + largest_ * sizeof(T), indices_.data(), largest_ * sizeof(std::int32_t));
}

template <class T>
bool Coder::decode_largest(std::byte* to, const std::byte* from) {
  indices_.resize(largest_);  // copied, then checked
  if (largest_ > 0) {
    std::memcpy(indices_.data(), from + largest_ * sizeof(T), largest_ * sizeof(std::int32_t));
  }
  std::memset(to, 0, count_ * sizeof(T));
  std::int32_t least = 0;
  for (std::size_t i = 0; i < largest_; ++i) {
    const std::int32_t index = indices_[i];
    if (index < least || static_cast<std::size_t>(index) >= count_) return false;
    std::memcpy(to + static_cast<std::size_t>(index) * sizeof(T), from + i * sizeof(T), sizeof(T));
    least = index + 1;
  }
  return true;
}

}  // namespace vol
