#include "dstorm/membership.hpp"

#include <algorithm>
#include <utility>

namespace dstorm {
namespace {

// Beats in `timeout`; as many could be lost, less one, before their sender is accused.
constexpr int kBeats = 8;
constexpr std::uint32_t kMostRounds = 8;

}  // namespace

bool View::has(int rank) const { return std::binary_search(members.begin(), members.end(), rank); }

bool Membership::has_ended(int rank) const {
  return std::binary_search(ended_.begin(), ended_.end(), rank);
}

Membership::Membership(MembershipOptions options, Time now)
    : options_(std::move(options)), last_tick_(now) {
  adopt(options_.first, now);
}

void Membership::bury(int rank, Time now) {
  if (!is_member() || !view_.has(rank) || rank == options_.rank || has_ended(rank)) return;
  ended_.insert(std::upper_bound(ended_.begin(), ended_.end(), rank), rank);
  if (!troubled_since_) troubled_since_ = now;
}

std::vector<Membership::Envelope> Membership::take_outgoing() {
  return std::exchange(outgoing_, {});
}

// ---- what comes ----

void Membership::receive(int from, const MembershipMessage& message, Time now) {
  using Kind = MembershipMessage::Kind;
  if (!is_member() || from == options_.rank || has_ended(from)) return;
  if (message.kind == Kind::kView) {
    if (message.epoch > view_.epoch) adopt({message.epoch, message.ranks}, now);
    return;
  }
  if (message.epoch < view_.epoch) {  // M3: who is behind, or out, learns so
    return send(from, {.kind = Kind::kView, .epoch = view_.epoch, .ranks = view_.members});
  }
  if (message.epoch > view_.epoch) return send(from, {.epoch = view_.epoch});
  if (!view_.has(from)) return;
  heard_[from] = now;
  answer(from, message, now);
}

void Membership::answer(int from, const MembershipMessage& message, Time now) {
  using Kind = MembershipMessage::Kind;
  round_ = std::max(round_, message.ballot.round);
  switch (message.kind) {
    case Kind::kBeat:
      accusations_[from] = message.ranks;
      break;
    case Kind::kPrepare:
      promise(from, message);
      break;
    case Kind::kAccept:
      accept(from, message);
      break;
    case Kind::kPromise:
      count_promise(from, message, now);
      break;
    case Kind::kAccepted:
      count_accepted(from, message, now);
      break;
    case Kind::kRefused:
    case Kind::kView:
      break;  // the next ballot is beyond round_; views have been dealt with
  }
}

// ---- acceptor ----

void Membership::promise(int from, const MembershipMessage& message) {
  using Kind = MembershipMessage::Kind;
  if (message.ballot < promised_) return send(from, {Kind::kRefused, view_.epoch, promised_});
  promised_ = message.ballot;
  send(from, {Kind::kPromise, view_.epoch, promised_, accepted_, accepted_members_, ended_});
}

void Membership::accept(int from, const MembershipMessage& message) {
  using Kind = MembershipMessage::Kind;
  if (message.ballot < promised_) return send(from, {Kind::kRefused, view_.epoch, promised_});
  promised_ = accepted_ = message.ballot;
  accepted_members_ = message.ranks;
  send(from, {.kind = Kind::kAccepted, .epoch = view_.epoch, .ballot = accepted_, .ended = ended_});
}

// ---- proposer ----

void Membership::propose(Time now) {
  using Kind = MembershipMessage::Kind;
  proposal_ = {};
  proposal_.phase = Phase::kPreparing;
  proposal_.ballot = {++round_, options_.rank};
  proposal_.since = now;
  const MembershipMessage prepare{Kind::kPrepare, view_.epoch, proposal_.ballot};
  send_to_others(prepare);
  answer(options_.rank, prepare, now);
}

void Membership::count_promise(int from, const MembershipMessage& message, Time now) {
  using Kind = MembershipMessage::Kind;
  if (proposal_.phase != Phase::kPreparing || message.ballot != proposal_.ballot) return;
  count(from, message.ended);
  if (message.accepted > proposal_.best) {
    proposal_.best = message.accepted;
    proposal_.members = message.ranks;
  }
  if (!has_quorum()) return;
  // Bound to what a quorum may have accepted already; else free.
  if (proposal_.best.round == 0) proposal_.members = next_members();
  proposal_.phase = Phase::kProposing;
  proposal_.agreed.clear();
  const MembershipMessage accept{
      .kind = Kind::kAccept,
      .epoch = view_.epoch,
      .ballot = proposal_.ballot,
      .ranks = proposal_.members,
  };
  send_to_others(accept);
  answer(options_.rank, accept, now);
}

void Membership::count_accepted(int from, const MembershipMessage& message, Time now) {
  using Kind = MembershipMessage::Kind;
  if (proposal_.phase != Phase::kProposing || message.ballot != proposal_.ballot) return;
  count(from, message.ended);
  if (!has_quorum()) return;
  const View next{view_.epoch + 1, proposal_.members};
  send_to_others({.kind = Kind::kView, .epoch = next.epoch, .ranks = next.members});
  adopt(next, now);
}

void Membership::count(int from, const std::vector<int>& ended) {
  const bool is_first = proposal_.agreed.empty();
  proposal_.agreed.insert(from);
  if (is_first) {
    proposal_.ended = ended;
  } else {
    std::erase_if(proposal_.ended,
                  [&](int r) { return std::find(ended.begin(), ended.end(), r) == ended.end(); });
  }
}

// M1.
bool Membership::has_quorum() const {
  const std::set<int>& agreed = proposal_.agreed;
  const std::size_t twice = 2 * agreed.size();
  const std::size_t all = view_.members.size();
  if (twice > all) return true;
  if (twice == all && options_.tie == TieRule::kLowest && agreed.contains(view_.members.front())) {
    return true;
  }
  const std::vector<int>& ended = proposal_.ended;
  return std::all_of(view_.members.begin(), view_.members.end(), [&](int r) {
    return agreed.contains(r) || std::find(ended.begin(), ended.end(), r) != ended.end();
  });
}

// Of those who have not ended as many as accuse nobody of the others and are not accused by them:
// who is in most accusations goes first, and the highest of several.
std::vector<int> Membership::next_members() const {
  std::vector<int> members;
  std::copy_if(view_.members.begin(), view_.members.end(), std::back_inserter(members),
               [this](int r) { return !has_ended(r); });
  std::set<std::pair<int, int>> pairs;
  for (const auto& [accuser, ranks] : accusations_) {
    for (int r : ranks) pairs.insert(std::minmax(accuser, r));
  }
  for (;;) {
    int worst = -1;
    std::ptrdiff_t most = 0;
    for (int r : members) {
      const auto count = std::count_if(pairs.begin(), pairs.end(), [&](const auto& pair) {
        const int other = pair.first == r ? pair.second : pair.first;
        return (pair.first == r || pair.second == r) && other != r &&
               std::binary_search(members.begin(), members.end(), other);
      });
      if (count >= most && count > 0) {
        worst = r;
        most = count;
      }
    }
    if (worst < 0) return members;
    std::erase(members, worst);
  }
}

// ---- time ----

void Membership::tick(Time now) {
  if (!is_member()) return;
  // Who was stopped for a while has not listened: the others may be well.
  if (now - last_tick_ > options_.timeout / 2) {
    for (auto& [rank, heard] : heard_) heard = std::max(heard, now - options_.timeout / 2);
    if (troubled_since_) troubled_since_ = now;
  }
  last_tick_ = now;
  std::vector<int> mine = accused(now);
  const bool is_news = accusations_[options_.rank] != mine;
  accusations_[options_.rank] = std::move(mine);
  if (is_news || now - last_beat_ >= options_.timeout / kBeats) beat(now);
  if (!has_trouble()) {
    troubled_since_.reset();
    proposal_ = {};
    return;
  }
  if (!troubled_since_) troubled_since_ = now;
  const Time in_trouble = now - *troubled_since_;
  if (in_trouble > 2 * options_.timeout) {
    standing_ = Standing::kCutOff;
    return;
  }
  const bool is_under_way = proposal_.phase != Phase::kIdle;
  // Longer from round to round, up to `timeout`: on a slow network answers are not given up early.
  const Time patience = options_.timeout / kBeats * std::min(round_, kMostRounds);
  if (is_under_way ? now - proposal_.since > patience + turn_of_this_rank()
                   : in_trouble >= turn_of_this_rank()) {
    propose(now);
  }
}

// The lowest whom nobody accuses begins at once, if all the trouble is that ranks have ended, and
// else when the others have had time to say whom they accuse.
Membership::Time Membership::turn_of_this_rank() const {
  const std::vector<int> members = next_members();
  const auto place =
      std::lower_bound(members.begin(), members.end(), options_.rank) - members.begin();
  const bool is_certain = std::all_of(accusations_.begin(), accusations_.end(),
                                      [](const auto& item) { return item.second.empty(); });
  return (place + (is_certain ? 0 : 1)) * options_.timeout / kBeats;
}

bool Membership::has_trouble() const {
  return !ended_.empty() || std::any_of(accusations_.begin(), accusations_.end(),
                                        [](const auto& item) { return !item.second.empty(); });
}

std::vector<int> Membership::accused(Time now) const {
  std::vector<int> ranks;
  for (int r : view_.members) {
    if (r == options_.rank || has_ended(r)) continue;
    if (now - heard_.at(r) > options_.timeout) ranks.push_back(r);
  }
  return ranks;
}

void Membership::beat(Time now) {
  last_beat_ = now;
  send_to_others({.epoch = view_.epoch, .ranks = accusations_[options_.rank]});
}

void Membership::adopt(View view, Time now) {
  view_ = std::move(view);
  if (!view_.has(options_.rank)) {
    standing_ = Standing::kEvicted;
    return;
  }
  std::erase_if(ended_, [this](int r) { return !view_.has(r); });
  heard_.clear();
  for (int r : view_.members) heard_[r] = now;
  accusations_.clear();
  troubled_since_.reset();
  promised_ = accepted_ = {};
  accepted_members_.clear();
  round_ = 0;
  proposal_ = {};
}

// ---- sending ----

void Membership::send(int to, MembershipMessage message) {
  if (to == options_.rank) return answer(to, message, last_tick_);
  outgoing_.push_back({to, std::move(message)});
}

void Membership::send_to_others(const MembershipMessage& message) {
  for (int r : view_.members) {
    if (r != options_.rank && !has_ended(r)) outgoing_.push_back({r, message});
  }
}

}  // namespace dstorm
