// The element types of vectors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace vol {

enum class DType : std::uint32_t { kFloat32 = 1, kFloat64 = 2, kInt32 = 3, kInt64 = 4 };

constexpr std::size_t dtype_size(DType dtype) noexcept {
  return dtype == DType::kFloat32 || dtype == DType::kInt32 ? 4 : 8;
}
std::string_view dtype_name(DType dtype) noexcept;  // "float32", ...

}  // namespace vol
