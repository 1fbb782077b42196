// The frames of a rank of another host: what it holds the job's key for, or has stolen.
//
// input: policy, number of pieces, and whether the connection is shared (1 byte), the pieces'
// lengths (2 bytes each), the frames
#include "dstorm/remote/downlink.hpp"

#include "tcp_host.hpp"

namespace fuzz {
namespace {

// Whatever was said, what there is is whole, and within the sender's own words.
void check(const TcpHost& host) {
  const dstorm::Mailbox box = host.box(kSender);
  for (std::size_t slot = 0; slot < box.shape().depth(); ++slot) {
    for (const int rank : {0, 1}) {  // those of this host
      const std::uint64_t iteration = box.ticket(slot, rank).iteration;
      if (iteration == 0) continue;
      const dstorm::SlotHeader& header = box.header(slot);
      require(header.sender == kSender, "an update is its sender's");
      require(header.iteration == iteration, "a ticket is its update's");
      require(iteration <= box.clock(), "the clock is at every update");
      require(header.payload_bytes <= kSlotBytes, "a payload fits its slot");
    }
  }
  require(box.clock() <= dstorm::kMostIteration, "an iteration can be held");
  for (const dstorm::host::Notice& notice : host.sender().notices) {
    require(notice.what_bytes <= sizeof(notice.what), "a notice says what in its place");
    require(notice.bytes <= sizeof(notice.data), "a notice fits its place");
  }
  require(host.control(0).state(kSender) != dstorm::host::State::kAbsent, "nobody unjoins");
}

}  // namespace

void run(Input input) {
  using dstorm::remote::Downlink;
  using dstorm::remote::Uplink;
  static const TcpHost latest(dstorm::Policy::kLatest);
  static const TcpHost queue(dstorm::Policy::kQueue);
  static const dstorm::remote::Settings settings = [] {
    dstorm::remote::Settings made = settings_at({});
    made.suspect_after =
        std::chrono::milliseconds(1);  // a part of which a full queue is waited for
    return made;
  }();
  const auto what = input.take<std::uint8_t>();
  const TcpHost& host = (what & 1) != 0 ? queue : latest;
  std::array<std::size_t, 8> lengths{};
  const std::size_t pieces = what >> 1 & 7;
  for (std::size_t i = 0; i < pieces; ++i) lengths[i] = input.take<std::uint16_t>() % 1024;
  lengths[pieces] = 64 * 1024;  // the rest

  host.forget();
  const std::vector<std::byte> others = host.of_others();
  const auto now = dstorm::Clock::now();
  Ends ends;
  Downlink downlink(host.control(0), settings,
                    std::make_shared<dstorm::net::Stream>(dstorm::net::Stream::accept(
                        std::move(ends.here), nullptr, settings.suspect_after)),
                    dstorm::net::Introduction{.rank = kSender, .to = 0, .number = 1}, now);
  // Perhaps what this rank says goes over the same connection: then answers come, too.
  dstorm::host::Control& control = host.control(0);
  Uplink uplink(control, settings,
                control.hosts()[static_cast<std::size_t>(control.host_of(kSender))]);
  const bool is_shared = (what >> 4 & 1) != 0;
  if (is_shared) {
    uplink.await(kSender, now);
    downlink.join(uplink);
    uplink.share(downlink, 1, now);
  }
  for (std::size_t i = 0; i <= pieces; ++i) {
    raw_send(ends.there, input.bytes(lengths[i]));
    downlink.take_in(host.attachments, kClosedSegment, true, now);
    uplink.pump({}, false, true, false, now);
    check(host);
  }
  require(
      is_shared == (uplink.state() == Uplink::State::kUp) || downlink.end() != Downlink::End::kNot,
      "both go on or neither");
  ends.there = dstorm::Descriptor();
  downlink.take_in(host.attachments, kClosedSegment, true, now);
  while (downlink.is_held_up()) {  // for want of a slot: not for long
    std::this_thread::sleep_for(settings.suspect_after / 4);
    downlink.take_in(host.attachments, kClosedSegment, true, dstorm::Clock::now());
  }
  require(downlink.end() != Downlink::End::kNot, "the end of a connection is seen");
  check(host);
  require(host.of_others() == others, "what is none of the sender's stays as it was");
}

}  // namespace fuzz
