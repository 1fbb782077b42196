// Compiled for the least processor the build supports.
#include "learn/topic_kernels_impl.hpp"

namespace learn {

constinit const TopicKernels kBaselineTopicKernels = kTopicTable;

}  // namespace learn
