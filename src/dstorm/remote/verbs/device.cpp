// How an adapter is chosen and opened. inspect() looks at one port of one device: its state, its
// addresses (GIDs), and whether the user's settings can be applied to it. It returns the choice for
// that port, or the reason why the port cannot be used. survey() returns that for every port.
// Device::open() takes the first port that can be used; if there is none, its error has the reasons
// of all ports. next_event() translates an asynchronous event of the open device.
#include "dstorm/remote/verbs/device.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <span>
#include <sstream>
#include <utility>

#include "dstorm/errors.hpp"
#include "dstorm/host/fork.hpp"

namespace dstorm::verbs {
namespace {

// ---- Addresses ----

bool is_ipv4(const ibv_gid& gid) {
  return IN6_IS_ADDR_V4MAPPED(reinterpret_cast<const in6_addr*>(gid.raw));
}
bool is_link_local(const ibv_gid& gid) { return gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80; }

Fabric fabric_of(const ibv_gid_entry& entry) {
  switch (entry.gid_type) {
    case IBV_GID_TYPE_ROCE_V1:
      return Fabric::kRoceV1;
    case IBV_GID_TYPE_ROCE_V2:
      return Fabric::kRoceV2;
    default:
      return Fabric::kInfiniBand;
  }
}

std::string hexadecimal(std::uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof(text), "0x%04x", value);
  return text;
}

// The bits of a P_Key that name the partition. The highest bit tells a full member from a limited
// one: 0x8001 and 1 are the same partition.
constexpr std::uint16_t kPartitionBits = 0x7fff;

// Puts the settings into the choice. Returns why this port cannot apply them, or "".
std::string apply(const Library& library, ibv_context* context, const ibv_port_attr& port,
                  const Numbers& numbers, DeviceChoice& choice) {
  const std::string where = choice.name + ":" + std::to_string(choice.port) + " ";
  const bool is_infiniband = choice.fabric == Fabric::kInfiniBand;
  if (numbers.service_level > 7U && !is_infiniband) {
    return std::string(RdmaOptions::kServiceLevelVariable) + "=" +
           std::to_string(*numbers.service_level) + ": " + where +
           "is RoCE, which has the priorities 0 to 7";
  }
  if (numbers.traffic_class && is_infiniband) {
    return std::string(RdmaOptions::kTrafficClassVariable) + "=" +
           std::to_string(*numbers.traffic_class) + ": " + where + "is InfiniBand, which uses " +
           RdmaOptions::kServiceLevelVariable + " instead";
  }
  choice.service_level = static_cast<std::uint8_t>(numbers.service_level.value_or(0));
  choice.traffic_class = static_cast<std::uint8_t>(numbers.traffic_class.value_or(0));
  if (!numbers.partition) return "";
  std::string there;
  for (std::uint16_t i = 0; i < port.pkey_tbl_len; ++i) {
    __be16 found = 0;
    if (library.query_pkey(context, choice.port, i, &found) != 0) continue;
    const std::uint16_t key = ntohs(found);
    if ((key & kPartitionBits) == 0) continue;  // an empty place
    if ((key & kPartitionBits) == (*numbers.partition & kPartitionBits)) {
      choice.partition = key;
      choice.partition_index = i;
      return "";
    }
    there += (there.empty() ? "" : ", ") + hexadecimal(key);
  }
  return std::string(RdmaOptions::kPartitionVariable) + "=" + hexadecimal(*numbers.partition) +
         ": " + where + "has no such partition key; it has " + (there.empty() ? "none" : there) +
         " (the subnet manager gives them" + (is_infiniband ? ")" : "; RoCE has no others)");
}

// The preference among addresses; the highest value is best. RoCE v2 is routed, hosts are usually
// reached by IPv4, and a link-local address says little about the network it is on.
int rank_of(const ibv_gid_entry& entry) {
  if (fabric_of(entry) != Fabric::kRoceV2) return 0;
  if (is_ipv4(entry.gid)) return 3;
  return is_link_local(entry.gid) ? 1 : 2;
}

std::vector<ibv_gid_entry> addresses_of(const Library& library, ibv_context* context,
                                        const ibv_device_attr& limits, std::uint32_t port) {
  std::size_t most = 0;
  for (std::uint32_t p = 1; p <= limits.phys_port_cnt; ++p) {
    ibv_port_attr attributes{};
    if (library.query_port(context, static_cast<std::uint8_t>(p),
                           reinterpret_cast<_compat_ibv_port_attr*>(&attributes)) == 0) {
      most += static_cast<std::size_t>(attributes.gid_tbl_len);
    }
  }
  std::vector<ibv_gid_entry> all(most);
  const ssize_t count =
      library.query_gid_table(context, all.data(), all.size(), 0, sizeof(ibv_gid_entry));
  all.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
  std::erase_if(all, [&](const ibv_gid_entry& entry) { return entry.port_num != port; });
  return all;
}

// ---- Looking ----

constexpr std::string_view kNoDevice =
    "this machine has no RDMA device; load the driver of its network adapter, or use another "
    "transport (software RDMA for a test: modprobe rdma_rxe; rdma link add rxe0 type rxe netdev "
    "eth0)";

std::uint32_t bytes_of(ibv_mtu mtu) { return std::uint32_t{128} << static_cast<unsigned>(mtu); }

// Looks at one port, with the address that was asked for, or else the best one there is.
DeviceReport inspect(const Library& library, ibv_context* context, const ibv_device_attr& limits,
                     std::uint32_t port, std::optional<std::uint32_t> gid_index,
                     const Numbers& numbers) {
  DeviceReport report;
  DeviceChoice& choice = report.choice;
  choice.name = library.get_device_name(context->device);
  choice.port = static_cast<std::uint8_t>(port);
  const std::string where = choice.name + ":" + std::to_string(port) + " ";
  if (context->device->transport_type != IBV_TRANSPORT_IB) {
    report.trouble = where + "is neither InfiniBand nor RoCE; iWARP and others are not supported";
    return report;
  }
  ibv_port_attr attributes{};
  if (const int error = library.query_port(context, choice.port,
                                           reinterpret_cast<_compat_ibv_port_attr*>(&attributes));
      error != 0) {
    report.trouble = where + "cannot be queried: " + std::strerror(error);
    return report;
  }
  choice.lid = attributes.lid;
  choice.mtu_bytes = bytes_of(attributes.active_mtu);
  choice.longest_write_bytes = attributes.max_msg_sz;
  const bool ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
  choice.fabric = ethernet ? Fabric::kRoceV2 : Fabric::kInfiniBand;
  const auto addresses = addresses_of(library, context, limits, port);
  const ibv_gid_entry* best = nullptr;
  for (const ibv_gid_entry& entry : addresses) {
    if (gid_index ? entry.gid_index == *gid_index
                  : best == nullptr || rank_of(entry) > rank_of(*best)) {
      best = &entry;
    }
  }
  if (best != nullptr) {
    choice.gid = best->gid;
    choice.gid_index = best->gid_index;
    choice.fabric = fabric_of(*best);
  } else {
    report.trouble =
        where +
        (gid_index ? "has no address with index " + std::to_string(*gid_index) : "has no address") +
        (addresses.empty() ? "; give its network interface an IP address" : "; it has");
    for (const ibv_gid_entry& entry : addresses) {
      report.trouble += (&entry == addresses.data() ? " " : ", ") +
                        std::to_string(entry.gid_index) + " (" +
                        std::string(name_of(fabric_of(entry))) + ", " + describe(entry.gid) + ")";
    }
  }
  if (attributes.state != IBV_PORT_ACTIVE) {
    report.trouble = where + "is down: bring its network up " +
                     (ethernet ? "(ip link set INTERFACE up)" : "(cable, subnet manager)");
  }
  if (report.trouble.empty()) report.trouble = apply(library, context, attributes, numbers, choice);
  return report;
}

struct DeviceList {
  explicit DeviceList(const Library& library)
      : devices(library.get_device_list(&count), library.free_device_list) {
    if (devices == nullptr && errno != ENOSYS) {  // ENOSYS: a kernel without RDMA
      throw ConfigError(std::string("libibverbs cannot list the RDMA devices: ") +
                        std::strerror(errno) + "; containers need /sys and /dev/infiniband");
    }
  }
  std::span<ibv_device* const> all() const {
    return {devices.get(), static_cast<std::size_t>(devices == nullptr ? 0 : count)};
  }

  int count = 0;
  std::unique_ptr<ibv_device*[], void (*)(ibv_device**)> devices;
};

// The context of a device and its limits; or, in `trouble`, the reason why it cannot be opened.
struct Opened {
  Opened(const Library& library, ibv_device* device)
      : context(library.open_device(device), library.close_device) {
    const std::string name = library.get_device_name(device);
    if (context == nullptr) {
      trouble = name + " cannot be opened: " + std::strerror(errno) +
                "; this user needs to read and write /dev/infiniband/uverbs*";
    } else if (const int error = library.query_device(context.get(), &limits); error != 0) {
      trouble = name + " cannot be queried: " + std::strerror(error);
    }
  }

  Handle<ibv_context> context;
  ibv_device_attr limits{};
  std::string trouble;
};

}  // namespace

std::string_view name_of(Fabric fabric) {
  switch (fabric) {
    case Fabric::kRoceV1:
      return "RoCE v1";
    case Fabric::kRoceV2:
      return "RoCE v2";
    default:
      return "InfiniBand";
  }
}

struct Device::Open {
  Library library;
  DeviceChoice choice;
  ibv_device_attr limits;
  Handle<ibv_context> context;  // before domain, and so closed after it
  Handle<ibv_pd> domain;
  // Without these, the queues of a killed rank would live as long as a child of that rank.
  ClosedInChild commands{context->cmd_fd};
  ClosedInChild events{context->async_fd};
};

std::string describe(const ibv_gid& gid) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (is_ipv4(gid)) {
    inet_ntop(AF_INET, gid.raw + 12, text.data(), text.size());
  } else {
    inet_ntop(AF_INET6, gid.raw, text.data(), text.size());
  }
  return text.data();
}

std::string describe(const DeviceChoice& choice) {
  const std::string address = choice.fabric == Fabric::kInfiniBand
                                  ? "LID " + std::to_string(choice.lid)
                                  : describe(choice.gid);
  std::string text = choice.name + ":" + std::to_string(choice.port) + ":" +
                     std::to_string(choice.gid_index) + " (" + std::string(name_of(choice.fabric)) +
                     ", " + address + ", MTU " + std::to_string(choice.mtu_bytes);
  if (choice.partition) text += ", P_Key " + hexadecimal(*choice.partition);
  if (choice.service_level != 0) {
    text += ", service level " + std::to_string(choice.service_level);
  }
  if (choice.traffic_class != 0) {
    text += ", traffic class " + std::to_string(choice.traffic_class);
  }
  return text + ")";
}

std::vector<DeviceReport> survey(const Library& library) {
  std::vector<DeviceReport> reports;
  const DeviceList devices(library);
  for (ibv_device* device : devices.all()) {
    const Opened opened(library, device);
    if (!opened.trouble.empty()) {
      reports.emplace_back().choice.name = library.get_device_name(device);
      reports.back().trouble = opened.trouble;
      continue;
    }
    for (std::uint32_t port = 1; port <= opened.limits.phys_port_cnt; ++port) {
      reports.push_back(
          inspect(library, opened.context.get(), opened.limits, port, std::nullopt, {}));
    }
  }
  return reports;
}

Device Device::open(const Library& library, const RdmaOptions& options) {
  const PortSetting setting = PortSetting::parse(options.device);
  const Numbers numbers = Numbers::parse(options);
  const DeviceList devices(library);
  std::string names;
  std::string troubles;
  const auto add = [](std::string& list, const char* between, const std::string& item) {
    list += (list.empty() ? "" : between) + item;
  };
  for (ibv_device* device : devices.all()) {
    const std::string name = library.get_device_name(device);
    add(names, ", ", name);
    if (!setting.name.empty() && setting.name != name) continue;
    Opened opened(library, device);
    if (!opened.trouble.empty()) {
      add(troubles, "; ", opened.trouble);
      continue;
    }
    const std::uint32_t ports = opened.limits.phys_port_cnt;
    if (setting.port && (*setting.port == 0 || *setting.port > ports)) {
      add(troubles, "; ",
          name + " has no port " + std::to_string(*setting.port) + "; its ports are 1 to " +
              std::to_string(ports));
      continue;
    }
    for (std::uint32_t port = setting.port.value_or(1); port <= setting.port.value_or(ports);
         ++port) {
      DeviceReport report =
          inspect(library, opened.context.get(), opened.limits, port, setting.gid_index, numbers);
      if (!report.trouble.empty()) {
        add(troubles, "; ", report.trouble);
        continue;
      }
      Handle<ibv_pd> domain(library.alloc_pd(opened.context.get()), library.dealloc_pd);
      if (domain == nullptr) {
        throw ConfigError(setting.prefix() + name +
                          " gives no protection domain: " + std::strerror(errno));
      }
      const int events = opened.context->async_fd;
      fcntl(events, F_SETFL, fcntl(events, F_GETFL) | O_NONBLOCK);  // for next_event()
      return Device(std::shared_ptr<const Open>(new Open{
          library, report.choice, opened.limits, std::move(opened.context), std::move(domain)}));
    }
  }
  if (!troubles.empty()) throw ConfigError(setting.prefix() + troubles);
  if (names.empty()) throw ConfigError(setting.prefix() + std::string(kNoDevice));
  throw ConfigError(setting.prefix() + "there is no such RDMA device; this machine has " + names);
}

const DeviceChoice& Device::choice() const noexcept { return open_->choice; }
const Library& Device::library() const noexcept { return open_->library; }
const ibv_device_attr& Device::limits() const noexcept { return open_->limits; }
ibv_context* Device::context() const noexcept { return open_->context.get(); }
ibv_pd* Device::domain() const noexcept { return open_->domain.get(); }
int Device::event_fd() const noexcept { return open_->context->async_fd; }

void Device::keep_from_children() {
  std::ifstream mappings("/proc/self/maps");
  for (std::string line; std::getline(mappings, line);) {
    if (line.find("/uverbs") == std::string::npos) continue;
    std::istringstream fields(line);
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char dash = 0;
    fields >> std::hex >> begin >> dash >> end;
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTFORK);
  }
}

std::optional<DeviceEvent> Device::next_event() const {
  ibv_async_event event{};
  if (library().get_async_event(context(), &event) != 0) {
    const int error = errno;
    if (error == EAGAIN || error == EWOULDBLOCK || error == EINTR) return std::nullopt;
    return DeviceEvent{IBV_EVENT_DEVICE_FATAL,
                       std::string("it has been removed (") + std::strerror(error) + ")", 0,
                       nullptr, true};
  }
  DeviceEvent seen{event.event_type, library().event_type_str(event.event_type), 0, nullptr, false};
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      seen.number = event.element.qp->qp_num;
      break;
    case IBV_EVENT_CQ_ERR:
      seen.completions = event.element.cq;
      break;
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_GID_CHANGE:
      seen.number = static_cast<std::uint32_t>(event.element.port_num);
      break;
    default:
      break;
  }
  // At once, because destroying a queue pair waits until all events of it are acknowledged.
  library().ack_async_event(&event);
  return seen;
}

}  // namespace dstorm::verbs
