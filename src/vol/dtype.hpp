// The element types of vectors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace vol {

// The last two have no codec and no max_norm.
enum class DType : std::uint32_t {
  kFloat32 = 1,
  kFloat64 = 2,
  kInt32 = 3,
  kInt64 = 4,
  kFloat16 = 5,
  kBfloat16 = 6
};

constexpr std::size_t dtype_size(DType dtype) noexcept {
  if (dtype == DType::kFloat16 || dtype == DType::kBfloat16) return 2;
  return dtype == DType::kFloat32 || dtype == DType::kInt32 ? 4 : 8;
}
std::string_view dtype_name(DType dtype) noexcept;  // "float32", ...

}  // namespace vol
