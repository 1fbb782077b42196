#include "dstorm/remote/probes.hpp"

#include <algorithm>
#include <utility>

namespace dstorm::remote {

using std::chrono::nanoseconds;

Probes::Probes(host::Control& control, const Settings& settings, std::function<void(int)> watch)
    : control_(control), settings_(settings), watch_(std::move(watch)) {}

void Probes::begin(int rank, bool is_read, Clock::time_point now) {
  if (!control_.is_live(rank)) return;
  Probe& probe = find_or_add(rank, now);
  if (is_read) {
    probe.is_read = true;
    probe.link = control_.member(rank).link.load();
  }
  if (!probe.call && !probe.known_since) call(probe, now);
}

void Probes::note_end(int rank, Clock::time_point now) {
  if (!control_.is_live(rank)) return;
  Probe& probe = find_or_add(rank, now);
  if (!probe.known_since) probe.known_since = now;
  probe.call.reset();
}

Probes::Probe& Probes::find_or_add(int rank, Clock::time_point now) {
  const auto found = std::find_if(probes_.begin(), probes_.end(),
                                  [&](const Probe& probe) { return probe.rank == rank; });
  if (found != probes_.end()) return *found;
  return probes_.emplace_back(
      Probe{.rank = rank, .link = control_.member(rank).link.load(), .since = now});
}

bool Probes::step(bool was_away, Clock::time_point now) {
  bool has_marked = false;
  std::erase_if(probes_, [&](Probe& probe) {
    if (!control_.is_live(probe.rank)) return true;
    if (!probe.known_since) {
      const bool is_well = control_.member(probe.rank).link.load() != probe.link;
      if (was_away || is_well || now - probe.since > settings_.suspect_after) return true;
      listen(probe, now);
    }
    if (!probe.known_since || !has_all_come(probe, now)) return false;
    has_marked = control_.mark(probe.rank, host::State::kDead) || has_marked;
    return true;
  });
  return has_marked;
}

void Probes::call(Probe& probe, Clock::time_point now) {
  probe.call = net::Stream::connect(settings_.addresses[static_cast<std::size_t>(probe.rank)],
                                    settings_.own, nullptr, settings_.suspect_after);
  probe.called = now;
  probe.answered = 0;
  watch_(probe.call->fd());
}

// Takes in the witness's answer, and calls again if none has come.
void Probes::listen(Probe& probe, Clock::time_point now) {
  const iovec rest{probe.answer.data() + probe.answered, probe.answer.size() - probe.answered};
  probe.answered += probe.call->receive({&rest, 1}).bytes;
  if (probe.answered < probe.answer.size()) {
    if (now - probe.called < probe.patience) return;
    probe.patience = std::min<nanoseconds>(2 * probe.patience, settings_.suspect_after / 8);
    return call(probe, now);
  }
  const net::Address& at = settings_.addresses[static_cast<std::size_t>(probe.rank)];
  probe.answered = 0;
  if (!is_token(probe.answer, token_of(settings_.key, probe.rank, at))) return;
  probe.known_since = now;
  const auto receipt = static_cast<WitnessReceipt>(control_.own_host());
  const iovec part{const_cast<WitnessReceipt*>(&receipt), sizeof(receipt)};
  probe.call->send({&part, 1});
  probe.call.reset();
}

// A rank with nothing else to send sends a heartbeat every quarter of suspect_after.
bool Probes::has_all_come(const Probe& probe, Clock::time_point now) const {
  const host::Member& member = control_.member(probe.rank);
  if (probe.is_read && member.link.load() == probe.link) return true;
  const Clock::time_point heard(nanoseconds(member.heard.load(std::memory_order_relaxed)));
  return now - std::max(heard, *probe.known_since) > settings_.suspect_after / 4;
}

}  // namespace dstorm::remote
