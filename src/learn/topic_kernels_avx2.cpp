// Compiled with -mavx2 -mfma -ffp-contract=off, and only on x86-64.
#include "learn/topic_kernels_impl.hpp"

#ifndef __AVX2__
#error "topic_kernels_avx2.cpp needs -mavx2"
#endif

namespace learn {

constinit const TopicKernels kAvx2TopicKernels = kTopicTable;

}  // namespace learn
