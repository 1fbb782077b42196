// A transport over pipes, between processes of one machine: it shows that a transport is a folder
// and a few rows, and the conformance tests run over it (cmake/tests.cmake). A rank writes its
// changes of segments for another host into a pipe, as frames. The proxy there opens the pipe
// through /proc, takes them in, and answers over the connection how many bytes it has had.
#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "dstorm/group/transports.hpp"
#include "dstorm/remote/tcp/change_receiver.hpp"
#include "dstorm/remote/transport/adapter.hpp"

namespace dstorm::pipe {
namespace {

using remote::FrameHead;
using remote::FrameKind;

constexpr int kPipe = 1024 * 1024;           // bytes
constexpr std::size_t kMostWaiting = kPipe;  // bytes that wait for room in a pipe, about

struct Address {  // of a pipe's end that is read
  std::int32_t process;
  std::int32_t fd;
};

template <class Part>
std::span<const std::byte> bytes_of(const Part& part) {
  return std::as_bytes(std::span(&part, 1));
}

class Sender final : public remote::ChangeSender {
 public:
  explicit Sender(const remote::Route& route) : route_(route) {}

  void begin(const net::Introduction& call) override {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) throw Error(std::strerror(errno));
    read_end_ = Descriptor(ends[0]);
    write_end_ = Descriptor(ends[1]);
    fcntl(ends[1], F_SETPIPE_SZ, kPipe);
    const Address own{getpid(), ends[0]};
    route_.outbox.put_proved(route_.settings.key, call, FrameKind::kEndpoint, bytes_of(own));
  }
  void end() noexcept override {
    read_end_ = Descriptor();
    write_end_ = Descriptor();
    waiting_.clear();
    written_ = 0;
    is_joined_ = false;
    put_ = taken_in_ = 0;
  }
  Progress send(const remote::Attachments& attachments, Clock::time_point) override {
    route_.outbox.hurry();
    route_.backlog.keep_only(attachments);
    if (!is_joined_) return Progress::kStuck;
    write();
    const bool is_all =
        route_.backlog.send_in_turn([this](remote::Carried& one) { return send_segment(one); });
    write();
    if (!is_all || waits() > 0) return Progress::kStuck;
    return taken_in_ == put_ ? Progress::kDone : Progress::kPosted;
  }
  bool reap(bool, Clock::time_point) override { return false; }
  void tend(Clock::time_point) override {}
  void take(const FrameHead& head, std::span<const std::byte> body) override {
    if (head.kind == FrameKind::kEndpoint) {
      is_joined_ = true;
      read_end_ = Descriptor();
    } else {
      taken_in_ = remote::get<std::uint64_t>(body);
    }
  }
  std::size_t longest_answer() const override { return sizeof(std::uint64_t); }
  bool make_room(std::uint32_t) override { return false; }

 private:
  // Returns false if it has to go on later.
  bool send_segment(remote::Carried& carried) {
    const remote::Attachment& attachment = *carried.attachment;
    const std::uint64_t changes = attachment.changes.load(std::memory_order_acquire);
    const bool has_gone = attachment.memory->has_gone(route_.control.rank());
    if (waits() > kMostWaiting) return false;
    for (std::size_t place = 0; place < route_.host.size(); ++place) {
      remote::CursorBody cursor{};
      if (!route_.backlog.changed_cursor(carried, place, 1, cursor)) continue;
      put({FrameKind::kCursors, attachment.id, sizeof(cursor)}, bytes_of(cursor));
    }
    const std::uint64_t clock = carried.carrier.clock();
    const auto live = [&](int r) { return route_.backlog.is_live(attachment, r); };
    for (int slot; (slot = carried.carrier.take(carried.sent, live)) >= 0;) {
      const bool is_beyond = carried.carrier.header().iteration > clock;
      if (!is_beyond) put_update(carried, slot);
      carried.carrier.let_go();
      if (is_beyond) break;
      if (waits() > kMostWaiting) return false;
    }
    if (clock > carried.clock) {
      put({FrameKind::kClock, attachment.id, sizeof(clock)}, bytes_of(clock));
      carried.clock = clock;
    }
    if (has_gone && carried.closed_at == 0) {
      if (taken_in_ < put_) return false;  // it goes over the connection
      remote::put_gone(carried, route_.outbox, route_.control.rank());
    }
    carried.note_through(changes);
    return true;
  }
  void put_update(remote::Carried& carried, int slot) {
    const SlotHeader header = carried.carrier.header();
    std::vector<std::byte> body(bytes_of(header).begin(), bytes_of(header).end());
    for (const Addressee& one : carried.carrier.addressees()) {
      const remote::Ticketed to{one.ordinal, static_cast<std::uint32_t>(one.rank), 0};
      body.insert(body.end(), bytes_of(to).begin(), bytes_of(to).end());
    }
    const std::byte* const payload = carried.carrier.payload(slot);
    body.insert(body.end(), payload, payload + header.payload_bytes);
    put({FrameKind::kUpdate, carried.attachment->id, body.size()}, body);
    carried.sent = carried.clock = header.iteration;
  }
  void put(const FrameHead& head, std::span<const std::byte> body) {
    waiting_.insert(waiting_.end(), bytes_of(head).begin(), bytes_of(head).end());
    waiting_.insert(waiting_.end(), body.begin(), body.end());
    put_ += sizeof(head) + body.size();
  }
  // As much as there is room for: the other end answers when it has made some.
  void write() {
    for (ssize_t bytes = 1; bytes > 0 && waits() > 0;) {
      bytes = ::write(write_end_.get(), waiting_.data() + written_, waits());
      if (bytes > 0) written_ += static_cast<std::size_t>(bytes);
    }
    if (waits() > 0 && written_ < kMostWaiting) return;
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(written_));
    written_ = 0;
  }
  std::size_t waits() const { return waiting_.size() - written_; }

  remote::Route route_;
  Descriptor read_end_, write_end_;
  bool is_joined_ = false;          // the other end has opened the pipe
  std::vector<std::byte> waiting_;  // from written_ on
  std::size_t written_ = 0;
  std::uint64_t put_ = 0, taken_in_ = 0;  // bytes
};

// How its updates reach the mailboxes is as over TCP.
class Receiver final : public remote::ChangeReceiver {
 public:
  Receiver(int epoll, const remote::Origin& origin)
      : epoll_(epoll), origin_(origin), mailboxes_(origin) {}

  std::optional<Payload> begin_update(const FrameHead&, std::span<const std::byte>,
                                      const Attached&) override {
    throw remote::BrokenRule("it sent a frame with an update that belongs in a pipe");
  }
  void finish_update() override {}
  bool take_clock(std::uint64_t, const Attached&) override {
    throw remote::BrokenRule("it sent a frame with a clock that belongs in a pipe");
  }
  void take_endpoint(std::span<const std::byte> body) override {
    remote::require(body.size() == sizeof(Address) + sizeof(net::Mac), "a pipe of another length");
    const FrameHead head{FrameKind::kEndpoint, 0, body.size()};
    const auto said = body.first(sizeof(Address));
    remote::require(
        remote::is_proof(body.subspan(said.size()),
                         remote::prove(origin_.settings.key, head, said, origin_.caller)),
        "a pipe that was changed on the way");
    const auto given = remote::get<Address>(said);
    const std::string path =
        "/proc/" + std::to_string(given.process) + "/fd/" + std::to_string(given.fd);
    pipe_ = Descriptor(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    if (!pipe_) throw Error(path + ": " + std::strerror(errno));
    epoll_event event{.events = EPOLLIN, .data = {.fd = pipe_.get()}};
    epoll_ctl(epoll_, EPOLL_CTL_ADD, pipe_.get(), &event);
    origin_.answers.put_proved(origin_.settings.key, origin_.caller, FrameKind::kEndpoint, 0, {});
  }
  // The engine calls this whenever it has taken in what the connection has.
  void announce(const remote::Attachments& attachments) override {
    if (!pipe_) return;
    std::byte part[64 * 1024];
    const std::uint64_t before = taken_in_;
    for (;;) {
      while (take(attachments)) {
      }
      if (!is_short_) break;  // a frame waits for another rank of this host
      const ssize_t bytes = read(pipe_.get(), part, sizeof(part));
      if (bytes <= 0) break;
      unparsed_.insert(unparsed_.end(), part, part + bytes);
    }
    if (taken_in_ == before) return;
    origin_.answers.put_proved(origin_.settings.key, origin_.caller, FrameKind::kWindow, 0,
                               bytes_of(taken_in_));
  }
  bool keep_only(const remote::Attachments& attachments) override {
    return mailboxes_.keep_only(attachments);
  }
  bool is_at_work() const noexcept override { return mailboxes_.is_at_work(); }
  bool has_adapter() const noexcept override { return static_cast<bool>(pipe_); }
  void end() noexcept override {
    mailboxes_.end();
    pipe_ = Descriptor();
  }

 private:
  // Takes one frame in. Returns false if it is not whole yet (is_short_), or has to wait.
  bool take(const remote::Attachments& attachments) {
    const std::span<const std::byte> rest(unparsed_);
    is_short_ = rest.size() < sizeof(FrameHead);
    if (is_short_) return false;
    const auto head = remote::get<FrameHead>(rest);
    is_short_ = rest.size() - sizeof(head) < head.bytes;
    if (is_short_) return false;
    const auto found = attachments.find(head.segment);
    const Attached attachment = found == attachments.end() ? nullptr : found->second;
    if (!take(head, rest.subspan(sizeof(head), head.bytes), attachment)) return false;
    const std::size_t bytes = sizeof(head) + head.bytes;
    unparsed_.erase(unparsed_.begin(), unparsed_.begin() + static_cast<std::ptrdiff_t>(bytes));
    taken_in_ += bytes;
    return true;
  }
  bool take(const FrameHead& head, std::span<const std::byte> body, const Attached& attachment) {
    if (head.kind == FrameKind::kClock) {
      return mailboxes_.take_clock(remote::get<std::uint64_t>(body), attachment);
    }
    if (head.kind == FrameKind::kCursors) {
      if (attachment) take_cursor(remote::get<remote::CursorBody>(body), *attachment->memory);
      return true;
    }
    const auto header = remote::get<SlotHeader>(body);
    const std::size_t fixed = body.size() - header.payload_bytes;
    const auto payload = mailboxes_.begin_update(head, body.first(fixed), attachment);
    if (!payload) return false;
    if (payload->to != nullptr) {
      std::memcpy(payload->to, body.data() + fixed, header.payload_bytes);
    }
    mailboxes_.finish_update();
    return true;
  }
  void take_cursor(const remote::CursorBody& given, const host::SegmentMemory& memory) {
    const int rank = static_cast<int>(given.sender);
    Cursor& cursor = Mailbox(memory.mailbox(rank), memory.shape().mailbox).cursor(origin_.sender);
    raise_to(cursor.overwritten, given.overwritten);
    raise_to(cursor.folded, given.folded);
    raise_to(cursor.rejected, given.rejected);
    raise_to(cursor.ordinal, given.ordinal);
    raise_to(cursor.consumed, given.consumed);
    origin_.control.ring({&rank, 1});
  }

  int epoll_;
  const remote::Origin& origin_;
  tcp::ChangeReceiver mailboxes_;
  Descriptor pipe_;
  std::vector<std::byte> unparsed_;
  bool is_short_ = true;
  std::uint64_t taken_in_ = 0;  // bytes
};

class Proof final : public remote::Proof {
  Bytes offer() const override { return {}; }
  void connect(std::span<const Bytes>, std::span<const std::string>) override {}
  void write(std::span<const std::string>) override {}
  const std::vector<Reason>& reasons() const noexcept override { return reasons_; }
  std::vector<Reason> reasons_;
};

class Adapter final : public remote::Adapter {
  std::string_view transport() const override { return "pipe"; }
  std::string_view network() const override { return "pipe"; }
  std::string describe() const override { return "pipes"; }
  std::unique_ptr<remote::Proof> begin_proof(int, std::vector<int>,
                                             std::chrono::milliseconds) const override {
    return std::make_unique<Proof>();
  }
  std::size_t inbox_bytes(const MailboxShape&) const override { return 0; }
  std::shared_ptr<remote::Registration> enlist(
      std::shared_ptr<const host::SegmentMemory>) const override {
    return nullptr;
  }
  std::unique_ptr<remote::Inbox> open_inbox(std::shared_ptr<host::SegmentMemory>,
                                            int) const override {
    return nullptr;
  }
  std::unique_ptr<remote::ChangeSender> make_sender(const remote::Route& route) override {
    return std::make_unique<Sender>(route);
  }
  std::unique_ptr<remote::ChangeReceiver> make_receiver(const remote::Origin& origin) override {
    return std::make_unique<Receiver>(epoll_.get(), origin);
  }
  int event_fd() const override { return epoll_.get(); }  // readable while a pipe is
  bool take_events() override { return true; }            // the receivers read them

  Descriptor epoll_{epoll_create1(EPOLL_CLOEXEC)};
};

[[maybe_unused]] const bool kIsAdded = [] {
  adapter_rows().push_back(
      {"pipe", [](const GroupOptions&, const host::Control&) -> std::unique_ptr<remote::Adapter> {
         std::signal(SIGPIPE, SIG_IGN);  // the connection shows whose process has ended
         return std::make_unique<Adapter>();
       }});
  return true;
}();

}  // namespace
}  // namespace dstorm::pipe
