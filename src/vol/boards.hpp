// Which board of a dense vector's segment serves what (dstorm/collective/shared_fold.hpp).
#pragma once

namespace vol {

inline constexpr int kAllreduceBoard = 0;
inline constexpr int kGatherBoard = 1;

}  // namespace vol
