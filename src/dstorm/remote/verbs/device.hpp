// Which network adapter carries our RDMA, and the adapter itself once it is open.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dstorm/remote/verbs/library.hpp"

namespace dstorm::verbs {

// The environment variables whose values are those of DeviceSettings.
inline constexpr const char* kDeviceVariable = "MALT_RDMA_DEVICE";
inline constexpr const char* kPartitionVariable = "MALT_RDMA_PKEY";
inline constexpr const char* kServiceLevelVariable = "MALT_RDMA_SL";
inline constexpr const char* kTrafficClassVariable = "MALT_RDMA_TRAFFIC_CLASS";

// What the user asks for; empty: not set.
struct DeviceSettings {
  std::string device{};         // "name", "name:port" or "name:port:gid_index"
  std::string partition{};      // P_Key: 1 to 0xffff, hexadecimal after 0x
  std::string service_level{};  // 0 to 15 (InfiniBand), 0 to 7 (RoCE: the priority)
  std::string traffic_class{};  // 0 to 255 (RoCE: six bits of DSCP, two of ECN)

  static DeviceSettings from_environment();
  bool is_set() const noexcept {
    return !device.empty() || !partition.empty() || !service_level.empty() ||
           !traffic_class.empty();
  }
};

enum class Fabric : std::uint8_t { kInfiniBand = 1, kRoceV1 = 2, kRoceV2 = 3 };

// One port of one device, and the address we use it by.
struct DeviceChoice {
  std::string name;
  std::uint8_t port = 0;  // from 1 on
  Fabric fabric = Fabric::kInfiniBand;
  std::uint32_t gid_index = 0;
  ibv_gid gid{};
  std::uint16_t lid = 0;                   // InfiniBand's own address; 0 under RoCE
  std::uint32_t mtu_bytes = 0;             // of the port as it is now
  std::uint32_t longest_write_bytes = 0;   // that the port carries as one message
  std::optional<std::uint16_t> partition;  // the P_Key, if one was asked for
  std::uint16_t partition_index = 0;       // of it in the port's table
  std::uint8_t service_level = 0;
  std::uint8_t traffic_class = 0;
};

// "rxe1:1:1 (RoCE v2, 10.88.0.1, MTU 4096)", and what of the rest was asked for
std::string describe(const DeviceChoice& choice);
std::string describe(const ibv_gid& gid);  // an IPv4 address where it holds one

// A port as found: what we would use of it, or why we would not.
struct DeviceReport {
  DeviceChoice choice;
  std::string trouble;  // empty: usable
};

// Every port of every device. Throws ConfigError if libibverbs cannot list them.
std::vector<DeviceReport> survey(const Library& library);

// Something that happened to the device, a port or a queue pair, of which no completion tells.
struct DeviceEvent {
  ibv_event_type type;
  std::string what;                     // "local catastrophic error"
  std::uint32_t number;                 // of the queue pair, else of the port, else 0
  const ibv_cq* completions = nullptr;  // the completion queue that it is about
  bool is_last = false;                 // the device can tell of nothing any more
};

// An open device with a protection domain, in which all memory and queues of one Device lie. A
// handle: copies share the device, which closes when the last copy, Region and Queue is gone.
// Any thread.
class Device {
 public:
  // Without settings the first port that is active, its first P_Key, and 0 for the rest. Of several
  // addresses RoCE v2 over IPv4 comes first, then over IPv6, then RoCE v1. Throws ConfigError: what
  // there is, and why it will not do.
  static Device open(const Library& library, const DeviceSettings& settings);
  static Device open(const Library& library, std::string_view device) {
    return open(library, DeviceSettings{.device = std::string(device)});
  }

  const DeviceChoice& choice() const noexcept;
  const Library& library() const noexcept;
  const ibv_device_attr& limits() const noexcept;
  ibv_context* context() const noexcept;
  ibv_pd* domain() const noexcept;

  // Keeps what libibverbs has mapped of devices out of forked children, where it would keep the
  // queues of a rank that is killed alive as their descriptors would. After a queue is made.
  static void keep_from_children();

  // Readable when next_event() has one.
  int event_fd() const noexcept;
  // Does not block. One thread. A device that is gone tells so once: IBV_EVENT_DEVICE_FATAL, the last
  // one, after which event_fd() says nothing more and may stay readable.
  std::optional<DeviceEvent> next_event() const;

 private:
  struct Open;
  explicit Device(std::shared_ptr<const Open> open) : open_(std::move(open)) {}

  std::shared_ptr<const Open> open_;
};

}  // namespace dstorm::verbs
