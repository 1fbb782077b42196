// A peer that has the job's key, or has stolen a connection, can do no more than report less than
// the truth about itself.
#include "dstorm/remote/downlink.hpp"

#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <random>
#include <thread>

#include "dstorm/host/roll_call.hpp"
#include "dstorm/slot/reader.hpp"
#include "dstorm/slot/writer.hpp"
#include "tcp_ranks.hpp"
#include "tcp_sockets.hpp"

namespace dstorm::remote {
using net::Address;
using net::Handshake;
using net::Introduction;
using net::Key;
using net::make_key;
using net::Stream;
namespace {

using namespace std::chrono_literals;
using testing_sockets::eventually;
using testing_sockets::ListeningSocket;
using testing_sockets::loopback;
using testing_sockets::raw_connect;
using testing_sockets::raw_send;

constexpr int kRanks = 5;
constexpr int kHere = 0, kBeside = 1, kSender = 2, kElsewhere = 3;
constexpr int kAbsent = 4;  // no member
constexpr std::uint32_t kSegment = 1;
constexpr std::uint64_t kTop = std::uint64_t{1} << 63;
constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint32_t kMost32 = std::numeric_limits<std::uint32_t>::max();

// ---- Frames ----

template <class... Parts>
std::string bytes_of(const Parts&... parts) {
  std::string all;
  (all.append(reinterpret_cast<const char*>(&parts), sizeof(parts)), ...);
  return all;
}

// A frame whose head gives `bytes` as the length of its body, whether that is true or not.
std::string frame(FrameKind kind, std::uint32_t segment, std::uint64_t bytes,
                  const std::string& body) {
  return bytes_of(FrameHead{kind, segment, bytes}) + body;
}
std::string frame(FrameKind kind, std::uint32_t segment, const std::string& body = "") {
  return frame(kind, segment, body.size(), body);
}

std::string clock_frame(std::uint64_t clock) {
  return frame(FrameKind::kClock, kSegment, bytes_of(clock));
}

std::string notice_frame(std::uint64_t number, const std::string& what = "barrier",
                         const std::string& data = "data") {
  const NoticeHead head{number, static_cast<std::uint32_t>(what.size()),
                        static_cast<std::uint32_t>(data.size())};
  return frame(FrameKind::kNotice, 0, bytes_of(head) + what + data);
}

CursorBody cursor_of(std::uint32_t sender, std::uint64_t consumed) {
  return {.consumed = consumed,
          .folded = consumed,
          .overwritten = 0,
          .rejected = 0,
          .ordinal = consumed,
          .sender = sender,
          .unused = 0};
}
std::string cursors_frame(const std::vector<CursorBody>& cursors) {
  std::string body;
  for (const CursorBody& one : cursors) body += bytes_of(one);
  return frame(FrameKind::kCursors, kSegment, body);
}

// Bytes that show to which update they belong.
std::string payload_of(std::uint64_t iteration, std::size_t bytes) {
  std::string payload(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) payload[i] = static_cast<char>(iteration * 31 + i);
  return payload;
}

struct UpdateFrame {
  explicit UpdateFrame(std::uint64_t iteration, std::size_t bytes = 100)
      : to{{iteration, kHere, 0}, {iteration, kBeside, 0}}, payload(payload_of(iteration, bytes)) {
    header.sequence = header.iteration = iteration;
    header.payload_bytes = header.count = bytes;
    header.sender = kSender;
  }
  std::string body() const {
    std::string all = bytes_of(header);
    for (const Ticketed& one : to) all += bytes_of(one);
    return all + payload;
  }
  std::string bytes() const { return frame(FrameKind::kUpdate, segment, body()); }
  std::string bytes_of_length(std::uint64_t length) const {
    return frame(FrameKind::kUpdate, segment, length, body());
  }

  std::uint32_t segment = kSegment;
  SlotHeader header{};
  std::vector<Ticketed> to;
  std::string payload;
};

std::string update_frame(std::uint64_t iteration, std::size_t bytes = 100) {
  return UpdateFrame(iteration, bytes).bytes();
}

// An update that `spoil` has changed.
template <class Spoil>
std::string spoilt(Spoil&& spoil) {
  UpdateFrame update(2);
  spoil(update);
  return update.bytes();
}

// ---- A host, and a connection to it ----

Settings settings_without_adapter(const Key& key, const Address& at) {
  return {.key = key,
          .own = loopback(AF_INET),
          .addresses = std::vector(kRanks, at),
          .tls = nullptr,
          .suspect_after = 5s,
          .adapter = nullptr,
          .by_adapter = std::vector(kRanks, false),
          .recorder = nullptr};
}

// The host of ranks 0 and 1, and a segment there.
class Site {
 public:
  explicit Site(std::size_t slot_bytes = 20'000, Policy policy = Policy::kLatest)
      : shape_{MailboxShape(kRanks, 2, slot_bytes), policy, 0, 0, 0, 1, {0, 1}}, controls_(kRanks) {
    testing_ranks::in_ranks(kRanks, [this](Bootstrap& bootstrap) {
      const int rank = bootstrap.rank();
      if (rank == kAbsent) return;
      auto members = dynamic_cast<testing_processes::ForkBootstrap&>(bootstrap).generation(
          1, {kHere, kBeside, kSender, kElsewhere});
      controls_[static_cast<std::size_t>(rank)] =
          std::make_unique<host::Control>(members, testing_ranks::sharing_of(rank), 10s);
    });
    attach(kSegment);
  }

  void attach(std::uint32_t id) {
    attachments[id] = std::make_shared<Attachment>(id, make_memory());
    last_attached = id;
  }
  std::shared_ptr<host::SegmentMemory> make_memory() const {
    auto memory = std::make_shared<host::SegmentMemory>(
        host::SegmentMemory::create(shape_, "segment 'w'", kRanks));
    for (int r = 0; r < kRanks; ++r) memory->reserve_own(r, "segment 'w'");
    return memory;
  }

  host::Control& control(int rank = kHere) const {
    return *controls_[static_cast<std::size_t>(rank)];
  }
  host::Member& sender() const { return control().member(kSender); }
  const host::SegmentMemory& memory() const { return *attachments.at(kSegment)->memory; }
  Mailbox box(int rank) const { return memory().box(rank); }
  SlotReader reader(int rank) const { return {memory().copies(kSender), rank}; }
  std::size_t slot_bytes() const { return shape_.mailbox.slot_bytes(); }

  // All that the ranks here can see of the sender, and all that the sender may not change.
  std::string of_sender() const {
    std::string seen = bytes_of(box(kSender).clock().load(), memory().is_closed(kSender),
                                sender().state.load(), sender().posted.load());
    for (int r : {kHere, kBeside}) {
      seen += bytes_of(box(r).cursor(kSender));
      for (std::size_t slot = 0; slot < shape_.mailbox.depth(); ++slot) {
        const Ticket& ticket = box(kSender).ticket(slot, r);
        const SlotHeader& header = box(kSender).header(slot);
        if (ticket.iteration == 0) continue;
        seen += bytes_of(ticket.iteration.load(), ticket.ordinal, header);
        seen.append(reinterpret_cast<const char*>(box(kSender).payload(slot)),
                    std::min<std::size_t>(header.payload_bytes, slot_bytes()));
      }
    }
    for (std::uint64_t n = sender().posted, last = n < 2 ? 0 : n - 2; n > last; --n) {
      seen += bytes_of(sender().notices[n % 2].what_bytes, sender().notices[n % 2].bytes,
                       sender().notices[n % 2].what, sender().notices[n % 2].data);
    }
    return seen;
  }
  std::string of_others() const {
    std::string seen;
    for (int r : {kHere, kBeside, kElsewhere}) {
      const MailboxShape& shape = memory().shape_of(r);
      std::string mailbox(reinterpret_cast<const char*>(memory().mailbox(r)), shape.bytes());
      if (r != kElsewhere)
        mailbox.replace(shape.cursor(kSender), sizeof(Cursor), sizeof(Cursor), '\0');
      seen +=
          mailbox + bytes_of(memory().is_closed(r), control().member(r).state.load(),
                             control().member(r).posted.load(), control().member(r).link.load());
    }
    return seen;
  }

  // As if the sender had never sent anything.
  void forget() const {
    std::memset(memory().mailbox(kSender), 0, memory().shape_of(kSender).bytes());
    for (auto& word : memory().copies(kSender).table().words()) word = 0;
    for (auto& word : control().board_table(kSender).words()) word = 0;
    for (int r : {kHere, kBeside}) new (&box(r).cursor(kSender)) Cursor{};
    memory().closed(kSender) = 0;
    sender().state = host::State::kAlive;
    sender().link = sender().posted = 0;
  }

  Attachments attachments;
  std::uint32_t last_attached = 0;
  Settings settings = settings_without_adapter(make_key(), {});

 private:
  host::SegmentShape shape_;
  std::vector<std::unique_ptr<host::Control>> controls_;
};

// A connection after its handshake: the stream at this end, and the bare socket at the other.
class Peer {
 public:
  explicit Peer(const Site& site, std::uint64_t number = 1) : site_(site) {
    const ListeningSocket listener;
    socket_ = raw_connect(listener.at);
    start(listener.accept(), number);
  }
  // Over a socket without a port, since there are not enough ports for thousands of connections.
  struct Portless {};
  Peer(const Site& site, Portless) : site_(site) {
    std::array<int, 2> ends{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
    socket_ = Descriptor(ends[0]);
    start(Descriptor(ends[1]), 1);
  }

  // Sends bytes, and has the downlink take in all of them.
  void say(std::string_view bytes) {
    for (; !bytes.empty(); bytes.remove_prefix(std::min(kPiece, bytes.size()))) {
      if (!raw_send(socket_, bytes.substr(0, kPiece))) break;
      take_in();
    }
    eventually([&] {
      take_in();
      int unread = 0;
      ioctl(socket_.get(), SIOCOUTQ, &unread);
      return unread == 0 || end() != Downlink::End::kNot;
    });
    take_in();
  }
  void hang_up() {
    socket_ = Descriptor();
    eventually([&] {
      take_in();
      return end() != Downlink::End::kNot;
    });
  }
  void take_in() { downlinks_->take_in(site_.attachments, site_.last_attached, true, now); }

  Downlink::End end() const { return downlinks_->end(); }
  const std::string& reason() const { return downlinks_->reason(); }
  Downlink& downlink() { return *downlinks_; }
  const Descriptor& socket() const { return socket_; }

  const Clock::time_point now = Clock::now();

 private:
  static constexpr std::size_t kPiece = 64 * 1024;

  void start(Descriptor accepted, std::uint64_t number) {
    downlinks_.emplace(site_.control(), site_.settings,
                       std::make_shared<Stream>(Stream::accept(std::move(accepted), nullptr, 5s)),
                       Introduction{.rank = kSender, .to = kHere, .number = number}, now);
  }

  const Site& site_;
  Descriptor socket_;
  std::optional<Downlink> downlinks_;
};

// Valid frames before the invalid ones and between them.
std::string honest(std::uint64_t iteration) {
  return update_frame(iteration) + notice_frame(iteration) +
         cursors_frame({cursor_of(kHere, iteration)}) + frame(FrameKind::kBeat, 0);
}

struct Case {
  const char* name;
  std::string bytes;
  const char* rule;  // the rule that the error names
};

// Each of these frames ends the connection. Neither the frame nor those after it change anything.
void expect_broken(const std::vector<Case>& cases) {
  const Site site;
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    site.forget();
    Peer peer(site);
    peer.say(honest(1));
    ASSERT_EQ(peer.end(), Downlink::End::kNot) << peer.reason();
    const std::string seen = site.of_sender();
    const std::string others = site.of_others();
    peer.say(one.bytes + honest(2));
    EXPECT_EQ(peer.end(), Downlink::End::kBroken);
    EXPECT_NE(peer.reason().find(one.rule), std::string::npos) << peer.reason();
    EXPECT_TRUE(site.of_sender() == seen);
    EXPECT_TRUE(site.of_others() == others);
  }
}

// ---- Lengths ----

TEST(Downlink, FramesWithoutABodyHaveNone) {
  std::vector<Case> cases;
  for (const std::uint64_t bytes : {std::uint64_t{1}, kTop, kMost}) {
    cases.push_back({"beat", frame(FrameKind::kBeat, 0, bytes, "x"), "a body"});
    cases.push_back({"closed", frame(FrameKind::kClosed, kSegment, bytes, "x"), "a body"});
    cases.push_back({"leave", frame(FrameKind::kLeave, 0, bytes, "x"), "a body"});
  }
  expect_broken(cases);
}

TEST(Downlink, ClockIsOneNumber) {
  std::vector<Case> cases;
  for (const std::uint64_t bytes :
       {std::uint64_t{0}, std::uint64_t{7}, std::uint64_t{9}, kTop, kMost}) {
    cases.push_back({"clock", frame(FrameKind::kClock, kSegment, bytes, std::string(9, '\1')),
                     "a clock of another length"});
  }
  expect_broken(cases);
}

TEST(Downlink, NoticeFitsItsPlaceAndItsFrame) {
  constexpr const char* kRule = "a notice of another length";
  const auto notice = [](std::uint32_t what, std::uint32_t data, std::size_t there) {
    return frame(FrameKind::kNotice, 0,
                 bytes_of(NoticeHead{2, what, data}) + std::string(there, 'x'));
  };
  const std::string most(sizeof(NoticeHead) + sizeof(host::Notice) + 1, '\0');
  expect_broken({
      {"no body", frame(FrameKind::kNotice, 0), kRule},
      {"half a head", frame(FrameKind::kNotice, 0, std::string(15, '\0')), kRule},
      {"more than a notice", frame(FrameKind::kNotice, 0, most), kRule},
      {"2^63", frame(FrameKind::kNotice, 0, kTop, most), kRule},
      {"2^64-1", frame(FrameKind::kNotice, 0, kMost, most), kRule},
      {"what too long", notice(121, 0, 121), kRule},
      {"data too long", notice(0, Group::kMostExchanged + 1, Group::kMostExchanged + 1), kRule},
      {"less there than it says", notice(7, 5, 11), kRule},
      {"more there than it says", notice(7, 5, 13), kRule},
      {"lengths that wrap", notice(kMost32, 1, 0), kRule},
      {"both at their most", notice(kMost32, kMost32, 100), kRule},
  });
}

TEST(Downlink, CursorsAreWholeAndNoMoreThanRanks) {
  constexpr const char* kRule = "cursors of another length";
  const std::string body = bytes_of(cursor_of(kHere, 2));
  std::vector<Case> cases;
  // The last is a multiple of a cursor's size.
  for (const std::uint64_t bytes : {std::uint64_t{47}, std::uint64_t{49},
                                    (kRanks + 1) * sizeof(CursorBody), kTop, kMost, kMost - 15}) {
    cases.push_back({"cursors", frame(FrameKind::kCursors, kSegment, bytes, body), kRule});
  }
  expect_broken(cases);
}

TEST(Downlink, UpdateFitsItsSlotAndItsFrame) {
  const UpdateFrame update(2);
  const std::uint64_t right = update.body().size();
  const auto with_payload_bytes = [](std::uint64_t bytes) {
    return spoilt([&](UpdateFrame& one) { one.header.payload_bytes = bytes; });
  };
  const auto lies_of_both = [](std::uint64_t payload_bytes, std::uint64_t bytes) {
    UpdateFrame one(2);
    one.header.payload_bytes = payload_bytes;
    return one.bytes_of_length(bytes);
  };
  expect_broken({
      {"no body", frame(FrameKind::kUpdate, kSegment), "an update without a header"},
      {"a byte short of a header", update.bytes_of_length(63), "an update without a header"},
      {"a header alone", update.bytes_of_length(64), "a payload beyond its end"},
      {"frame a byte too short", update.bytes_of_length(right - 1), "an update of another length"},
      {"frame a byte too long", update.bytes_of_length(right + 1), "an update of another length"},
      {"frame 2^63", update.bytes_of_length(kTop), "more receivers"},
      {"frame 2^64-1", update.bytes_of_length(kMost), "more receivers"},
      {"payload a byte less", with_payload_bytes(99), "an update of another length"},
      {"payload a byte more", with_payload_bytes(101), "an update of another length"},
      {"payload over the receivers too", with_payload_bytes(right - 64 + 1), "beyond its end"},
      {"payload 2^63", with_payload_bytes(kTop), "a payload beyond its end"},
      {"payload 2^64-1", with_payload_bytes(kMost), "a payload beyond its end"},
      {"payload none", with_payload_bytes(0), "more receivers"},
      {"payload that fits no slot", update_frame(2, 20'001), "a payload that fits no slot"},
      {"both 2^63", lies_of_both(kTop, kTop + 96), "a payload that fits no slot"},
      {"both at their most", lies_of_both(kMost - 96, kMost), "a payload that fits no slot"},
      {"a sum that wraps", lies_of_both(kMost - 63, 32), "an update without a header"},
  });
}

// ---- Names ----

TEST(Downlink, KindIsOneOfThoseThereAre) {
  std::vector<Case> cases;
  for (const std::uint32_t kind : {0U, 15U, 0x100U, kMost32}) {
    for (const std::uint64_t bytes : {std::uint64_t{0}, kMost}) {
      cases.push_back({"kind", frame(static_cast<FrameKind>(kind), 0, bytes, ""), "unknown kind"});
    }
  }
  expect_broken(cases);
}

TEST(Downlink, ExchangeThatIsGivenUpWasPostedTo) {
  const std::string number = bytes_of(std::uint64_t{1});
  expect_broken({
      {"ahead", frame(FrameKind::kAbandoned, 0, bytes_of(kMost)), "before it was posted to"},
      {"half", frame(FrameKind::kAbandoned, 0, number.substr(1)), "another length"},
  });
}

TEST(Downlink, AnswersAndAdaptersAreNotTakenWhereNoneAreDue) {
  const std::string endpoint(64, '\1');
  expect_broken({
      {"taken", frame(FrameKind::kTaken, 0, bytes_of(std::uint64_t{1})), "an answer where none"},
      {"window", frame(FrameKind::kWindow, 0, std::string(64, '\0')), "an answer where none"},
      {"share", frame(FrameKind::kShare, 0, bytes_of(std::uint64_t{1})), "an answer where none"},
      {"adapter", frame(FrameKind::kEndpoint, 0, endpoint), "address where none is due"},
      {"long adapter", frame(FrameKind::kEndpoint, 0, std::string(257, '\1')), "another length"},
      {"adapter 2^64-1", frame(FrameKind::kEndpoint, 0, kMost, endpoint), "another length"},
  });
}

TEST(Downlink, SegmentIsThereWhereOneBelongsAndNowhereElse) {
  constexpr const char* kPlace = "a segment where none belongs, or without one";
  const std::string notice = notice_frame(2).substr(sizeof(FrameHead));
  expect_broken({
      {"update", spoilt([](UpdateFrame& one) { one.segment = 0; }), kPlace},
      {"clock", frame(FrameKind::kClock, 0, bytes_of(std::uint64_t{2})), kPlace},
      {"cursors", frame(FrameKind::kCursors, 0, bytes_of(cursor_of(0, 2))), kPlace},
      {"closed", frame(FrameKind::kClosed, 0), kPlace},
      {"beat", frame(FrameKind::kBeat, kSegment), kPlace},
      {"notice", frame(FrameKind::kNotice, kSegment, notice), kPlace},
      {"leave", frame(FrameKind::kLeave, kSegment), kPlace},
      {"not there yet", frame(FrameKind::kClosed, kSegment + 1), "that is not there"},
      {"at its most", spoilt([](UpdateFrame& one) { one.segment = kMost32; }), "not there"},
  });
}

TEST(Downlink, NobodySendsInAnothersName) {
  std::vector<Case> cases;
  for (const std::uint32_t rank : {0U, 1U, 3U, 4U, kMost32}) {
    cases.push_back({"sender", spoilt([&](UpdateFrame& one) { one.header.sender = rank; }),
                     "another sender's name"});
  }
  expect_broken(cases);
}

TEST(Downlink, ReceiversAreHereInOrderAndOnce) {
  const auto to = [](std::vector<std::uint32_t> ranks) {
    return spoilt([&](UpdateFrame& one) {
      one.to.clear();
      for (const std::uint32_t r : ranks) one.to.push_back({2, r, 0});
    });
  };
  expect_broken({
      {"no member", to({0, kAbsent}), "a receiver that is not here"},
      {"no rank", to({0, kRanks}), "a receiver that is not here"},
      {"a negative one", to({0, kMost32}), "a receiver that is not here"},
      {"the least there is", to({0, 0x80000000U}), "a receiver that is not here"},
      {"itself", to({0, kSender}), "a receiver that is not here"},
      {"of another host", to({0, kElsewhere}), "a receiver that is not here"},
      {"out of order", to({1, 0}), "out of order"},
      {"twice", to({0, 0}), "out of order"},
      {"more than ranks", to({0, 1, 0, 1, 0, 1}), "more receivers than there are ranks"},
  });
}

TEST(Downlink, CursorsAreOfSendersHere) {
  std::vector<Case> cases;
  for (const std::uint32_t rank :
       {std::uint32_t{kSender}, std::uint32_t{kElsewhere}, std::uint32_t{kAbsent},
        std::uint32_t{kRanks}, 0x80000000U, kMost32}) {
    cases.push_back({"alone", cursors_frame({cursor_of(rank, 2)}), "not here"});
  }
  expect_broken(cases);
}

// ---- Numbers ----

TEST(Downlink, NoticesComeInTurn) {
  std::vector<Case> cases;
  for (const std::uint64_t number : {std::uint64_t{3}, kTop, kMost}) {
    cases.push_back({"notice", notice_frame(number), "ahead of its turn"});
  }
  expect_broken(cases);
}

// A hold of this iteration would lose its highest bit, and so hold nothing.
TEST(Downlink, IterationCanBeHeld) {
  std::vector<Case> cases;
  for (const std::uint64_t iteration : {kTop, kMost}) {
    cases.push_back({"update", update_frame(iteration), "an invalid iteration"});
    cases.push_back({"clock", clock_frame(iteration), "an invalid iteration"});
  }
  expect_broken(cases);
}

TEST(Downlink, RepeatedAndOldFramesChangeNothing) {
  const Site site;
  Peer peer(site);
  peer.say(honest(1) + honest(2) + honest(3));
  const std::string seen = site.of_sender();
  const std::string others = site.of_others();
  peer.say(honest(1) + honest(3) + update_frame(0) + clock_frame(0) + clock_frame(2) +
           notice_frame(3, "another", "thing") + notice_frame(0) +
           cursors_frame({cursor_of(kHere, 2), cursor_of(kHere, 0)}));
  EXPECT_EQ(peer.end(), Downlink::End::kNot) << peer.reason();
  EXPECT_TRUE(site.of_sender() == seen);
  EXPECT_TRUE(site.of_others() == others);
}

// It frees only its receivers' part of a slot.
TEST(Downlink, CursorThatRunsAheadSpeaksForItsOwnRankOnly) {
  const Site site(64, Policy::kQueue);
  SlotWriter writer(site.box(kHere), kHere);
  const auto live = [](int) { return true; };
  const std::array to{kBeside, kSender};
  for (std::uint64_t i = 1; i <= 2; ++i) {
    SlotHeader header{};
    header.iteration = i;
    writer.publish(writer.claim(Policy::kQueue, live), header, to);
  }
  Peer peer(site);
  peer.say(cursors_frame({cursor_of(kHere, kMost)}));
  EXPECT_EQ(peer.end(), Downlink::End::kNot);
  EXPECT_EQ(writer.claim(Policy::kQueue, live), -1);
  EXPECT_EQ(writer.blockers(live), std::vector<int>{kBeside});
}

// The sender already knows that rank 1, which holds both slots, has been evicted. This host does
// not know that yet.
TEST(Downlink, QueuedUpdateWaitsForASlotThatAnEpochIsAboutToFree) {
  Site site(64, Policy::kQueue);
  site.settings.suspect_after = 60s;
  Peer peer(site);
  peer.say(update_frame(1, 10) + update_frame(2, 10));
  SlotReader reader = site.reader(kHere);
  reader.release(2);
  UpdateFrame third(3, 10), fourth(4, 10);
  third.to = {{3, kHere, 0}};
  fourth.to = {{4, kHere, 0}};
  peer.say(third.bytes() + fourth.bytes());
  EXPECT_EQ(peer.end(), Downlink::End::kNot) << peer.reason();
  EXPECT_TRUE(peer.downlink().is_held_up());
  EXPECT_EQ(reader.clock(), 2U);
  site.control().mark(kBeside, host::State::kEvicted);
  peer.take_in();
  EXPECT_FALSE(peer.downlink().is_held_up());
  EXPECT_GE(reader.oldest(2, 3), 0);
  EXPECT_GE(reader.oldest(3, 4), 0);
}

// If the slot never becomes free, the sender tries another rank, and sends everything to it again.
TEST(Downlink, QueuedUpdateIsNeverDropped) {
  Site site(64, Policy::kQueue);
  site.settings.suspect_after = 10ms;
  Peer peer(site);
  peer.say(update_frame(1, 10) + update_frame(2, 10) + update_frame(3, 10));
  eventually([&] {
    peer.take_in();
    return peer.end() != Downlink::End::kNot;
  });
  EXPECT_EQ(peer.end(), Downlink::End::kRefused);
  EXPECT_EQ(site.reader(kHere).clock(), 2U);
}

// ---- Goodbye ----

TEST(Downlink, NothingComesAfterLeave) {
  for (const std::string& more :
       {update_frame(2), clock_frame(2), notice_frame(2), cursors_frame({cursor_of(kHere, 2)}),
        frame(FrameKind::kClosed, kSegment), frame(FrameKind::kBeat, 0),
        frame(FrameKind::kLeave, 0)}) {
    const Site site;
    Peer peer(site);
    peer.say(honest(1) + frame(FrameKind::kLeave, 0));
    EXPECT_EQ(site.control().state(kSender), host::State::kLeft);
    const std::string seen = site.of_sender();
    peer.say(more);
    EXPECT_EQ(peer.end(), Downlink::End::kBroken);
    EXPECT_NE(peer.reason().find("after its goodbye"), std::string::npos) << peer.reason();
    EXPECT_TRUE(site.of_sender() == seen);
  }
}

TEST(Downlink, SenderMayDisconnectAfterItsGoodbye) {
  const Site site;
  Peer peer(site);
  peer.say(honest(1) + frame(FrameKind::kLeave, 0));
  peer.hang_up();
  EXPECT_EQ(peer.end(), Downlink::End::kLeft);
}

TEST(Downlink, TheDeadAreNotHeard) {
  const Site site;
  Peer peer(site);
  peer.say(honest(1));
  site.control().mark(kSender, host::State::kDead);
  const std::string seen = site.of_sender();
  peer.say(honest(2));
  EXPECT_EQ(peer.end(), Downlink::End::kDisconnected);
  EXPECT_TRUE(site.of_sender() == seen);
}

TEST(Downlink, SilenceEndsIt) {
  const Site site;
  Peer peer(site);
  peer.say(update_frame(1).substr(0, 200));  // a part of an update does not count as one
  peer.downlink().tend(site.attachments, 0, 5s, peer.now + 5s);
  EXPECT_EQ(peer.end(), Downlink::End::kNot);
  peer.downlink().tend(site.attachments, 0, 5s, peer.now + 5s + 1ns);
  EXPECT_EQ(peer.end(), Downlink::End::kDisconnected);
}

// The sender gives up a connection over which it has sent something and no answer comes, though a
// long update may take as long as it likes.
TEST(Downlink, AnswersEveryPartOfAFrameWhereNoHeartbeatsAreDue) {
  const Site site;
  Peer peer(site);
  peer.downlink().watch(false, peer.now);
  auto now = peer.now;
  const auto answers = [&] {
    now += 2s;
    peer.downlink().tend(site.attachments, 0, 5s, now);
    std::array<char, 100> bytes{};
    const auto count = recv(peer.socket().get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    return count < 0 ? 0 : count / static_cast<long>(sizeof(FrameHead) + sizeof(std::uint64_t));
  };
  const std::string update = update_frame(1, 20'000);
  const std::string notice = notice_frame(1);
  EXPECT_EQ(answers(), 0);
  std::size_t said = 0;
  for (const std::size_t part : {20UL, 200UL, 5'000UL, 5'001UL, update.size()}) {
    peer.say(update.substr(said, part - said));
    said = part;
    EXPECT_EQ(answers(), 1) << "after " << part << " bytes";
    EXPECT_EQ(answers(), 0);
  }
  peer.say(notice.substr(0, 20));
  EXPECT_EQ(answers(), 1);
  peer.say(notice.substr(20));
  EXPECT_EQ(answers(), 1);
  EXPECT_EQ(answers(), 0);
  EXPECT_EQ(peer.end(), Downlink::End::kNot);
}

TEST(Downlink, RecordIsWholeAndOfThisJob) {
  const Site site;
  const RecordFormat& format = site.control().record_format();
  const auto text_of = [](const RecordFormat::Words& words) {
    return std::string(reinterpret_cast<const char*>(words.data()), words.size() * 8);
  };
  RecordFormat::Words right = format.pack({.beat = 7, .view = {1, {kHere, kSender}}});
  Peer(site).say(frame(FrameKind::kRecord, 0, text_of(right)));
  EXPECT_EQ(RecordFormat::load(site.control().record(kSender)), right);
  const auto record = format.unpack(right);
  ASSERT_TRUE(record);
  EXPECT_EQ(record->beat, 7U);
  EXPECT_EQ(record->view, (View{1, {kHere, kSender}}));
  RecordFormat::Words wrong = right;
  wrong[0] = 8;
  RecordFormat bigger(200);
  expect_broken({{"torn", frame(FrameKind::kRecord, 0, text_of(wrong)), "an invalid record"},
                 {"zeros", frame(FrameKind::kRecord, 0, std::string(text_of(right).size(), '\0')),
                  "an invalid record"},
                 {"another job's", frame(FrameKind::kRecord, 0, text_of(bigger.pack({}))),
                  "a record of another length"}});
}

// ---- Connections that break off, dribble, or are replaced ----

// Frames of all kinds, with an update that is longer than the bytes that are parsed at once.
std::string conversation() {
  return honest(1) + update_frame(2, 18'000) + clock_frame(3) + notice_frame(2) +
         update_frame(4, 0) + frame(FrameKind::kClosed, kSegment) + frame(FrameKind::kLeave, 0);
}

std::string after_conversation() {
  const Site site;
  Peer peer(site);
  peer.say(conversation());
  EXPECT_EQ(peer.end(), Downlink::End::kNot) << peer.reason();
  EXPECT_EQ(site.box(kSender).clock().load(), 4U);
  return site.of_sender();
}

TEST(Downlink, BytesMayComeOneByOne) {
  const Site site;
  Peer peer(site);
  for (const char byte : conversation()) {
    ASSERT_TRUE(raw_send(peer.socket(), {&byte, 1}));
    peer.take_in();
  }
  peer.say("");
  EXPECT_TRUE(site.of_sender() == after_conversation());
}

// Nothing is seen of a frame that is cut, and the sender sends it again over a new connection.
TEST(Downlink, ConnectionMayEndAnywhere) {
  const std::string whole = honest(1) + update_frame(2, 40) + clock_frame(3) + notice_frame(2);
  const std::size_t ends[] = {honest(1).size(), honest(1).size() + update_frame(2, 40).size(),
                              whole.size() - notice_frame(2).size(), whole.size()};
  const Site site;
  Peer(site).say(whole);
  const std::string after_all = site.of_sender();
  for (std::size_t cut = 0; cut < whole.size(); ++cut) {
    site.forget();
    std::uint64_t expected = 0;  // updates, a clock by itself, and the second notice
    for (const std::size_t end : ends) expected += cut >= end ? 1 : 0;
    Peer first(site);
    first.say(whole.substr(0, cut));
    first.hang_up();
    ASSERT_EQ(first.end(), Downlink::End::kDisconnected);
    if (cut >= ends[0]) {
      ASSERT_EQ(site.box(kSender).clock().load(), std::min<std::uint64_t>(expected, 3)) << cut;
    }
    ASSERT_EQ(site.reader(kHere).find(2) >= 0, cut >= ends[1]) << cut;
    Peer second(site, 2);
    second.say(whole);
    ASSERT_EQ(second.end(), Downlink::End::kNot) << second.reason();
    ASSERT_TRUE(site.of_sender() == after_all) << "cut after " << cut << " bytes";
  }
}

TEST(Downlink, ReplacedConnectionIsHeardNoMore) {
  const Site site;
  Peer old(site, 1);
  old.say(honest(1) + update_frame(2).substr(0, 150));  // a part of a payload
  Peer next(site, 2);
  next.say(honest(2));
  const std::string seen = site.of_sender();
  old.say(update_frame(2).substr(150) + honest(3) + frame(FrameKind::kLeave, 0));
  EXPECT_EQ(old.end(), Downlink::End::kReplaced);
  EXPECT_TRUE(site.of_sender() == seen);
  next.say(honest(3));
  EXPECT_EQ(next.end(), Downlink::End::kNot) << next.reason();
  EXPECT_EQ(site.box(kSender).clock().load(), 3U);
}

// The silence of the old connection says nothing about the sender, which uses another one.
TEST(Downlink, ReplacedConnectionIsNotMissed) {
  const Site site;
  Peer old(site, 1);
  const Peer next(site, 2);
  old.downlink().tend(site.attachments, 0, 5s, old.now + 6s);
  EXPECT_EQ(old.end(), Downlink::End::kReplaced);
}

// A sender can call two ranks of a host at once. The later call counts, whichever arrives first.
TEST(Downlink, OlderCallReplacesNothing) {
  const Site site;
  Peer present(site, 7);
  present.say(honest(1));
  const std::string seen = site.of_sender();
  for (const std::uint64_t number : {0U, 1U, 6U, 7U}) {
    Peer stale(site, number);
    stale.say(honest(2));
    EXPECT_EQ(stale.end(), Downlink::End::kReplaced);
    EXPECT_TRUE(site.of_sender() == seen);
  }
  present.say(honest(2));
  EXPECT_EQ(present.end(), Downlink::End::kNot);
  EXPECT_EQ(site.box(kSender).clock().load(), 2U);
}

// ---- Every value is checked before its use ----

// The bytes of a payload are never taken for a frame or a header. The readers get the header that
// was checked, though it has left the buffer long before the end of the payload arrives.
TEST(Downlink, HeaderIsTheOneThatWasChecked) {
  UpdateFrame evil(2);
  evil.header.sender = kHere;
  evil.header.payload_bytes = kMost;
  UpdateFrame update(1, 20'000);
  update.payload.clear();
  while (update.payload.size() < 20'000) update.payload += evil.bytes();
  update.payload.resize(20'000);
  const Site site;
  for (const std::size_t first : {std::size_t{16}, std::size_t{80}, std::size_t{112},
                                  std::size_t{113}, std::size_t{17'000}}) {
    site.forget();
    Peer peer(site);
    peer.say(update.bytes().substr(0, first));
    EXPECT_EQ(site.reader(kHere).newest(0), -1);
    peer.say(update.bytes().substr(first));
    EXPECT_EQ(peer.end(), Downlink::End::kNot) << peer.reason();
    const int slot = site.reader(kHere).newest(0);
    ASSERT_GE(slot, 0);
    EXPECT_EQ(bytes_of(site.reader(kHere).header(slot)), bytes_of(update.header));
    EXPECT_EQ(std::memcmp(site.reader(kHere).payload(slot), update.payload.data(), 20'000), 0);
  }
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

std::size_t resident_bytes() {
  std::size_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * 4096;
}

// Every rank here has closed the segment. Its frames are skipped, whatever lengths they give.
TEST(Downlink, FramesOfAClosedSegmentTakeNoMemory) {
  Site site;
  site.attach(kSegment + 1);
  site.attach(kSegment + 2);
  site.attachments.erase(kSegment + 1);
  const auto to_closed = [](std::uint64_t payload_bytes, const std::string& payload) {
    UpdateFrame update(9);
    update.segment = kSegment + 1;
    update.header.payload_bytes = payload_bytes;
    update.payload = payload;
    return update.bytes_of_length(96 + payload_bytes);
  };
  Peer peer(site);
  peer.say(to_closed(30'000, payload_of(9, 30'000)) + frame(FrameKind::kClosed, kSegment + 1) +
           frame(FrameKind::kClock, kSegment + 1, bytes_of(std::uint64_t{9})) +
           frame(FrameKind::kCursors, kSegment + 1, bytes_of(cursor_of(kHere, 9))) + honest(1));
  EXPECT_EQ(peer.end(), Downlink::End::kNot) << peer.reason();
  EXPECT_EQ(site.box(kSender).clock().load(), 1U);
  const std::size_t resident = resident_bytes();
  peer.say(to_closed(kMost - 96, ""));
  const std::string piece(64 << 10, 'x');
  for (int i = 0; i < 512; ++i) peer.say(piece);
  EXPECT_EQ(peer.end(), Downlink::End::kNot) << peer.reason();
  EXPECT_LT(resident_bytes(), resident + (std::size_t{8} << 20));
}

TEST(Downlink, ThousandConnectionsLeaveNothing) {
  const Site site;
  const std::size_t descriptors = open_descriptors();
  for (int i = 0; i < 1000; ++i) {
    site.forget();
    Peer peer(site, Peer::Portless());
    peer.say(honest(1) + update_frame(2).substr(0, 150));
    if (i % 2 == 0) peer.say(frame(static_cast<FrameKind>(99), 0));
  }
  EXPECT_EQ(open_descriptors(), descriptors);
}

// ---- Mutations ----

// The frames that an honest rank 2 sends to the host of ranks 0 and 1, made by its own code.
std::string recorded(const Site& site) {
  const ListeningSocket listener;
  const Key key = make_key();
  const Settings settings = settings_without_adapter(key, listener.at);
  host::Control& control = site.control(kSender);
  Attachments attachments;
  const auto attachment = attachments[kSegment] =
      std::make_shared<Attachment>(kSegment, site.make_memory());
  const host::SegmentMemory& memory = *attachment->memory;
  SlotWriter writer(memory.box(kSender), kSender);
  Uplink uplink(control, settings, control.hosts()[0]);
  uplink.call(1, Clock::now());
  Stream stream = Stream::accept(listener.accept(), nullptr, 5s);
  Handshake handshake =
      Handshake::callee(key, static_cast<std::uint32_t>(uplink.proxy()), listener.at);
  EXPECT_TRUE(eventually([&] {
    uplink.pump(attachments, false, true, false, Clock::now());
    return handshake.advance(stream) == Handshake::Step::kDone &&
           uplink.state() == Uplink::State::kUp;
  }));
  std::string all;
  const auto hear = [&](bool leaving) {
    uplink.pump(attachments, leaving, true, false, Clock::now());
    eventually([&] {
      const auto [text, flow] = testing_sockets::take_text(stream);
      all += text;
      return text.empty();
    });
  };
  const auto live = [](int) { return true; };
  host::Member& own = control.member(kSender);
  for (std::uint64_t i = 1; i <= 3; ++i) {
    const int slot = writer.claim(Policy::kLatest, live);
    SlotHeader header{};
    header.iteration = i;
    header.payload_bytes = header.count = 50 * i;
    std::memcpy(writer.payload(slot), payload_of(i, 50 * i).data(), 50 * i);
    writer.publish(slot, header, control.hosts()[0]);
    Cursor& cursor = memory.box(kHere).cursor(kSender);
    cursor.consumed = cursor.folded = cursor.ordinal = i;
    host::Notice& notice = own.notices[i % 2];
    set_text(notice.what, "barrier");
    notice.what_bytes = 7;
    notice.bytes = 40;
    own.posted = i;
    attachment->changes.fetch_add(1);
    uplink.note(attachment);
    hear(false);
  }
  writer.advance(4);
  memory.closed(kSender) = 1;
  attachment->changes.fetch_add(1);
  uplink.note(attachment);
  hear(true);
  own.posted = 0;
  return all;
}

class Mutator {
 public:
  explicit Mutator(std::string original) : original_(std::move(original)) {}

  std::string next() {
    std::string bytes = original_;
    for (std::size_t changes = 1 + below(3); changes > 0; --changes) change(bytes);
    return bytes;
  }
  std::size_t below(std::size_t limit) { return random_() % std::max<std::size_t>(limit, 1); }

 private:
  void change(std::string& bytes) {
    const std::size_t at = below(bytes.size());
    const std::size_t length = below(std::min<std::size_t>(bytes.size() - at, 130));
    switch (below(7)) {
      case 0:
        if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        if (!bytes.empty()) bytes[at] = static_cast<char>(below(256));
        break;
      case 2:
        bytes.erase(at, length);
        break;
      case 3:
        bytes.insert(below(bytes.size()), bytes.substr(at, length));
        break;
      case 4:
        bytes.resize(at);
        break;
      default: {  // heads and bodies begin at multiples of four
        constexpr std::uint64_t kInteresting[] = {
            0, 1, 2, 3, 15, 16, 48, 63, 64, kTop, kMost, kMost - 15, kMost - 63, kMost32};
        const std::uint64_t value = kInteresting[below(std::size(kInteresting))];
        const std::size_t size = below(2) == 0 ? 4 : 8;
        const std::size_t place = at / 4 * 4;
        if (place + size <= bytes.size()) std::memcpy(bytes.data() + place, &value, size);
      }
    }
  }

  std::string original_;
  std::minstd_rand random_{20170423};
};

// Whatever was sent, every update here is whole, and only the sender's own words have changed.
void expect_sound(const Site& site) {
  const std::uint64_t clock = site.box(kSender).clock();
  ASSERT_LT(clock, kTop);
  for (std::size_t slot = 0; slot < 2; ++slot) {
    for (const int r : {kHere, kBeside}) {
      const std::uint64_t k = site.box(kSender).ticket(slot, r).iteration;
      if (k == 0) continue;
      const SlotHeader& header = site.box(kSender).header(slot);
      ASSERT_EQ(header.sender, static_cast<std::uint32_t>(kSender));
      ASSERT_EQ(header.iteration, k);
      ASSERT_LE(k, clock);
      ASSERT_LE(header.payload_bytes, site.slot_bytes());
    }
  }
  ASSERT_LE(site.sender().posted.load(), 8U);
  for (const host::Notice& notice : site.sender().notices) {
    ASSERT_LE(notice.what_bytes, sizeof(notice.what));
    ASSERT_LE(notice.bytes, sizeof(notice.data));
  }
  ASSERT_NE(site.control().state(kSender), host::State::kAbsent);
}

TEST(Downlink, MutatedStreamsDoNoHarm) {
  const Site site(256);
  const std::string original = recorded(site);
  {
    Peer peer(site, Peer::Portless());
    peer.say(original);
    ASSERT_EQ(peer.end(), Downlink::End::kNot) << peer.reason();
    ASSERT_EQ(site.control().state(kSender), host::State::kLeft);
    ASSERT_EQ(site.box(kSender).clock().load(), 4U);
  }
  const std::string others = site.of_others();
  Mutator mutator(original);
  int broken = 0;
  for (int i = 0; i < 20'000; ++i) {
    site.forget();
    Peer peer(site, Peer::Portless());
    const std::string bytes = mutator.next();
    const std::size_t cut = mutator.below(bytes.size());
    peer.say(bytes.substr(0, cut));
    peer.say(bytes.substr(cut));
    expect_sound(site);
    ASSERT_TRUE(site.of_others() == others) << "mutation " << i;
    if (testing::Test::HasFatalFailure()) FAIL() << "mutation " << i;
    broken += peer.end() == Downlink::End::kBroken ? 1 : 0;
  }
  EXPECT_GT(broken, 5'000);
  EXPECT_LT(broken, 19'000);
  std::printf("20,000 mutations: %d broke a rule\n", broken);
}

}  // namespace
}  // namespace dstorm::remote
