// How a rank agrees on the next epoch. observe(), hear(), reach() and bury() only take notes, and
// vote as an acceptor on the proposals they see. tick() does the rest: it works out whom this rank
// accuses, publishes a heartbeat (a higher `beat`), moves a proposal of its own on, and begins one
// when it is this rank's turn.
//
// A proposal has the two phases of Paxos. While it prepares, the proposer gathers promises, which
// it finds in the other members' records. When it has a quorum, it proposes the members that a
// quorum may have accepted already, or else its own draft. When a quorum has accepted, it adopts
// the new view; the other members adopt the view from the record of any rank that is in it.
#include "dstorm/membership/membership.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "dstorm/membership/neighbourhood.hpp"

namespace dstorm {
namespace {

// Heartbeats in one `timeout`. kBeats - 1 of them in a row may be lost before their sender is
// accused.
constexpr int kBeats = 8;
constexpr std::uint32_t kMostRounds = 8;

bool contains(const std::vector<int>& sorted, int rank) {
  return std::binary_search(sorted.begin(), sorted.end(), rank);
}

}  // namespace

bool View::has(int rank) const { return contains(members, rank); }

Membership::Membership(MembershipOptions options, Time now)
    : options_(std::move(options)), last_tick_(now) {
  adopt(options_.first, now);
}

bool Membership::has_ended(int rank) const { return contains(own_.ended, rank); }

Membership::Peer* Membership::find(int rank) {
  const auto found = std::lower_bound(peers_.begin(), peers_.end(), rank,
                                      [](const Peer& peer, int r) { return peer.rank < r; });
  return found != peers_.end() && found->rank == rank ? &*found : nullptr;
}

void Membership::accuse(int accuser, const std::vector<int>& accused, Time now) {
  accusations_.set(accuser, accused);
  next_members_.reset();
  doubted_.reset();
  accused_at_ = now;
}

void Membership::bury(int rank, Time now) {
  if (!is_member() || !view().has(rank) || rank == options_.rank || has_ended(rank)) return;
  own_.ended.insert(std::upper_bound(own_.ended.begin(), own_.ended.end(), rank), rank);
  std::erase(ended_elsewhere_, rank);
  own_.news = ++own_.beat;
  next_members_.reset();
  begin_trouble(now);
}

void Membership::note_ended(const std::vector<int>& ranks) {
  for (int r : ranks) {
    if (r == options_.rank || !view().has(r) || has_ended(r)) continue;
    const auto place = std::lower_bound(ended_elsewhere_.begin(), ended_elsewhere_.end(), r);
    if (place == ended_elsewhere_.end() || *place != r) ended_elsewhere_.insert(place, r);
  }
}

void Membership::hear(int rank, Time now) {
  Peer* const peer = find(rank);
  if (peer == nullptr) return;
  peer->owes_since.reset();
  if (peer->is_watched || troubled_since_) peer->owes_since = now;
}

void Membership::reach(int rank, std::optional<Time> unreached_since) {
  if (Peer* const peer = find(rank)) peer->unreached_since = unreached_since;
}

void Membership::observe(int rank, MembershipRecord record, Time now) {
  if (!is_member() || rank == options_.rank || has_ended(rank)) return;
  if (record.view.epoch > view().epoch) adopt(record.view, now);
  // M3: a rank that is behind, or has been evicted, learns it from this rank's record.
  Peer* const peer = find(rank);
  if (!is_member() || record.view.epoch < view().epoch || peer == nullptr) return;
  if (record.beat <= peer->record.beat) return;
  if (record.accused != peer->record.accused) accuse(rank, record.accused, now);
  if (record.ended != peer->record.ended) note_ended(record.ended);
  round_ = std::max({round_, record.promised.round, record.proposed.round});
  vote(record.proposed, record.proposed_members);
  peer->record = std::move(record);
  peer->record.view = {};
}

// ---- acceptor ----

void Membership::vote(Ballot proposed, const std::vector<int>& members) {
  if (proposed.round == 0 || proposed < own_.promised) return;
  const bool is_news = proposed > own_.promised || (!members.empty() && proposed > own_.accepted);
  if (!is_news) return;
  own_.promised = proposed;
  if (!members.empty()) {
    own_.accepted = proposed;
    own_.accepted_members = members;
  }
  own_.news = ++own_.beat;
}

// ---- proposer ----

void Membership::propose(Time now) {
  phase_ = Phase::kPreparing;
  proposed_at_ = now;
  draft_ = next_members();
  own_.proposed = {++round_, options_.rank};
  own_.proposed_members.clear();
  own_.news = ++own_.beat;
  vote(own_.proposed, {});
  go_on(now);
}

bool Membership::agrees(const MembershipRecord& record) const {
  return (phase_ == Phase::kPreparing ? record.promised : record.accepted) == own_.proposed;
}

void Membership::go_on(Time now) {
  if (phase_ == Phase::kPreparing && has_quorum()) {
    // The proposer is bound to members that a quorum may have accepted already; otherwise it is
    // free.
    const MembershipRecord* best = &own_;
    for (const Peer& peer : peers_) {
      if (agrees(peer.record) && peer.record.accepted > best->accepted) best = &peer.record;
    }
    own_.proposed_members = best->accepted.round > 0 ? best->accepted_members : draft_;
    phase_ = Phase::kProposing;
    own_.news = ++own_.beat;
    vote(own_.proposed, own_.proposed_members);
  }
  if (phase_ == Phase::kProposing && has_quorum()) {
    adopt({view().epoch + 1, own_.proposed_members}, now);
  }
}

// M1.
bool Membership::has_quorum() const {
  if (!agrees(own_)) return false;
  const std::vector<int>& members = view().members;
  std::vector<int> missing;
  for (const Peer& peer : peers_) {
    if (!agrees(peer.record)) missing.push_back(peer.rank);
  }
  const std::size_t twice = 2 * (members.size() - missing.size());
  if (twice > members.size()) return true;
  if (twice == members.size() && options_.tie == TieRule::kLowest &&
      missing.front() != members.front()) {
    return true;
  }
  const auto knows_all = [&missing](const std::vector<int>& ended) {
    return std::includes(ended.begin(), ended.end(), missing.begin(), missing.end());
  };
  return knows_all(own_.ended) && std::all_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
           return !agrees(peer.record) || knows_all(peer.record.ended);
         });
}

// As many as possible of the members that have not ended, such that none of them accuses another.
const std::vector<int>& Membership::next_members() {
  if (!next_members_) {
    std::vector<int> members;
    std::set_difference(view().members.begin(), view().members.end(), own_.ended.begin(),
                        own_.ended.end(), std::back_inserter(members));
    next_members_ = accusations_.at_peace(members);
  }
  return *next_members_;
}

// ---- time ----

void Membership::tick(Time now, Time worked) {
  if (!is_member()) return;
  // A rank that was stopped for a while has not listened in that time, so the others may be well.
  if (now - last_tick_ - worked > options_.timeout / 2) {
    listens_since_ = now - options_.timeout / 2;
    if (troubled_since_) troubled_since_ = now;
  }
  last_tick_ = now;
  std::vector<int> accused = silent(now);
  const bool is_changed = accused != own_.accused;
  if (is_changed || now - last_beat_ >= options_.timeout / kBeats) {
    if (is_changed) accuse(options_.rank, accused, now);
    own_.accused = std::move(accused);
    ++own_.beat;
    if (is_changed || has_trouble()) own_.news = own_.beat;
    last_beat_ = now;
  }
  go_on(now);
  if (!has_trouble()) {
    end_trouble();
    phase_ = Phase::kIdle;
    return;
  }
  begin_trouble(now);
  const Time in_trouble = now - *troubled_since_;
  if (in_trouble > 2 * options_.timeout) {
    standing_ = Standing::kCutOff;
    return;
  }
  // A round gets longer than the one before, up to `timeout`: on a slow network a rank must not
  // give up before the answers arrive.
  const Time patience = options_.timeout / kBeats * std::min(round_, kMostRounds);
  // While members are still finding out whom they miss, the few that know of a death accuse, or are
  // accused by, many others. So the proposer waits until the accusations have settled.
  const Time settling = std::min(accused_at_ - *troubled_since_, options_.timeout / 2);
  if (phase_ == Phase::kIdle ? in_trouble - std::max(settling, Time::zero()) >= turn()
                             : now - proposed_at_ > patience + turn()) {
    propose(now);
  }
}

// The lowest member that nobody accuses proposes at once if the only trouble is that ranks have
// ended. Otherwise it waits until the others have had time to say whom they accuse: a heartbeat
// where all watch all, else also the quarter of the limit after which they know.
Membership::Time Membership::turn() {
  const std::vector<int>& members = next_members();
  const auto place =
      std::lower_bound(members.begin(), members.end(), options_.rank) - members.begin();
  const int beats = !accusations_.any() ? 0 : watches_all_ ? 1 : 3;
  return (place + beats) * options_.timeout / kBeats;
}

bool Membership::has_trouble() const {
  return is_member() && (!own_.ended.empty() || accusations_.any());
}

// When a cut separates several pairs of ranks, each pair notices it at its own time. Once somebody
// is accused, three quarters of the limit are enough to count as unreached. So no rank is evicted
// because another pair has not yet reported the same cut.
std::vector<int> Membership::silent(Time now) {
  const Time limit = accusations_.any() ? options_.timeout * 3 / 4 : options_.timeout;
  std::vector<int> ranks;
  const bool is_quick = !watches_all_ && troubled_since_;
  for (const Peer& peer : peers_) {
    if (has_ended(peer.rank)) continue;
    const Time reached = std::max(peer.unreached_since.value_or(now), listens_since_);
    const Time heard = std::max(peer.owes_since.value_or(now), listens_since_);
    if (now - reached > limit || now - heard > options_.timeout ||
        (is_quick && now - heard > options_.timeout / 4 && is_doubted(peer.rank))) {
      ranks.push_back(peer.rank);
    }
  }
  return ranks;
}

// One faulty host, which is accused itself before long, is not enough.
bool Membership::is_doubted(int rank) {
  if (!doubted_) doubted_ = accusations_.accused_by_two_hosts(options_.hosts);
  return (*doubted_)[static_cast<std::size_t>(rank)];
}

// All members send heartbeats to all from now on.
void Membership::begin_trouble(Time now) {
  if (troubled_since_) return;
  troubled_since_ = now;
  for (Peer& peer : peers_) {
    if (!peer.owes_since) peer.owes_since = now;
  }
}

void Membership::end_trouble() {
  if (!troubled_since_) return;
  troubled_since_.reset();
  for (Peer& peer : peers_) {
    if (!peer.is_watched) peer.owes_since.reset();
  }
}

std::vector<int> Membership::watched() const {
  std::vector<int> ranks;
  for (const Peer& peer : peers_) {
    if (peer.is_watched) ranks.push_back(peer.rank);
  }
  return ranks;
}

// The other members of a view that this rank moves to. Each says that it moves, in a record that
// goes to all. So one that has given no sign of life since the trouble began goes on owing it.
std::vector<Membership::Peer> Membership::peers_of(const View& view, Time now) const {
  const auto host_of = [&](int r) {
    return options_.hosts.empty() ? r : options_.hosts[static_cast<std::size_t>(r)];
  };
  std::vector<int> hosts;
  std::vector<int> locals;  // the members of this rank's host
  for (int r : view.members) {
    hosts.push_back(host_of(r));
    if (host_of(r) == host_of(options_.rank)) locals.push_back(r);
  }
  std::ranges::sort(hosts);
  hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
  const auto watches = [](const std::vector<int>& ring, int own, int other) {
    const auto place = [&ring](int one) {
      return static_cast<std::size_t>(std::ranges::lower_bound(ring, one) - ring.begin());
    };
    return watch_each_other(place(own), place(other), ring.size());
  };
  std::vector<Peer> peers;
  for (int r : view.members) {
    if (r == options_.rank) continue;
    const bool is_local = host_of(r) == host_of(options_.rank);
    Peer peer{.rank = r};
    peer.is_watched = is_local ? watches(locals, options_.rank, r)
                               : watches(hosts, host_of(options_.rank), host_of(r));
    if (peer.is_watched) peer.owes_since = now;
    const auto before = std::ranges::lower_bound(peers_, r, {}, &Peer::rank);
    const bool was_member = before != peers_.end() && before->rank == r;
    if (was_member && troubled_since_ && before->owes_since &&
        *before->owes_since <= *troubled_since_) {
      peer.owes_since = before->owes_since;
    }
    peers.push_back(peer);
  }
  return peers;
}

void Membership::adopt(View view, Time now) {
  const std::uint64_t beat = own_.beat;
  std::vector<int> ended = std::move(own_.ended);
  std::erase_if(ended, [&](int r) { return !view.has(r); });
  std::vector<Peer> peers;
  if (view.has(options_.rank)) peers = peers_of(view, now);
  peers_ = std::move(peers);
  watches_all_ = std::ranges::all_of(peers_, &Peer::is_watched);
  own_ = {.beat = beat + 1, .news = beat + 1, .view = std::move(view), .ended = std::move(ended)};
  last_beat_ = now;
  accusations_ = Accusations(own_.view.members.empty() ? 0 : own_.view.members.back() + 1);
  next_members_.reset();
  doubted_.reset();
  ended_elsewhere_.clear();
  troubled_since_.reset();
  round_ = 0;
  phase_ = Phase::kIdle;
  if (!own_.view.has(options_.rank)) standing_ = Standing::kEvicted;
}

}  // namespace dstorm
