// RDMA as a transport: an open device, and what is made over it for the engine.
#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dstorm/host/control.hpp"
#include "dstorm/rdma_options.hpp"
#include "dstorm/remote/transport/adapter.hpp"
#include "dstorm/remote/verbs/device.hpp"

namespace dstorm::verbs {

class Adapter final : public remote::Adapter {
 public:
  // Hears what the device reports, for as long as it lives.
  class EventListener {
   public:
    explicit EventListener(Adapter& adapter) : adapter_(adapter) {
      adapter.listeners_.insert(this);
    }
    EventListener(const EventListener&) = delete;
    EventListener& operator=(const EventListener&) = delete;
    virtual void hear(const DeviceEvent& event) = 0;

   protected:
    ~EventListener() { adapter_.listeners_.erase(this); }
    Adapter& adapter_;
  };

  // Opens the device that `options` ask for. Throws ConfigError. `control` outlives the adapter.
  Adapter(const host::Control& control, const RdmaOptions& options);

  const Device& device() const noexcept { return device_; }
  std::size_t most_ranks() const noexcept { return most_ranks_; }  // of a host of the job

  std::string_view transport() const override { return "verbs"; }
  std::string_view network() const override { return name_of(device_.choice().fabric); }
  std::string describe() const override { return verbs::describe(device_.choice()); }
  std::unique_ptr<remote::Proof> begin_proof(int rank, std::vector<int> partners,
                                             std::chrono::milliseconds limit) const override;
  std::size_t inbox_bytes(const MailboxShape& mailbox) const override;
  std::shared_ptr<remote::Registration> enlist(
      std::shared_ptr<const host::SegmentMemory> memory) const override;
  std::unique_ptr<remote::Inbox> open_inbox(std::shared_ptr<host::SegmentMemory> memory,
                                            int sender) const override;
  std::unique_ptr<remote::ChangeSender> make_sender(const remote::Route& route) override;
  std::unique_ptr<remote::ChangeReceiver> make_receiver(const remote::Origin& origin) override;
  int event_fd() const override { return device_.event_fd(); }
  bool take_events() override;

 private:
  const host::Control& control_;
  std::size_t most_ranks_;
  Device device_;
  std::set<EventListener*> listeners_;
};

}  // namespace dstorm::verbs
