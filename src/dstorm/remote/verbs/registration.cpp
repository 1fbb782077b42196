#include "dstorm/remote/verbs/registration.hpp"

#include <span>
#include <string>
#include <utility>

#include "dstorm/errors.hpp"
#include "dstorm/remote/verbs/writer.hpp"

namespace dstorm::verbs {
namespace {

void check_length(const MailboxShape& shape, const Device& device, std::size_t most_receivers) {
  const std::uint64_t most = Writer::most_payload_bytes(device, most_receivers);
  if (shape.slot_bytes() <= most) return;
  const DeviceChoice& adapter = device.choice();
  throw ConfigError("an update may take " + std::to_string(shape.slot_bytes()) +
                    " bytes here, and " + adapter.name + ", which carries " +
                    std::to_string(adapter.longest_write_bytes) + " as one write, takes at most " +
                    std::to_string(most) +
                    " as one update; use several smaller vectors, or transport tcp");
}

Region register_mailbox(const Device& device, const host::Control& control,
                        const host::SegmentMemory& memory, std::size_t most_receivers) {
  const MailboxShape& shape = memory.shape().mailbox;
  check_length(shape, device, most_receivers);
  return {device, std::span(memory.mailbox(control.rank()), shape.bytes()), "a segment's mailbox"};
}

}  // namespace

Registration::Registration(const Device& device, const host::Control& control,
                           std::shared_ptr<const host::SegmentMemory> memory,
                           std::size_t most_receivers)
    : device_(device),
      memory_(std::move(memory)),
      mailbox_(register_mailbox(device, control, *memory_, most_receivers)) {
  const MailboxShape& shape = memory_->shape().mailbox;
  for (int r : control.locals()) {
    const std::span cursors(memory_->mailbox(r) + shape.cursor(0),
                            shape.receivers().count() * sizeof(Cursor));
    cursors_.emplace_back(device, cursors, "a segment's cursors");
  }
}

const Region& Registration::inbox_of(int sender) {
  const auto found = inboxes_.find(sender);
  if (found != inboxes_.end()) return found->second;
  const std::span area(memory_->inbox(sender), memory_->shape().inbox_bytes);
  return inboxes_.try_emplace(sender, device_, area, "an inbox").first->second;
}

}  // namespace dstorm::verbs
