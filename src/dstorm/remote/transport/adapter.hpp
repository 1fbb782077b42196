// The interface between the engine and a transport whose updates go beside the connections, by an
// adapter of this rank's. remote/verbs/ implements it. remote/tcp/ has no adapter: its updates go
// over the connections themselves.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dstorm/bootstrap.hpp"
#include "dstorm/host/segment_memory.hpp"
#include "dstorm/remote/transport/change_receiver.hpp"
#include "dstorm/remote/transport/change_sender.hpp"
#include "dstorm/remote/transport/origin.hpp"

namespace dstorm::remote {

// The memory into which adapters write the updates of one sender of another host. For one thread.
class Inbox {
 public:
  Inbox() = default;
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;
  virtual ~Inbox() = default;

  // Moves the updates that have arrived whole to this host's copy of the sender's mailbox. Returns
  // whether anything was moved, for which other ranks of this host may be waiting.
  virtual bool take_in() = 0;
};

// The memory of a segment, as the adapter of this rank knows it.
class Registration {
 public:
  Registration() = default;
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  virtual ~Registration() = default;
};

// One rank's part in the proofs that its adapter and those of its partners reach one another:
// before anything depends on it, each writes to the other. If a rank has a partner, it is that
// rank's partner too. All ranks take the steps together, with a meeting of all ranks in between.
class Proof {
 public:
  // Why a pair of adapters cannot be used.
  struct Reason {
    int partner;
    bool is_echo;  // nothing came from the partner, which may know more
    std::string text;
  };

  Proof() = default;
  Proof(const Proof&) = delete;
  Proof& operator=(const Proof&) = delete;
  virtual ~Proof() = default;

  // First step: returns what the partners have to know. The caller brings it to every rank.
  virtual Bytes offer() const = 0;
  // Second step, with the offers of all ranks, by rank. `adapters` describes each rank's adapter.
  // Blocks for up to the limit.
  virtual void connect(std::span<const Bytes> offers, std::span<const std::string> adapters) = 0;
  // Third step, after all have connected. Blocks for up to the limit. The proof must live until
  // every rank has returned from this.
  virtual void write(std::span<const std::string> adapters) = 0;
  // The failures so far.
  virtual const std::vector<Reason>& reasons() const noexcept = 0;
};

// Owned by the engine, and used under its lock, or before it has threads. It outlives everything
// that it makes but registrations and inboxes.
class Adapter {
 public:
  Adapter() = default;
  Adapter(const Adapter&) = delete;
  Adapter& operator=(const Adapter&) = delete;
  virtual ~Adapter() = default;

  // The transport, by the name under which a job may ask for it.
  virtual std::string_view transport() const = 0;
  // The kind of network. Adapters reach only those of the same kind.
  virtual std::string_view network() const = 0;
  virtual std::string describe() const = 0;
  // `partners` are sorted. A partner that is not reached within `limit` has failed.
  virtual std::unique_ptr<Proof> begin_proof(int rank, std::vector<int> partners,
                                             std::chrono::milliseconds limit) const = 0;

  // The length of the memory that each sender's inbox takes; 0: this transport has none. The same
  // on all ranks.
  virtual std::size_t inbox_bytes(const MailboxShape& mailbox) const = 0;
  // Throws ConfigError if the adapter cannot carry such a segment.
  virtual std::shared_ptr<Registration> enlist(
      std::shared_ptr<const host::SegmentMemory> memory) const = 0;
  virtual std::unique_ptr<Inbox> open_inbox(std::shared_ptr<host::SegmentMemory> memory,
                                            int sender) const = 0;
  virtual std::unique_ptr<ChangeSender> make_sender(const Route& route) = 0;
  // `origin` outlives the receiver.
  virtual std::unique_ptr<ChangeReceiver> make_receiver(const Origin& origin) = 0;

  // Becomes readable when take_events() has something to take.
  virtual int event_fd() const = 0;
  // Takes in the adapter's own reports. A connection that it makes useless fails at its next step.
  // Returns false if the adapter reports nothing any more; event_fd() may then stay readable.
  virtual bool take_events() = 0;
};

// The wish of a job for adapters, the same on all ranks but for `is_named`.
struct AdapterWish {
  enum class Use : std::uint8_t { kNever, kIfThere, kRequired };
  Use use = Use::kNever;
  std::string transport = {};  // the one that is required
  // Opens this rank's. Throws ConfigError.
  std::function<std::unique_ptr<Adapter>()> open = nullptr;
  bool is_named = false;  // the user has said which to open, so it is an error if that fails
};

}  // namespace dstorm::remote
