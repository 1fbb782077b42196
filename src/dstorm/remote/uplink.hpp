// The uplink: the connection by which this rank's writes reach one other host. On that host one
// live rank, the proxy, copies them into the host's memory. If the proxy's own writes arrive here
// over the same connection, its Downlink is the partner of this Uplink: the Downlink reads for
// both, and the Uplink writes for both. If one of them ends, the other does too.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dstorm/host/control.hpp"
#include "dstorm/remote/net/handshake.hpp"
#include "dstorm/remote/net/stream.hpp"
#include "dstorm/remote/transport/attachment.hpp"
#include "dstorm/remote/transport/backlog.hpp"
#include "dstorm/remote/transport/change_sender.hpp"
#include "dstorm/remote/transport/frame.hpp"
#include "dstorm/remote/transport/outbox.hpp"
#include "dstorm/remote/transport/settings.hpp"

namespace dstorm::remote {

class Downlink;

// Used under the engine's lock. Nothing blocks.
class Uplink {
 public:
  enum class State : std::uint8_t {
    kAwaiting,  // waits for a call, to share its connection
    kCalling,
    kUp,
    kOver,
    kDone  // said goodbye, and was heard
  };

  Uplink(host::Control& control, const Settings& settings, const std::vector<int>& host);

  // Calls the next live rank of the host, if there is one. `number` grows from call to call.
  // Returns whether a call began.
  bool call(std::uint64_t number, Clock::time_point now);
  // As call(), but `proxy` is to call, and this rank then speaks over the connection that `proxy`
  // has made. share() does that, as this rank's call of that number. Until then this rank tries
  // whether it could call by itself: see can_call().
  void await(int proxy, Clock::time_point now);
  void share(Downlink& partner, std::uint64_t number, Clock::time_point now);
  // Whether a call of this rank has got through, or would. Tries again now and then.
  bool can_call(Clock::time_point now);
  bool is_trying() const noexcept { return trial_.has_value(); }
  // The callee shares the connection: its call, the length of the frame that says so, and its bytes
  // that are not parsed yet. The caller makes the partner from them.
  struct Shared {
    net::Introduction call;
    std::size_t frame_bytes;
    std::vector<std::byte> unparsed;
  };
  std::optional<Shared> take_shared() noexcept { return std::exchange(shared_, std::nullopt); }
  const std::shared_ptr<net::Stream>& stream() const noexcept { return stream_; }
  void join(Downlink& partner) noexcept { partner_ = &partner; }
  // For the partner: sends an answer to the partner's sender; takes in an answer of that sender;
  // notes that the sender was heard; ends this uplink because the partner has ended.
  void say(std::span<const std::byte> answer);
  void take(const FrameHead& head, std::span<const std::byte> body);
  void hear(Clock::time_point now) noexcept { last_heard_ = now; }
  void partner_is_over(bool in_order, const std::string& why);

  // This rank has changed something in the segment. The first pump() over a connection looks at all
  // segments, so there is no need to call this before it.
  void note(const std::shared_ptr<Attachment>& changed) { backlog_.note(changed); }
  // This rank exchanges heartbeats with those of the host, or no longer does (Membership).
  void watch(bool is_watched, Clock::time_point now) noexcept;
  // The segment has been removed.
  void forget(std::uint32_t segment) { backlog_.forget(segment); }

  // Sends what is new, as far as the connection takes it. `with_answers`: also reads the answers.
  // `may_lag`: what is not urgent may stay in the socket until the next pump.
  void pump(const Attachments& attachments, bool leaving, bool with_answers, bool may_lag,
            Clock::time_point now);
  // Time goes by: sends heartbeats, and ends a connection whose callee is silent. Returns false if
  // this connection is of no more use.
  bool tend(Clock::time_point now);
  // The connection has been lost, or given up.
  void hang_up();

  // Whether the host needs nothing more of a segment that this rank has closed: every change in it
  // has been sent, and so has the fact that it is closed; and the callee has taken that in, or no
  // rank there uses the segment any more.
  bool is_done_with(const Attachment& attachment) const;
  // How many times this uplink has looked at a segment to see what there is to send.
  std::uint64_t looks() const noexcept { return backlog_.looks(); }
  // Under LATEST: frees the slot of this segment from which a payload is being sent. Returns
  // whether there was one.
  bool make_room(std::uint32_t segment) { return changes_->make_room(segment); }

  State state() const noexcept { return state_; }
  std::uint64_t sent_bytes() const noexcept { return outbox_.sent_bytes(); }
  // Bytes are waiting for the connection to take more.
  bool is_blocked() const noexcept { return outbox_.waits(); }
  int fd() const noexcept { return stream_ ? stream_->fd() : trial_ ? trial_->fd() : -1; }
  // Becomes readable when the adapter has done what was waited for; -1 without an adapter. It
  // exists once the connection is up.
  int adapter_fd() const noexcept { return changes_->fd(); }
  // Why nothing has got through the adapter since something last did; empty if all is well.
  std::string adapter_trouble() const { return changes_->trouble(); }
  int proxy() const noexcept { return proxy_; }
  const std::vector<int>& host() const noexcept { return host_; }
  // The time since which no connection has worked; nullopt while one does.
  std::optional<Clock::time_point> down_since() const noexcept {
    const auto stalled = changes_->stalled_since();
    return stalled ? stalled : down_since_;
  }
  // The proxy of a connection that worked, and has ended since the last call of this.
  std::optional<int> take_disconnected() noexcept {
    return std::exchange(disconnected_, std::nullopt);
  }
  // Whether a rank of the host lives.
  bool is_needed() const noexcept;
  // All ranks of the host refuse or close the connection each time they are called, so none of them
  // is likely to hear this rank's goodbye.
  bool is_unwanted() const noexcept { return turned_away_ >= kPatience * host_.size(); }
  Clock::time_point last_call() const noexcept { return last_call_; }
  bool has_said_all() const noexcept { return said_goodbye_ && !is_blocked(); }
  const std::string& reason() const noexcept { return reason_; }

 private:
  void fail(const std::string& why);
  void give_up(const std::string& why);
  std::optional<std::size_t> choose(Clock::time_point now) const;
  bool is_in_haste() const noexcept;
  bool advance_handshake();
  void part();
  void take_answers(Clock::time_point now);
  void take_share(std::span<const std::byte> body);
  void try_to_call(Clock::time_point now);
  std::string describe_proxy() const;
  void note_call(int error);  // 0: it succeeded
  bool reap(Clock::time_point now);
  bool fill(const Attachments& attachments, bool leaving, Clock::time_point now);
  bool put_frames(const Attachments& attachments, bool leaving, Clock::time_point now);
  bool is_silent(Clock::time_point now) const noexcept;
  void fill_notices(std::uint64_t posted);
  void fill_record();
  void send(Clock::time_point now);

  host::Control& control_;
  const Settings& settings_;
  const std::vector<int>& host_;
  static constexpr std::size_t kPatience = 3;  // calls to each

  State state_ = State::kOver;
  int proxy_ = -1;
  std::size_t next_;        // the index of the rank to call next
  std::size_t failed_ = 0;  // calls and connections in a row
  std::string reason_;
  std::optional<int> disconnected_;
  std::optional<Clock::time_point> down_since_;
  // since when the proxy has been evicted, as far as seen here
  std::optional<Clock::time_point> evicted_since_;
  std::size_t turned_away_ = 0;  // calls in a row that the callee ended before it took anything in

  std::shared_ptr<net::Stream> stream_;
  Downlink* partner_ = nullptr;
  std::optional<Shared> shared_;
  std::optional<net::Stream> trial_;  // a connection that shows whether this rank could call
  Clock::time_point last_trial_;
  std::optional<net::Handshake> handshake_;
  Backlog backlog_;
  Outbox outbox_;
  std::unique_ptr<ChangeSender> changes_;
  bool awaits_adapter_ = false;  // something can go on only when changes have arrived
  std::uint64_t notice_ = 0;     // the last one sent
  std::uint64_t abandoned_ = 0;  // the last one of which the callee knows that it was given up
  std::uint64_t beat_ = 0;       // that of the last record sent
  bool is_watched_ = true;
  bool said_goodbye_ = false;
  std::uint64_t answered_bytes_ = 0;
  std::uint64_t asked_bytes_ = 0;   // up to the end of the last frame that is to be answered
  std::vector<std::byte> answers_;  // unparsed answers, up to answers_end_
  std::size_t answers_end_ = 0;
  net::Introduction call_{};

  Clock::time_point last_call_, last_sent_, last_heard_;
  Clock::time_point due_since_;  // since when something has to come from the callee
};

}  // namespace dstorm::remote
