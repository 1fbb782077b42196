#include "dstorm/device/slots.hpp"

#include "dstorm/device/host_slots.hpp"
#include "dstorm/device/ipc_slots.hpp"
#include "dstorm/device/posts.hpp"
#include "dstorm/errors.hpp"

namespace dstorm::device {
namespace {

constexpr std::size_t kTrial = std::size_t{1} << 16;  // bytes that the others try to map

// The record that each rank posts first.
struct Candidate {
  bool has_come = false;
  SlotKind wish = SlotKind::kAuto;
  SlotKind present = SlotKind::kAuto;
  bool has_memory = false;
  IpcHandle memory{};
  char error[512] = {};  // why it has none
};

void make_trial(const std::shared_ptr<Gpu>& gpu, Memory& memory, Candidate& mine) {
  attempt(mine, [&] {
    memory = Memory(gpu, kTrial, "a trial of CUDA IPC");
    const Gpu::Use use(*gpu);
    check(Driver::get().ipc_get(&mine.memory, memory.at()), "cuIpcGetMemHandle");
    mine.has_memory = true;
  });
}

// Throws Error if the memory of another rank cannot be mapped.
void try_others(const Gpu& gpu, int own, const std::vector<Candidate>& offers) {
  const Driver& driver = Driver::get();
  const Gpu::Use use(gpu);
  for (std::size_t r = 0; r < offers.size(); ++r) {
    if (!offers[r].has_come || static_cast<int>(r) == own) continue;
    Address address = 0;
    check(driver.ipc_open(&address, offers[r].memory, kIpcLazyPeerAccess),
          "rank " + std::to_string(own) + " cannot map memory of rank " + std::to_string(r) +
              " (cuIpcOpenMemHandle)");
    driver.ipc_close(address);
  }
}

}  // namespace

SlotKind slot_kind(const std::string& name) {
  if (name.empty() || name == "auto") return SlotKind::kAuto;
  if (name == "ipc") return SlotKind::kIpc;
  if (name == "host") return SlotKind::kHost;
  throw ConfigError("MALT_DEVICE_SLOTS is '" + name + "'; it is auto, ipc or host");
}

SlotChoice choose_slots(Group& group, const std::shared_ptr<Gpu>& gpu, const std::string& what,
                        SlotKind wish, SlotKind present) {
  if (group.size() == 1) return {SlotKind::kIpc, ""};
  Memory trial;
  Candidate mine;
  mine.wish = wish;
  mine.present = present;
  const bool may_share = group.is_one_host() && wish != SlotKind::kHost;
  if (may_share) make_trial(gpu, trial, mine);
  const auto offers = post(group, what + " on a GPU, where the slots can be", mine);
  std::string why;
  if (wish == SlotKind::kHost) why = "MALT_DEVICE_SLOTS=host";
  if (!group.is_one_host())
    why = "the ranks do not all share memory (several hosts, or MALT_TRANSPORT)";
  for (std::size_t r = 0; r < offers.size(); ++r) {
    if (!offers[r].has_come) continue;
    if (offers[r].wish != wish) {
      throw ConfigError(what + ": MALT_DEVICE_SLOTS differs between rank " + std::to_string(r) +
                        " and rank " + std::to_string(group.rank()) + "; set it alike on all");
    }
    if (why.empty() && offers[r].present == SlotKind::kHost) why = "as in an earlier group";
    if (why.empty() && !offers[r].has_memory) {
      why = "rank " + std::to_string(r) +
            " cannot share memory of its GPU: " + get_text(offers[r].error);
    }
  }
  if (why.empty()) {
    Outcome tried;
    attempt(tried, [&] { try_others(*gpu, group.rank(), offers); });
    for (const Outcome& one : post(group, what + " on a GPU, a trial of CUDA IPC", tried)) {
      if (why.empty()) why = get_text(one.error);
    }
  }
  if (why.empty()) return {SlotKind::kIpc, ""};
  if (wish == SlotKind::kIpc) {
    throw ConfigError(what + ": MALT_DEVICE_SLOTS=ipc cannot be had: " + why +
                      "; leave it out to have the slots in the host's memory");
  }
  return {SlotKind::kHost, why};
}

std::unique_ptr<Slots> Slots::make(SlotKind kind, std::shared_ptr<Gpu> gpu, std::size_t bytes,
                                   int depth, std::string what) {
  if (kind == SlotKind::kIpc) {
    return std::make_unique<IpcSlots>(std::move(gpu), bytes, depth, std::move(what));
  }
  return std::make_unique<HostSlots>(std::move(gpu), bytes, depth, std::move(what));
}

Address Slots::upload(std::span<const std::byte> payload, Stream stream) {
  uploads_.emplace_back(gpu_, payload.size(), what_);
  const Address to = uploads_.back().at();
  check(Driver::get().copy_async(to, reinterpret_cast<Address>(payload.data()), payload.size(),
                                 stream),
        what_ + ": copying an update to the GPU");
  return to;
}

}  // namespace dstorm::device
