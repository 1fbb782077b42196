#include "fake_verbs.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#undef ibv_query_port
#undef ibv_reg_mr

namespace {

// ---- What the processes share -------------------------------------------------------------------
struct SharedPair {
  std::atomic<std::uint32_t> is_ready;  // to receive
  std::atomic<std::uint32_t> sender;    // the queue pair that may write
  pid_t pid;
  std::uint32_t subnet;
  std::uint32_t wire_mtu;
  std::uint16_t partition;
};
struct SharedRegion {
  std::atomic<std::uint32_t> is_there;
  pid_t pid;
  std::uint64_t address;
  std::uint64_t bytes;
};
constexpr std::uint32_t kMostPairs = 1 << 16;
constexpr std::uint32_t kMostRegions = 1 << 16;
struct World {
  std::atomic<std::uint32_t> pairs;
  std::atomic<std::uint32_t> regions;
  SharedPair pair[kMostPairs];
  SharedRegion region[kMostRegions];
};
World* map_world(int fd) {
  void* at = mmap(nullptr, sizeof(World), PROT_READ | PROT_WRITE,
                  MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0);
  return at == MAP_FAILED ? nullptr : static_cast<World*>(at);  // of zeros at first
}
// The file that FAKE_VERBS_WORLD names.
World* open_world() {
  const char* const path = std::getenv("FAKE_VERBS_WORLD");
  if (path == nullptr) return nullptr;
  const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  World* const opened = ftruncate(fd, sizeof(World)) == 0 ? map_world(fd) : nullptr;
  if (opened == nullptr) {
    std::perror(path);
    std::abort();
  }
  close(fd);
  return opened;
}
World* world = open_world();

// ---- This process's -----------------------------------------------------------------------------
struct Fault {
  std::uint64_t calls = 0;
  std::uint64_t first = 0;  // 0: none
  std::uint64_t end = 0;
  std::uint64_t failed = 0;
  int error = 0;
};
struct Context {
  ibv_context context{};
  int told = -1;  // the writing end of its events
};
struct Cq {
  ibv_cq cq{};
  std::deque<ibv_wc> done;
  bool is_armed = false;
};
struct Channel {
  ibv_comp_channel channel{};
  Cq* cq = nullptr;
};
// A write that has not completed, because it or one before it is late.
struct Unfinished {
  ibv_send_wr request;
  std::vector<std::byte> bytes;
  bool is_late;
};
struct Pair {
  ibv_qp qp{};
  std::uint32_t remote = 0;
  bool signals_all = false;
  std::uint32_t most_inline = 0;
  bool has_failed = false;
  std::vector<Unfinished> unfinished;
};
struct Event {
  ibv_event_type type;
  void* element;
  std::uint64_t port;
};

std::recursive_mutex mutex;
std::map<std::string, Fault> faults;
std::vector<Context*> contexts;
std::vector<Pair*> pairs;
std::vector<Cq*> queues;
std::uint64_t objects = 0;
bool is_removed = false;
FakeAdapter adapter{256, 1 << 23, 4096, {0xffff, 0x8001}, 0};
constexpr int kDevices = 4;
// Set once: each rank of a test that runs ranks as threads reads them.
std::array<ibv_device, kDevices> devices = [] {
  std::array<ibv_device, kDevices> made{};
  for (std::size_t i = 0; i < made.size(); ++i) {
    made[i].node_type = IBV_NODE_CA;
    made[i].transport_type = IBV_TRANSPORT_IB;
    std::snprintf(made[i].name, sizeof(made[i].name), "rxe%zu", i + 1);
  }
  return made;
}();

// 0, or the error with which this call fails.
int fails(const char* call) {
  Fault& fault = faults[call];
  ++fault.calls;
  const bool is_hit = fault.first != 0 && fault.calls >= fault.first && fault.calls < fault.end;
  if (is_hit) ++fault.failed;
  return is_hit ? fault.error : is_removed ? EIO : 0;
}

template <class T>
T* no(int error) {
  errno = error;
  return nullptr;
}

template <class T>
void forget(std::vector<T*>& all, T* one) {
  std::erase(all, one);
  delete one;
  --objects;
}

int number_of(const ibv_context* context) {
  return static_cast<int>(context->device - devices.data()) + 1;
}

void complete(Pair& pair, const ibv_send_wr& request, ibv_wc_status status) {
  auto& cq = *reinterpret_cast<Cq*>(pair.qp.send_cq);
  if (status == IBV_WC_SUCCESS && (request.send_flags & IBV_SEND_SIGNALED) == 0) return;
  ibv_wc completion{};
  completion.wr_id = request.wr_id;
  completion.status = status;
  completion.qp_num = pair.qp.qp_num;
  cq.done.push_back(completion);
  if (std::exchange(cq.is_armed, false) && cq.cq.channel != nullptr) {
    eventfd_write(cq.cq.channel->fd, 1);
  }
}

// Brings the bytes there.
ibv_wc_status carry(Pair& pair, const ibv_send_wr& request) {
  const SharedPair& own = world->pair[pair.qp.qp_num];
  const SharedPair& peer = world->pair[pair.remote];
  if (peer.is_ready == 0 || peer.sender != pair.qp.qp_num || peer.subnet != own.subnet ||
      (peer.partition & 0x7fff) != (own.partition & 0x7fff)) {
    return IBV_WC_RETRY_EXC_ERR;
  }
  std::uint64_t bytes = 0;
  std::vector<iovec> from;
  for (int i = 0; i < request.num_sge; ++i) {
    const ibv_sge& part = request.sg_list[i];
    from.push_back({reinterpret_cast<void*>(part.addr), part.length});
    bytes += part.length;
    const SharedRegion& source = world->region[part.lkey % kMostRegions];
    const bool is_ours = source.is_there != 0 && source.pid == getpid() &&
                         part.addr >= source.address &&
                         part.addr + part.length <= source.address + source.bytes;
    if ((request.send_flags & IBV_SEND_INLINE) == 0 && !is_ours) return IBV_WC_LOC_PROT_ERR;
  }
  if (std::min<std::uint64_t>(bytes, 4096) > std::min(own.wire_mtu, peer.wire_mtu)) {
    return IBV_WC_RETRY_EXC_ERR;
  }
  const SharedRegion& there = world->region[request.wr.rdma.rkey % kMostRegions];
  const std::uint64_t to = request.wr.rdma.remote_addr;
  if (there.is_there == 0 || there.pid != peer.pid || to < there.address ||
      to + bytes > there.address + there.bytes) {
    return IBV_WC_REM_ACCESS_ERR;
  }
  std::byte flipped{};
  if (fails("corruption") != 0) {  // of the first byte, which is never there as it should be
    auto* const first = static_cast<std::byte*>(from[0].iov_base);
    flipped = *first ^ std::byte{1};
    from[0] = {first + 1, from[0].iov_len - 1};
    from.insert(from.begin(), {&flipped, 1});
  }
  const iovec target{reinterpret_cast<void*>(to), bytes};
  const ssize_t moved = process_vm_writev(peer.pid, from.data(), from.size(), &target, 1, 0);
  return moved == static_cast<ssize_t>(bytes) ? IBV_WC_SUCCESS : IBV_WC_RETRY_EXC_ERR;
}

std::vector<std::byte> bytes_of(const ibv_send_wr& request) {
  std::vector<std::byte> bytes;
  for (int i = 0; i < request.num_sge; ++i) {
    const auto* const from = reinterpret_cast<const std::byte*>(request.sg_list[i].addr);
    bytes.insert(bytes.end(), from, from + request.sg_list[i].length);
  }
  return bytes;
}

void finish(Pair& pair, Unfinished& write) {
  ibv_wc_status status = IBV_WC_SUCCESS;
  if (write.is_late) {
    ibv_sge part{reinterpret_cast<std::uint64_t>(write.bytes.data()),
                 static_cast<std::uint32_t>(write.bytes.size()), 0};
    write.request.sg_list = &part;
    write.request.num_sge = 1;
    write.request.send_flags |= IBV_SEND_INLINE;
    status = carry(pair, write.request);
  }
  complete(pair, write.request, status);
}

int post_send(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** refused) {
  const std::lock_guard lock(mutex);
  auto& pair = *reinterpret_cast<Pair*>(qp);
  *refused = request;
  if (const int error = fails("post_send"); error != 0) return error;
  if (qp->state != IBV_QPS_RTS && qp->state != IBV_QPS_ERR) return EINVAL;
  std::uint64_t bytes = 0;
  for (int i = 0; i < request->num_sge; ++i) bytes += request->sg_list[i].length;
  if ((request->send_flags & IBV_SEND_INLINE) != 0 && bytes > pair.most_inline) return EINVAL;
  if (bytes > adapter.longest_message) return EINVAL;
  if (fails("silence") != 0) return 0;
  const bool is_late = bytes > sizeof(std::uint64_t) && fails("lateness") != 0;
  ibv_wc_status status = is_late ? IBV_WC_SUCCESS : IBV_WC_WR_FLUSH_ERR;
  if (!is_late && !pair.has_failed) {
    status = fails("completion") != 0 ? IBV_WC_RETRY_EXC_ERR : carry(pair, *request);
  }
  if (status != IBV_WC_SUCCESS) {
    pair.has_failed = true;
    qp->state = IBV_QPS_ERR;
  }
  if (is_late || (!pair.unfinished.empty() && status == IBV_WC_SUCCESS)) {
    pair.unfinished.push_back({*request, bytes_of(*request), is_late});
  } else {
    complete(pair, *request, status);
  }
  return 0;
}

int poll_cq(ibv_cq* cq, int most, ibv_wc* completions) {
  const std::lock_guard lock(mutex);
  if (fails("poll_cq") != 0) return -1;
  auto& queue = *reinterpret_cast<Cq*>(cq);
  int count = 0;
  for (; count < most && !queue.done.empty(); ++count) {
    completions[count] = queue.done.front();
    queue.done.pop_front();
  }
  return count;
}

int req_notify_cq(ibv_cq* cq, int) {
  const std::lock_guard lock(mutex);
  if (const int error = fails("req_notify_cq"); error != 0) return error;
  reinterpret_cast<Cq*>(cq)->is_armed = true;
  return 0;
}

}  // namespace

extern "C" {

// ---- The tests' side ----------------------------------------------------------------------------
void fake_verbs_begin() {
  if (world != nullptr) munmap(world, sizeof(World));
  world = map_world(-1);
}

void fake_verbs_fail(const char* call, std::uint64_t nth, std::uint64_t count, int error) {
  const std::lock_guard lock(mutex);
  Fault& fault = faults[call];
  fault.first = nth == 0 ? 0 : fault.calls + nth;
  fault.end = count > UINT64_MAX - fault.first ? UINT64_MAX : fault.first + count;
  fault.failed = 0;
  fault.error = error;
}
std::uint64_t fake_verbs_failed(const char* call) {
  const std::lock_guard lock(mutex);
  return faults[call].failed;
}
std::uint64_t fake_verbs_calls(const char* call) {
  const std::lock_guard lock(mutex);
  return faults[call].calls;
}
std::uint64_t fake_verbs_objects() {
  const std::lock_guard lock(mutex);
  return objects;
}
void fake_verbs_arrive() {
  const std::lock_guard lock(mutex);
  for (Pair* pair : pairs) {
    for (Unfinished& write : pair->unfinished) finish(*pair, write);
    pair->unfinished.clear();
  }
}
FakeAdapter* fake_verbs_adapter() { return &adapter; }

void fake_verbs_event(ibv_event_type type) {
  const std::lock_guard lock(mutex);
  const auto tell = [&](const ibv_context* context, void* element) {
    const Event event{type, element, 1};
    for (const Context* one : contexts) {
      if (&one->context != context) continue;
      [[maybe_unused]] const ssize_t written = write(one->told, &event, sizeof(event));
    }
  };
  switch (type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
      for (Pair* pair : pairs) tell(pair->qp.context, &pair->qp);
      break;
    case IBV_EVENT_CQ_ERR:
      for (Cq* queue : queues) tell(queue->cq.context, &queue->cq);
      break;
    default:
      for (Context* one : contexts) tell(&one->context, nullptr);
  }
}

void fake_verbs_remove() {
  const std::lock_guard lock(mutex);
  fake_verbs_event(IBV_EVENT_DEVICE_FATAL);
  is_removed = true;
  for (Context* one : contexts) close(std::exchange(one->told, -1));
  for (const Pair* pair : pairs) world->pair[pair->qp.qp_num].is_ready = 0;
}

// ---- Devices ------------------------------------------------------------------------------------
ibv_device** ibv_get_device_list(int* count) {
  const std::lock_guard lock(mutex);
  if (const int error = fails("get_device_list"); error != 0) return no<ibv_device*>(error);
  auto** list = new ibv_device* [kDevices + 1] {};
  for (int i = 0; i < kDevices; ++i) {
    list[i] = &devices[static_cast<std::size_t>(i)];
  }
  if (count != nullptr) *count = kDevices;
  return list;
}
void ibv_free_device_list(ibv_device** list) { delete[] list; }
const char* ibv_get_device_name(ibv_device* device) { return device->name; }

ibv_context* ibv_open_device(ibv_device* device) {
  const std::lock_guard lock(mutex);
  if (const int error = fails("open_device"); error != 0) return no<ibv_context>(error);
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // the others write into this process
  auto* made = new Context;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return no<ibv_context>(errno);
  made->told = ends[1];
  made->context.device = device;
  made->context.async_fd = ends[0];
  made->context.cmd_fd = eventfd(0, EFD_CLOEXEC);
  made->context.ops.post_send = post_send;
  made->context.ops.poll_cq = poll_cq;
  made->context.ops.req_notify_cq = req_notify_cq;
  contexts.push_back(made);
  ++objects;
  return &made->context;
}
int ibv_close_device(ibv_context* context) {
  const std::lock_guard lock(mutex);
  if (const int error = fails("close_device"); error != 0 && !is_removed) return error;
  auto* one = reinterpret_cast<Context*>(context);
  close(context->async_fd);
  close(context->cmd_fd);
  if (one->told >= 0) close(one->told);
  forget(contexts, one);
  return 0;
}
int ibv_query_device(ibv_context*, ibv_device_attr* attributes) {
  const std::lock_guard lock(mutex);
  if (const int error = fails("query_device"); error != 0) return error;
  *attributes = {};
  attributes->max_qp_wr = 16384;
  attributes->max_cqe = 16384;
  attributes->phys_port_cnt = 1;
  return 0;
}
int ibv_query_port(ibv_context*, std::uint8_t, _compat_ibv_port_attr* where) {
  const std::lock_guard lock(mutex);
  if (const int error = fails("query_port"); error != 0) return error;
  auto* attributes = reinterpret_cast<ibv_port_attr*>(where);
  attributes->state = IBV_PORT_ACTIVE;
  attributes->max_mtu = attributes->active_mtu = IBV_MTU_4096;
  attributes->gid_tbl_len = 2;
  attributes->pkey_tbl_len = 2;
  attributes->max_msg_sz = adapter.longest_message;
  attributes->link_layer = IBV_LINK_LAYER_ETHERNET;
  return 0;
}
ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, std::size_t most,
                             std::uint32_t, std::size_t) {
  const std::lock_guard lock(mutex);
  if (const int error = fails("query_gid_table"); error != 0) return -error;
  for (std::uint32_t i = 0; i < 2 && i < most; ++i) {
    entries[i] = {};
    entries[i].gid_index = i;
    entries[i].port_num = 1;
    entries[i].gid_type = IBV_GID_TYPE_ROCE_V2;
    const std::string text =
        (i == 0 ? "fe80::" : "::ffff:10.88.0.") + std::to_string(number_of(context));
    inet_pton(AF_INET6, text.c_str(), entries[i].gid.raw);
  }
  return 2;
}
int ibv_query_pkey(ibv_context*, std::uint8_t, int index, __be16* key) {
  const std::lock_guard lock(mutex);
  if (const int error = fails("query_pkey"); error != 0) return error;
  if (index < 0 || index > 1) return EINVAL;
  *key = htons(adapter.partitions[index]);
  return 0;
}
int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  Event told{};
  {
    const std::lock_guard lock(mutex);
    if (const int error = is_removed ? 0 : fails("get_async_event"); error != 0) {
      errno = error;
      return -1;
    }
  }
  for (;;) {
    const ssize_t bytes = read(context->async_fd, &told, sizeof(told));
    if (bytes == 0) errno = EIO;
    if (bytes != sizeof(told)) return -1;
    const std::lock_guard lock(mutex);
    const auto is_it = [&](const auto* one) {
      return static_cast<const void*>(one) == told.element;
    };
    if (told.element == nullptr || std::ranges::any_of(pairs, is_it) ||
        std::ranges::any_of(queues, is_it)) {
      break;  // else it is gone
    }
  }
  event->event_type = told.type;
  event->element.qp = static_cast<ibv_qp*>(told.element);
  if (told.element == nullptr) event->element.port_num = static_cast<int>(told.port);
  return 0;
}
void ibv_ack_async_event(ibv_async_event*) {}
const char* ibv_event_type_str(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_DEVICE_FATAL:
      return "local catastrophic error";
    case IBV_EVENT_PORT_ERR:
      return "port error";
    case IBV_EVENT_CQ_ERR:
      return "CQ error";
    default:
      return "an event";
  }
}

// ---- What is made on them -----------------------------------------------------------------------
ibv_pd* ibv_alloc_pd(ibv_context* context) {
  const std::lock_guard lock(mutex);
  if (const int error = fails("alloc_pd"); error != 0) return no<ibv_pd>(error);
  ++objects;
  return new ibv_pd{context, 0};
}
int ibv_dealloc_pd(ibv_pd* domain) {
  const std::lock_guard lock(mutex);
  if (const int error = fails("dealloc_pd"); error != 0 && !is_removed) return error;
  --objects;
  delete domain;
  return 0;
}
ibv_mr* ibv_reg_mr(ibv_pd* domain, void* address, std::size_t bytes, int) {
  const std::lock_guard lock(mutex);
  if (const int error = fails("reg_mr"); error != 0) return no<ibv_mr>(error);
  const std::uint32_t key = ++world->regions;
  SharedRegion& shared = world->region[key % kMostRegions];
  shared.pid = getpid();
  shared.address = reinterpret_cast<std::uintptr_t>(address);
  shared.bytes = bytes;
  shared.is_there = 1;
  ++objects;
  return new ibv_mr{domain->context, domain, address, bytes, key, key, key};
}
int ibv_dereg_mr(ibv_mr* region) {
  const std::lock_guard lock(mutex);
  if (const int error = fails("dereg_mr"); error != 0 && !is_removed) return error;
  world->region[region->rkey % kMostRegions].is_there = 0;
  --objects;
  delete region;
  return 0;
}
ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  const std::lock_guard lock(mutex);
  if (const int error = fails("create_comp_channel"); error != 0)
    return no<ibv_comp_channel>(error);
  auto* made = new Channel;
  made->channel = {context, eventfd(0, EFD_CLOEXEC), 0};
  ++objects;
  return &made->channel;
}
int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  const std::lock_guard lock(mutex);
  if (const int error = fails("destroy_comp_channel"); error != 0 && !is_removed) return error;
  close(channel->fd);
  --objects;
  delete reinterpret_cast<Channel*>(channel);
  return 0;
}
ibv_cq* ibv_create_cq(ibv_context* context, int entries, void*, ibv_comp_channel* channel, int) {
  const std::lock_guard lock(mutex);
  if (const int error = fails("create_cq"); error != 0) return no<ibv_cq>(error);
  auto* made = new Cq;
  made->cq.context = context;
  made->cq.channel = channel;
  made->cq.cqe = entries;
  reinterpret_cast<Channel*>(channel)->cq = made;
  queues.push_back(made);
  ++objects;
  return &made->cq;
}
int ibv_destroy_cq(ibv_cq* cq) {
  const std::lock_guard lock(mutex);
  if (const int error = fails("destroy_cq"); error != 0 && !is_removed) return error;
  forget(queues, reinterpret_cast<Cq*>(cq));
  return 0;
}
int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** context) {
  {
    const std::lock_guard lock(mutex);
    if (const int error = fails("get_cq_event"); error != 0) {
      errno = error;
      return -1;
    }
  }
  eventfd_t value = 0;
  if (eventfd_read(channel->fd, &value) != 0) return -1;
  *cq = &reinterpret_cast<Channel*>(channel)->cq->cq;
  *context = nullptr;
  return 0;
}
void ibv_ack_cq_events(ibv_cq*, unsigned int) {}

ibv_qp* ibv_create_qp(ibv_pd* domain, ibv_qp_init_attr* attributes) {
  const std::lock_guard lock(mutex);
  if (const int error = fails("create_qp"); error != 0) return no<ibv_qp>(error);
  if (attributes->cap.max_inline_data > adapter.most_inline) return no<ibv_qp>(EINVAL);
  auto* made = new Pair;
  made->qp.context = domain->context;
  made->qp.pd = domain;
  made->qp.send_cq = made->qp.recv_cq = attributes->send_cq;
  made->qp.qp_num = ++world->pairs;
  made->most_inline = attributes->cap.max_inline_data;
  SharedPair& shared = world->pair[made->qp.qp_num % kMostPairs];
  shared.pid = getpid();
  shared.subnet = adapter.subnet;
  shared.wire_mtu = adapter.wire_mtu;
  pairs.push_back(made);
  ++objects;
  return &made->qp;
}
int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int) {
  const std::lock_guard lock(mutex);
  if (const int error = fails("modify_qp"); error != 0) return error;
  auto& pair = *reinterpret_cast<Pair*>(qp);
  SharedPair& shared = world->pair[qp->qp_num % kMostPairs];
  qp->state = attributes->qp_state;
  if (qp->state == IBV_QPS_INIT) shared.partition = adapter.partitions[attributes->pkey_index];
  if (qp->state == IBV_QPS_RTR) {
    pair.remote = attributes->dest_qp_num;
    shared.sender = pair.remote;
    shared.is_ready = 1;
  }
  return 0;
}
int ibv_destroy_qp(ibv_qp* qp) {
  const std::lock_guard lock(mutex);
  if (const int error = fails("destroy_qp"); error != 0 && !is_removed) return error;
  world->pair[qp->qp_num % kMostPairs].is_ready = 0;
  forget(pairs, reinterpret_cast<Pair*>(qp));
  return 0;
}
const char* ibv_wc_status_str(ibv_wc_status status) {
  return status == IBV_WC_RETRY_EXC_ERR ? "transport retry counter exceeded" : "an error";
}
}
