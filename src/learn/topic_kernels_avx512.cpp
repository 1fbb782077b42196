// Compiled with -mavx512f -mavx512dq -mavx512bw -mavx512vl -mprefer-vector-width=512
// -ffp-contract=off, and only on x86-64.
#include "learn/topic_kernels_impl.hpp"

#if !defined(__AVX512F__) || !defined(__AVX512DQ__) || !defined(__AVX512BW__) || \
    !defined(__AVX512VL__)
#error "topic_kernels_avx512.cpp needs -mavx512f -mavx512dq -mavx512bw -mavx512vl"
#endif

namespace learn {

constinit const TopicKernels kAvx512TopicKernels = kTopicTable;

}  // namespace learn
