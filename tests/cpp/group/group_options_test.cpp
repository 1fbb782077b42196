// What GroupOptions has by default.
#include <gtest/gtest.h>

#include <cstdlib>

#include "dstorm/group.hpp"

namespace dstorm {
namespace {

TEST(GroupOptions, TakeTlsAndTheAdapterFromTheEnvironment) {
  const char* const variables[] = {"MALT_TLS", "MALT_RDMA_DEVICE", "MALT_RDMA_PKEY", "MALT_RDMA_SL",
                                   "MALT_RDMA_TRAFFIC_CLASS"};
  for (const char* variable : variables) unsetenv(variable);
  EXPECT_EQ(GroupOptions().tls, "");
  EXPECT_FALSE(GroupOptions().rdma.is_set());
  for (const char* variable : variables) setenv(variable, variable, 1);
  const GroupOptions options{.transport = "tcp"};
  EXPECT_EQ(options.tls, "MALT_TLS");
  EXPECT_EQ(options.rdma.device, "MALT_RDMA_DEVICE");
  EXPECT_EQ(options.rdma.partition, "MALT_RDMA_PKEY");
  EXPECT_EQ(options.rdma.service_level, "MALT_RDMA_SL");
  EXPECT_EQ(options.rdma.traffic_class, "MALT_RDMA_TRAFFIC_CLASS");
  for (const char* variable : variables) unsetenv(variable);
}

}  // namespace
}  // namespace dstorm
