// The network adapter that carries RDMA: how it is chosen, and the adapter once it is open.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dstorm/remote/verbs/device_settings.hpp"
#include "dstorm/remote/verbs/library.hpp"

namespace dstorm::verbs {

enum class Fabric : std::uint8_t { kInfiniBand = 1, kRoceV1 = 2, kRoceV2 = 3 };
std::string_view name_of(Fabric fabric);

// One port of one device, and the address by which it is used.
struct DeviceChoice {
  std::string name;
  std::uint8_t port = 0;  // from 1 on
  Fabric fabric = Fabric::kInfiniBand;
  std::uint32_t gid_index = 0;
  ibv_gid gid{};
  std::uint16_t lid = 0;                   // InfiniBand's own address; 0 under RoCE
  std::uint32_t mtu_bytes = 0;             // of the port as it is now
  std::uint32_t longest_write_bytes = 0;   // the longest message that the port carries
  std::optional<std::uint16_t> partition;  // the P_Key, if one was asked for
  std::uint16_t partition_index = 0;       // its index in the port's table
  std::uint8_t service_level = 0;
  std::uint8_t traffic_class = 0;
};

// "rxe1:1:1 (RoCE v2, 10.88.0.1, MTU 4096)", and those other settings that were asked for.
std::string describe(const DeviceChoice& choice);
std::string describe(const ibv_gid& gid);  // an IPv4 address where it holds one

// One port: the choice that would be made on it, or the reason why it cannot be used.
struct DeviceReport {
  DeviceChoice choice;
  std::string trouble;  // empty: usable
};

// Every port of every device. Throws ConfigError if libibverbs cannot list them.
std::vector<DeviceReport> survey(const Library& library);

// An event of the device, a port or a queue pair that no completion reports.
struct DeviceEvent {
  ibv_event_type type;
  std::string what;                     // "local catastrophic error"
  std::uint32_t number;                 // of the queue pair, else of the port, else 0
  const ibv_cq* completions = nullptr;  // the completion queue that the event is about
  bool is_last = false;                 // the device reports nothing any more
};

// An open device with a protection domain, which holds all memory and queues of one Device. It is a
// handle: copies share the device, which closes when the last copy, Region and Queue is destroyed.
// Any thread may use it.
class Device {
 public:
  // Opens the device that `settings` name. Without settings it opens the first active port, with
  // its first P_Key and 0 for the rest. Of several addresses it takes RoCE v2 over IPv4 first, then
  // RoCE v2 over IPv6, then RoCE v1. Throws ConfigError that lists the ports and says why each
  // cannot be used.
  static Device open(const Library& library, const RdmaOptions& options);
  static Device open(const Library& library, std::string_view device) {
    return open(library, RdmaOptions{.device = std::string(device)});
  }

  const DeviceChoice& choice() const noexcept;
  const Library& library() const noexcept;
  const ibv_device_attr& limits() const noexcept;
  ibv_context* context() const noexcept;
  ibv_pd* domain() const noexcept;

  // Keeps libibverbs' mappings of devices out of forked children. In a child they would keep the
  // queues of a killed rank alive, as descriptors would. To be called after a queue has been made.
  static void keep_from_children();

  // Becomes readable when next_event() has an event.
  int event_fd() const noexcept;
  // Does not block. For one thread. A device that has been removed reports that once, as its last
  // event (IBV_EVENT_DEVICE_FATAL); after it event_fd() means nothing and may stay readable.
  std::optional<DeviceEvent> next_event() const;

 private:
  struct Open;
  explicit Device(std::shared_ptr<const Open> open) : open_(std::move(open)) {}

  std::shared_ptr<const Open> open_;
};

}  // namespace dstorm::verbs
