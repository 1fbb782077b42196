// How a queue pair is used. The constructor makes the completion queue and the queue pair.
// connect() moves the pair through the states that the standard prescribes: INIT (which port), RTR
// (which peer, and how to reach it), RTS (how often, and for how long, to repeat what is not
// acknowledged).
//
// write() posts a numbered write. reap() polls the completion queue; a completion of write n shows
// that all writes up to n are done. The first error, whichever call notices it, is kept in
// failure_, and the queue accepts no write after it.
#include "dstorm/remote/verbs/queue.hpp"

#include <fcntl.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "dstorm/errors.hpp"

namespace dstorm::verbs {
namespace {

constexpr std::uint32_t kMost24Bits = (1U << 24) - 1;
constexpr std::uint8_t kHopLimit = 64;
constexpr std::uint8_t kMinimumReceiverTimer = 12;  // 0.64 ms; MALT posts no receives

// How often an adapter repeats a packet that is not acknowledged. This is the highest usable value:
// 7 means "for ever" to soft-RoCE, which also counts each packet that arrives out of order.
constexpr std::uint8_t kRepeats = 6;

// The longest time-out, 4.096 us * 2^exponent, with which all attempts of two queue pairs, the
// second after the first has failed, fit into `suspect_after`.
std::uint8_t exponent_for(std::chrono::nanoseconds suspect_after) {
  constexpr int kAttempts = 2 * (kRepeats + 1);
  std::uint8_t exponent = 8;
  while (std::chrono::nanoseconds(4096) * (2LL << exponent) * kAttempts <= suspect_after)
    ++exponent;
  return exponent;
}

ibv_mtu mtu_of(std::uint32_t bytes) {
  for (const ibv_mtu mtu : {IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096}) {
    if (bytes == std::uint32_t{128} << static_cast<unsigned>(mtu)) return mtu;
  }
  throw ConfigError("the peer's endpoint has an MTU of " + std::to_string(bytes) +
                    " bytes where 256, 512, 1024, 2048 or 4096 was due; all ranks must run the "
                    "same version of MALT");
}

std::string_view meaning_of(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
      return "the peer's process or host is dead, or the network to it is cut";
    case IBV_WC_REM_ACCESS_ERR:
      return "the peer has withdrawn its memory, or never granted this write";
    case IBV_WC_REM_OP_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_ABORT_ERR:
    case IBV_WC_BAD_RESP_ERR:
      return "the peer's adapter could not carry out a write";
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_QP_OP_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
      return "a write named memory that is not registered here, or too much of it";
    case IBV_WC_WR_FLUSH_ERR:
      return "the queue was already in error";
    default:
      return "the adapter reports an error";
  }
}

}  // namespace

Queue::Queue(const Device& device, const QueueOptions& options)
    : device_(device),
      channel_(device.library().create_comp_channel(device.context()),
               device.library().destroy_comp_channel),
      channel_in_child_(channel_ == nullptr ? -1 : channel_->fd),
      completions_(nullptr, device.library().destroy_cq),
      pair_(nullptr, device.library().destroy_qp),
      depth_(options.depth),
      suspect_after_(options.suspect_after) {
  const std::string& name = device.choice().name;
  const auto most =
      static_cast<std::uint32_t>(std::min(device.limits().max_qp_wr, device.limits().max_cqe));
  if (depth_ == 0 || depth_ > most) {
    throw ConfigError("a queue of " + std::to_string(depth_) + " writes: device " + name +
                      " takes 1 to " + std::to_string(most));
  }
  if (suspect_after_ < std::chrono::milliseconds(1) || suspect_after_ > std::chrono::seconds(60)) {
    throw ConfigError("silence is " + std::to_string(suspect_after_.count()) +
                      " ms; RDMA needs 1 to 60000 ms");
  }
  const auto check = [&](bool made, const char* what) {
    if (made) return;
    const int error = errno;
    throw ConfigError("device " + name + " gives no " + what + ": " + std::strerror(error) +
                      (error == ENOMEM ? "; use fewer ranks or a smaller depth, or raise ulimit -l"
                       : error == EMFILE ? "; raise ulimit -n"
                                         : ""));
  };
  check(channel_ != nullptr, "completion channel");
  fcntl(channel_->fd, F_SETFL, fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);  // for arm()
  // A failed write completes whether it asked for that or not, so there is room for all writes.
  completions_.reset(device.library().create_cq(device.context(), static_cast<int>(depth_), nullptr,
                                                channel_.get(), 0));
  check(completions_ != nullptr, "completion queue");

  ibv_qp_init_attr attributes{};
  // Adapters differ in how much they take inline, and tell it only by refusing.
  for (std::uint32_t wish = options.inline_bytes;; wish /= 2) {
    attributes = {};
    attributes.send_cq = attributes.recv_cq = completions_.get();
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap.max_send_wr = depth_;
    attributes.cap.max_send_sge = kMostParts;
    attributes.cap.max_inline_data = wish;
    pair_.reset(device.library().create_qp(device.domain(), &attributes));
    if (pair_ != nullptr || wish == 0) break;
  }
  check(pair_ != nullptr, "queue pair");
  Device::keep_from_children();
  inline_bytes_ = attributes.cap.max_inline_data;
  if (getrandom(&first_packet_, sizeof(first_packet_), 0) != sizeof(first_packet_)) {
    throw ConfigError(std::string("the system gives no random bytes: ") + std::strerror(errno));
  }
  first_packet_ &= kMost24Bits;
}

Endpoint Queue::local() const noexcept {
  const DeviceChoice& choice = device_.choice();
  Endpoint endpoint{};
  endpoint.queue_pair = pair_->qp_num;
  endpoint.first_packet = first_packet_;
  endpoint.mtu_bytes = choice.mtu_bytes;
  endpoint.lid = choice.lid;
  endpoint.fabric = choice.fabric;
  std::copy(std::begin(choice.gid.raw), std::end(choice.gid.raw), endpoint.gid.begin());
  return endpoint;
}

void Queue::modify(ibv_qp_attr attributes, int mask, const std::string& doing) {
  const int error = device_.library().modify_qp(pair_.get(), &attributes, mask | IBV_QP_STATE);
  if (error == 0) return;
  throw ConfigError(describe(device_.choice()) + " cannot " + doing + ": " + std::strerror(error));
}

void Queue::connect(const Endpoint& remote) {
  const DeviceChoice& choice = device_.choice();
  if (remote.queue_pair == 0 || remote.queue_pair > kMost24Bits ||
      remote.first_packet > kMost24Bits) {
    throw ConfigError(
        "the peer's endpoint makes no sense; all ranks must run the same version of MALT");
  }
  ibv_gid gid{};
  std::copy(remote.gid.begin(), remote.gid.end(), std::begin(gid.raw));
  if (remote.fabric != choice.fabric) {
    throw ConfigError("the peer at " + describe(gid) +
                      " uses another kind of network than this rank's " + describe(choice) +
                      "; choose a device and an address of one kind on all ranks with " +
                      RdmaOptions::kDeviceVariable);
  }
  const ibv_mtu mtu = mtu_of(std::min(choice.mtu_bytes, remote.mtu_bytes));

  ibv_qp_attr init{};
  init.qp_state = IBV_QPS_INIT;
  init.port_num = choice.port;
  init.pkey_index = choice.partition_index;
  init.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  modify(init, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "use its port");

  ibv_qp_attr receive{};
  receive.qp_state = IBV_QPS_RTR;
  receive.path_mtu = mtu;
  receive.dest_qp_num = remote.queue_pair;
  receive.rq_psn = remote.first_packet;
  receive.min_rnr_timer = kMinimumReceiverTimer;
  receive.ah_attr.port_num = choice.port;
  receive.ah_attr.sl = choice.service_level;
  if (choice.fabric == Fabric::kInfiniBand) {
    receive.ah_attr.dlid = remote.lid;
  } else {
    receive.ah_attr.is_global = 1;
    receive.ah_attr.grh.dgid = gid;
    receive.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(choice.gid_index);
    receive.ah_attr.grh.hop_limit = kHopLimit;
    receive.ah_attr.grh.traffic_class = choice.traffic_class;
  }
  modify(receive,
         IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
             IBV_QP_MIN_RNR_TIMER,
         "reach the peer at " + describe(gid));

  ibv_qp_attr send{};
  send.qp_state = IBV_QPS_RTS;
  send.timeout = exponent_for(suspect_after_);
  send.retry_cnt = kRepeats;
  send.rnr_retry = kRepeats;
  send.sq_psn = first_packet_;
  modify(send,
         IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
             IBV_QP_MAX_QP_RD_ATOMIC,
         "send");
}

std::uint64_t Queue::write(std::span<const Part> parts, const Target& target, WriteFlags flags) {
  std::array<ibv_sge, kMostParts> pieces;
  std::uint64_t bytes = 0;
  if (parts.size() > pieces.size()) {
    fail(IBV_WC_LOC_LEN_ERR, "a write of " + std::to_string(parts.size()) + " parts; at most " +
                                 std::to_string(kMostParts) + " are possible");
    return 0;
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    pieces[i] = {reinterpret_cast<std::uintptr_t>(parts[i].address), parts[i].bytes, parts[i].lkey};
    bytes += parts[i].bytes;
  }
  const std::uint64_t most = flags.inlined ? inline_bytes_ : device_.choice().longest_write_bytes;
  if (bytes > most) {
    fail(IBV_WC_LOC_LEN_ERR, "a write of " + std::to_string(bytes) + " bytes; device " +
                                 device_.choice().name + " takes at most " + std::to_string(most) +
                                 (flags.inlined ? " inline" : ""));
    return 0;
  }
  // A queue pair in error goes on accepting writes, and drops them.
  if (failure_ || room() == 0) return 0;

  const std::uint64_t number = posted_ + 1;
  // Often enough that there is always a completion on its way that makes room.
  const bool signaled = flags.signaled || number - signaled_ >= std::max(depth_ / 4, 1U);
  ibv_send_wr request{};
  request.wr_id = number;
  request.sg_list = pieces.data();
  request.num_sge = static_cast<int>(parts.size());
  request.opcode = IBV_WR_RDMA_WRITE;
  if (flags.inlined) request.send_flags |= IBV_SEND_INLINE;
  if (signaled) request.send_flags |= IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = target.address;
  request.wr.rdma.rkey = target.rkey;
  ibv_send_wr* refused = nullptr;
  if (const int error = ibv_post_send(pair_.get(), &request, &refused); error != 0) {
    fail(IBV_WC_GENERAL_ERR, "device " + device_.choice().name + " refuses a write of " +
                                 std::to_string(bytes) + " bytes: " + std::strerror(error) +
                                 "; is the queue connected, and the device still there?");
    return 0;
  }
  posted_ = number;
  if (signaled) signaled_ = number;
  return number;
}

std::uint64_t Queue::reap() {
  std::array<ibv_wc, 16> seen;
  int count = 0;
  do {
    count = ibv_poll_cq(completions_.get(), static_cast<int>(seen.size()), seen.data());
    for (int i = 0; i < count; ++i) {
      const ibv_wc& completion = seen[static_cast<std::size_t>(i)];
      if (completion.status == IBV_WC_SUCCESS) {
        completed_ = completion.wr_id;
      } else {
        fail(completion.status, std::string(meaning_of(completion.status)) + " (" +
                                    device_.library().wc_status_str(completion.status) + ")");
      }
    }
  } while (count == static_cast<int>(seen.size()));
  if (count < 0) {
    fail(IBV_WC_GENERAL_ERR, "device " + device_.choice().name + " cannot say what it has done");
  }
  return completed_;
}

void Queue::hear(const DeviceEvent& event) {
  if (!concerns(event)) return;
  fail(IBV_WC_GENERAL_ERR, "device " + device_.choice().name + " reports: " + event.what);
}

bool Queue::concerns(const DeviceEvent& event) const noexcept {
  switch (event.type) {
    case IBV_EVENT_DEVICE_FATAL:
      return true;
    case IBV_EVENT_PORT_ERR:
      return event.number == device_.choice().port;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_PATH_MIG_ERR:
      return event.number == pair_->qp_num;
    case IBV_EVENT_CQ_ERR:
      return event.completions == completions_.get();
    default:
      return false;
  }
}

void Queue::fail(ibv_wc_status status, std::string what) {
  if (failure_) return;  // errors after the first are consequences of it
  failure_ = {status, std::move(what)};
}

void Queue::arm() {
  ibv_cq* source = nullptr;
  void* context = nullptr;
  while (device_.library().get_cq_event(channel_.get(), &source, &context) == 0) {
    // At once, because destroying the completion queue waits for it.
    device_.library().ack_cq_events(source, 1);
  }
  if (ibv_req_notify_cq(completions_.get(), 0) != 0) {
    fail(IBV_WC_GENERAL_ERR, "device " + device_.choice().name + " cannot tell of completions");
  }
}

}  // namespace dstorm::verbs
