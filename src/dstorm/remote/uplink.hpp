// The uplink: the connection by which this rank's writes reach one other host. On that host one
// live rank, the proxy, copies them into the host's memory. If the proxy's own writes arrive here
// over the same connection, its Downlink is the partner of this Uplink: the Downlink reads for
// both, and the Uplink writes for both. If one of them ends, the other does too.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dstorm/host/control.hpp"
#include "dstorm/remote/attachment.hpp"
#include "dstorm/remote/frame.hpp"
#include "dstorm/remote/tcp/address.hpp"
#include "dstorm/remote/tcp/handshake.hpp"
#include "dstorm/remote/tcp/stream.hpp"
#include "dstorm/remote/verbs/sender.hpp"
#include "dstorm/slot/carrier.hpp"

namespace dstorm::remote {

// Settings that all connections of a rank share.
struct Settings {
  tcp::KeptKey key;
  tcp::Address own;                     // where this rank listens, and calls from
  std::vector<tcp::Address> addresses;  // by rank
  const tcp::TlsContext* tls;           // nullptr: plain
  std::chrono::nanoseconds silence;     // a rank not heard from for this long is suspected
  const verbs::Device* device;          // nullptr: no RDMA
  std::vector<bool> rdma;               // by rank: whether it is reached by RDMA
  std::size_t most_ranks;               // of a host
};

using Attachments = std::map<std::uint32_t, std::shared_ptr<Attachment>>;

// The index, among the ranks of `host`, of the rank that `rank` of another host calls first.
inline std::size_t first_proxy(int rank, const std::vector<int>& host) {
  return static_cast<std::size_t>(rank) % host.size();
}

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
  // The callee shares the connection: its call, and its bytes that are not parsed yet. The caller
  // makes the partner from them.
  struct Shared {
    tcp::Introduction call;
    std::vector<std::byte> unparsed;
  };
  std::optional<Shared> take_shared() noexcept { return std::exchange(shared_, std::nullopt); }
  const std::shared_ptr<tcp::Stream>& stream() const noexcept { return stream_; }
  void join(Downlink& partner) noexcept { partner_ = &partner; }
  // For the partner: sends an answer to the partner's sender; takes in an answer of that sender;
  // notes that the sender was heard; ends this uplink because the partner has ended.
  void say(std::span<const std::byte> answer);
  void take(const FrameHead& head, std::span<const std::byte> body);
  void hear(Clock::time_point now) noexcept { last_heard_ = now; }
  void partner_is_over(bool in_order, const std::string& why);

  // This rank has changed something in the segment. The first pump() over a connection looks at all
  // segments, so there is no need to call this before it.
  void note(const std::shared_ptr<Attachment>& changed);
  // The segment has been removed.
  void forget(std::uint32_t segment);

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
  std::uint64_t looks() const noexcept { return looks_; }
  // Under LATEST: copies the payload that is being sent straight from a slot of this segment, which
  // frees the slot. Returns whether there was one.
  bool make_room(std::uint32_t segment);

  State state() const noexcept { return state_; }
  std::uint64_t sent_bytes() const noexcept { return sent_bytes_; }
  // Bytes are waiting for the connection to take more.
  bool is_blocked() const noexcept { return !pieces_.empty() || small_at_ < small_.size(); }
  int fd() const noexcept { return stream_ ? stream_->fd() : trial_ ? trial_->fd() : -1; }
  // Becomes readable when the adapter has done what was waited for; -1 without an adapter. It
  // exists once the connection is up.
  int adapter_fd() const noexcept { return rdma_ ? rdma_->fd() : -1; }
  // The adapter has reported this event: see Queue::hear. The next pump() ends a connection that
  // has failed.
  void hear_adapter(const verbs::DeviceEvent& event);
  // Why nothing has got through by RDMA since something last did; empty if all is well.
  const std::string& adapter_trouble() const noexcept { return adapter_trouble_; }
  int proxy() const noexcept { return proxy_; }
  const std::vector<int>& host() const noexcept { return host_; }
  // The time since which no connection has worked; nullopt while one does.
  std::optional<Clock::time_point> down_since() const noexcept {
    return stalled_since_ ? stalled_since_ : down_since_;
  }
  // The proxy of a connection that worked, and has been lost since the last call of this.
  std::optional<int> take_lost() noexcept { return std::exchange(lost_, std::nullopt); }
  // Whether a rank of the host lives.
  bool is_needed() const noexcept;
  // All ranks of the host refuse or close the connection each time they are called, so none of them
  // is likely to hear this rank's goodbye.
  bool is_unwanted() const noexcept { return turned_away_ >= kPatience * host_.size(); }
  Clock::time_point last_call() const noexcept { return last_call_; }
  bool has_said_all() const noexcept { return said_goodbye_ && !is_blocked(); }
  const std::string& reason() const noexcept { return reason_; }

 private:
  struct Change {
    std::uint64_t clock;   // of the segment, when the change was seen
    std::uint64_t number;  // that of the attachment's last change then
  };
  struct Carried {                                 // the state of one segment
    std::shared_ptr<const Attachment> attachment;  // keeps its memory mapped
    SlotCarrier carrier;
    std::uint64_t changes = 0;  // the attachment's last change that has been sent
    std::deque<Change> due =
        // changes that were seen and not sent, one a clock; with any it is in due_
        {};
    std::uint64_t sent = 0;  // updates up to this iteration have been sent, or replaced before
    std::uint64_t clock = 0;
    std::vector<CursorBody> cursors = {};  // one per rank of the host, as last sent
    std::uint64_t closed_at = 0;           // the frame that says so ends at this byte; 0: not said
    std::uint64_t in_flight = 0;           // RDMA: the last write out of the slot held, or 0
    std::uint64_t last_update = 0;         // RDMA: the last write of an update
  };

  void fail(const std::string& why);
  void fail_by_adapter(const std::string& why);
  void give_up(const std::string& why);
  bool advance_handshake();
  void part();
  void introduce_adapter();
  void take_answers(Clock::time_point now);
  void take_share(std::span<const std::byte> body);
  void try_to_call(Clock::time_point now);
  std::string describe_proxy() const;
  void take_window(std::uint32_t segment, std::span<const std::byte> body);
  bool reap(Clock::time_point now);
  void try_adapter();
  bool fill(const Attachments& attachments, bool leaving);
  bool fill_segments();
  bool post_segments();
  void note_all(const Attachments& attachments);
  static void note_change(Carried& carried);
  static void drop_passed(Carried& carried);
  std::deque<Carried*>::iterator place_of(const Carried& carried);
  void insert_due(Carried& carried);
  Carried& carried(const std::shared_ptr<Attachment>& attachment);
  bool is_through(const Attachment& attachment) const;
  static void note_through(Carried& carried, std::uint64_t changes);
  bool is_live(const Attachment& attachment, int rank) const;
  bool fill_segment(Carried& carried);
  bool post_segment(Carried& carried);
  void fill_cursors(Carried& carried);
  bool post_cursors(Carried& carried, std::uint64_t least, bool more_follows);
  bool changed_cursor(Carried& carried, std::size_t place, std::uint64_t least,
                      CursorBody& body) const;
  void fill_closed(Carried& carried);
  void fill_notices(std::uint64_t posted);
  void fill_record();
  void send(Clock::time_point now);
  void note_sent(std::size_t bytes);
  void clear();
  template <class Part>
  void put(const Part& part) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&part);
    small_.insert(small_.end(), bytes, bytes + sizeof(part));
  }
  void put_head(FrameKind kind, std::uint32_t segment, std::uint64_t bytes);

  host::Control& control_;
  const Settings& settings_;
  const std::vector<int>& host_;
  static constexpr std::size_t kPatience = 3;  // calls to each

  State state_ = State::kOver;
  int proxy_ = -1;
  std::size_t next_;  // the index of the rank to call next
  std::string reason_;
  std::optional<int> lost_;
  std::optional<Clock::time_point> down_since_;
  // since when the proxy has been evicted, as far as seen here
  std::optional<Clock::time_point> left_out_since_;
  std::size_t turned_away_ = 0;  // calls in a row that the callee ended before it took anything in

  std::shared_ptr<tcp::Stream> stream_;
  Downlink* partner_ = nullptr;
  std::optional<Shared> shared_;
  std::optional<tcp::Stream> trial_;  // a connection that shows whether this rank could call
  Clock::time_point last_trial_;
  std::optional<tcp::Handshake> handshake_;
  std::map<std::uint32_t, Carried> carried_;
  std::deque<Carried*> due_;    // segments with something to send, oldest change first
  bool has_noted_all_ = false;  // since the connection was made
  std::uint64_t looks_ = 0;
  std::uint64_t notice_ = 0;  // the last one sent
  std::uint64_t beat_ = 0;    // that of the last record sent
  bool said_goodbye_ = false;
  bool may_lag_ = false;  // holds for small_ and pieces_
  bool lags_ = false;     // the socket has been told to wait for more

  struct Piece {
    std::size_t end;                     // the position in small_ before which the payload goes
    std::span<const std::byte> payload;  // in a slot or in staged_
  };
  // frames to send, from small_at_ on, except the payloads in pieces_
  std::vector<std::byte> small_;
  std::size_t small_at_ = 0;
  std::deque<Piece> pieces_;
  std::size_t long_bytes_ = 0;  // of their payloads, when they were put there
  Carried* reading_ = nullptr;  // its slot is held, and has the payload of the last piece
  std::vector<iovec> parts_;    // of one call
  std::vector<std::byte> staged_;
  std::uint64_t sent_bytes_ = 0;  // of frames, over this connection
  std::uint64_t answered_bytes_ = 0;
  std::vector<std::byte> answers_;  // unparsed answers, up to answers_end_
  std::size_t answers_end_ = 0;
  tcp::Introduction call_{};

  std::unique_ptr<verbs::Sender> rdma_;
  std::uint64_t reaped_ = 0;     // completed writes when reap() last looked
  bool is_joined_ = false;       // connected with the other end's queue pair
  bool awaits_adapter_ = false;  // something can go on only when writes have completed
  Clock::time_point moved_;      // when the adapter last did something, or had nothing to do
  Clock::time_point tried_;      // when it last did something
  // Since when an adapter has failed, while no other connection has written what it was to write.
  std::optional<Clock::time_point> stalled_since_;
  std::string adapter_trouble_;
  Clock::time_point last_call_, last_sent_, last_heard_;
};

}  // namespace dstorm::remote
