// The connection by which this rank's writes reach one other host: there one live rank, its proxy,
// copies them into that host's memory. If that one's writes come over it, too, its Downlink, the partner,
// reads for both, and this writes for both; one that ends ends the other.
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

// What all connections of a rank share.
struct Settings {
  tcp::KeptKey key;
  tcp::Address own;                     // where this rank listens, and calls from
  std::vector<tcp::Address> addresses;  // by rank
  const tcp::TlsContext* tls;           // nullptr: plain
  std::chrono::nanoseconds silence;     // who is not heard of for so long is gone
  const verbs::Device* device;          // nullptr: no RDMA
  std::vector<bool> rdma;               // by rank: whether it is reached by RDMA
  std::size_t most_ranks;               // of a host
};

using Attachments = std::map<std::uint32_t, std::shared_ptr<Attachment>>;

// Of a host's ranks the place of the one that `rank` of another host calls first.
inline std::size_t first_proxy(int rank, const std::vector<int>& host) {
  return static_cast<std::size_t>(rank) % host.size();
}

class Downlink;

// Used under the engine's lock. Nothing blocks.
class Uplink {
 public:
  enum class State : std::uint8_t {
    kAwaiting,  // the call of the rank whose connection it is to share
    kCalling,
    kUp,
    kOver,
    kDone  // said goodbye, and was heard
  };

  Uplink(host::Control& control, const Settings& settings, const std::vector<int>& host);

  // Calls the next of the host's live ranks, if there is one; `number` grows from call to call.
  bool call(std::uint64_t number, Clock::time_point now);
  // The same where `proxy` is to call: then to speak over the connection that it has made, as its own call
  // of that number. Meanwhile it tries whether it could call itself: see can_call().
  void await(int proxy, Clock::time_point now);
  void share(Downlink& partner, std::uint64_t number, Clock::time_point now);
  // Whether a call of this rank's has got through, or would. Tries again now and then.
  bool can_call(Clock::time_point now);
  bool is_trying() const noexcept { return trial_.has_value(); }
  // The callee shares the connection: its call, and what has come of it so far. The partner is to be made of it.
  struct Shared {
    tcp::Introduction call;
    std::vector<std::byte> unparsed;
  };
  std::optional<Shared> take_shared() noexcept { return std::exchange(shared_, std::nullopt); }
  const std::shared_ptr<tcp::Stream>& stream() const noexcept { return stream_; }
  void join(Downlink& partner) noexcept { partner_ = &partner; }
  // Of the partner: an answer to its sender, an answer of its, that it was heard, and that it is over.
  void say(std::span<const std::byte> answer);
  void take(const FrameHead& head, std::span<const std::byte> body);
  void hear(Clock::time_point now) noexcept { last_heard_ = now; }
  void partner_is_over(bool in_order, const std::string& why);

  // This rank has changed something in the segment. Until the first pump() over a connection, which looks at
  // all segments, it need not be told.
  void note(const std::shared_ptr<Attachment>& changed);
  // The segment is no more.
  void forget(std::uint32_t segment);

  // Sends what is new, as far as the connection takes it, and perhaps hears what is answered.
  // `may_lag`: where nothing of it is urgent, it may lie in the socket until the next pump.
  void pump(const Attachments& attachments, bool leaving, bool with_answers, bool may_lag,
            Clock::time_point now);
  // Time goes by: heartbeats, and who is silent. False: this connection is of no more use.
  bool tend(Clock::time_point now);
  // The connection has been lost, or given up.
  void hang_up();

  // Whether the host needs nothing more of a segment that this rank has closed: all that was changed there
  // has been said, and that it is closed; and it has been taken in, or nobody there uses it any more.
  bool is_done_with(const Attachment& attachment) const;
  // How often it has looked at a segment, to see what there is to send.
  std::uint64_t looks() const noexcept { return looks_; }
  // LATEST: what is still being read in place from this segment is copied. True if there was any.
  bool make_room(std::uint32_t segment);

  State state() const noexcept { return state_; }
  std::uint64_t sent_bytes() const noexcept { return sent_bytes_; }
  // Something waits for the connection to take more.
  bool is_blocked() const noexcept { return !pieces_.empty() || small_at_ < small_.size(); }
  int fd() const noexcept { return stream_ ? stream_->fd() : trial_ ? trial_->fd() : -1; }
  // Readable when the adapter has done something that was waited for; -1 without one. Made once the
  // connection is up.
  int adapter_fd() const noexcept { return rdma_ ? rdma_->fd() : -1; }
  // The adapter has told of this: see Queue::hear. The next pump() ends a connection that has failed.
  void hear_adapter(const verbs::DeviceEvent& event);
  // Why nothing has got through by RDMA since it last did; empty if all is well.
  const std::string& adapter_trouble() const noexcept { return adapter_trouble_; }
  int proxy() const noexcept { return proxy_; }
  const std::vector<int>& host() const noexcept { return host_; }
  // Since when no connection has worked; nullopt while one does.
  std::optional<Clock::time_point> down_since() const noexcept {
    return stalled_since_ ? stalled_since_ : down_since_;
  }
  // The proxy of a connection that has worked, and has been lost since the last time this was asked.
  std::optional<int> take_lost() noexcept { return std::exchange(lost_, std::nullopt); }
  // Whether a rank of the host lives.
  bool is_needed() const noexcept;
  // All ranks of the host, however often they are called, refuse or close the connection: nobody there is
  // likely to hear this rank's goodbye.
  bool is_unwanted() const noexcept { return turned_away_ >= kPatience * host_.size(); }
  Clock::time_point last_call() const noexcept { return last_call_; }
  bool has_said_all() const noexcept { return said_goodbye_ && !is_blocked(); }
  const std::string& reason() const noexcept { return reason_; }

 private:
  struct Change {
    std::uint64_t clock;   // of the segment, when it was seen
    std::uint64_t number;  // of the attachment's last change then
  };
  struct Carried {                                 // of one segment
    std::shared_ptr<const Attachment> attachment;  // keeps its memory mapped
    SlotCarrier carrier;
    std::uint64_t changes = 0;  // the attachment's last that has been said
    std::deque<Change> due =
        {};                  // those seen that have not been; one a clock; with any it is in due_
    std::uint64_t sent = 0;  // updates up to this iteration have been sent, or replaced before
    std::uint64_t clock = 0;
    std::vector<CursorBody> cursors = {};  // one per rank of the host, as last sent
    std::uint64_t closed_at = 0;    // so many bytes of the connection say so, too; 0: not said
    std::uint64_t in_flight = 0;    // by RDMA: the last write out of the slot held, or 0
    std::uint64_t last_update = 0;  // by RDMA: the last write of an update
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
  void put(const Part& part);
  void put_head(FrameKind kind, std::uint32_t segment, std::uint64_t bytes);

  host::Control& control_;
  const Settings& settings_;
  const std::vector<int>& host_;
  static constexpr std::size_t kPatience = 3;  // calls to each

  State state_ = State::kOver;
  int proxy_ = -1;
  std::size_t next_;  // which of the host's ranks to call next
  std::string reason_;
  std::optional<int> lost_;
  std::optional<Clock::time_point> down_since_;
  std::optional<Clock::time_point> left_out_since_;  // the proxy, as far as this has seen
  std::size_t turned_away_ = 0;  // calls in a row, by the callee, which had taken nothing in

  std::shared_ptr<tcp::Stream> stream_;
  Downlink* partner_ = nullptr;
  std::optional<Shared> shared_;
  std::optional<tcp::Stream> trial_;  // whether it could call
  Clock::time_point last_trial_;
  std::optional<tcp::Handshake> handshake_;
  std::map<std::uint32_t, Carried> carried_;
  std::deque<Carried*> due_;    // those with something to say, by the age of it
  bool has_noted_all_ = false;  // since the connection was made
  std::uint64_t looks_ = 0;
  std::uint64_t notice_ = 0;  // the last one sent
  std::uint64_t beat_ = 0;    // of the last record sent
  bool said_goodbye_ = false;
  bool may_lag_ = false;  // what small_ and pieces_ hold
  bool lags_ = false;     // the socket has been told to wait for more

  struct Piece {
    std::size_t end;                     // of small_: so far it goes before
    std::span<const std::byte> payload;  // lying in a slot or in staged_
  };
  std::vector<std::byte> small_;  // frames to send, from small_at_ on, but for the payloads of
  std::size_t small_at_ = 0;
  std::deque<Piece> pieces_;
  std::size_t long_bytes_ = 0;  // of their payloads, when they were put there
  Carried* reading_ = nullptr;  // in whose slot the last one's payload lies, if that is held
  std::vector<iovec> parts_;    // of one call
  std::vector<std::byte> staged_;
  std::uint64_t sent_bytes_ = 0;  // of frames, over this connection
  std::uint64_t answered_bytes_ = 0;
  std::vector<std::byte> answers_;  // what has come of them, up to answers_end_
  std::size_t answers_end_ = 0;
  tcp::Introduction call_{};

  std::unique_ptr<verbs::Sender> rdma_;
  std::uint64_t reaped_ = 0;     // of its writes, when reap() last looked
  bool is_joined_ = false;       // with the other end's queue pair
  bool awaits_adapter_ = false;  // something can go on only when writes have completed
  Clock::time_point moved_;      // when the adapter last did something, or had nothing to do
  Clock::time_point tried_;      // when it last did something
  // An adapter has failed, and what it was to write has not been written by another since.
  std::optional<Clock::time_point> stalled_since_;
  std::string adapter_trouble_;
  Clock::time_point last_call_, last_sent_, last_heard_;
};

}  // namespace dstorm::remote
