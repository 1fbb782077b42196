#include "vol/ps/leaving.hpp"

#include <algorithm>

namespace vol::ps {

void Leaving::begin() {
  if (has_handed_over_) return;
  state_.members.is_handing_over = true;
  ++round_;
  untold_.clear();
  if (!state_.is_over) {
    replication_.settle();
    for (int server = 0; server < state_.clients; ++server) {
      if (server == state_.own || !state_.members.is_live(server)) continue;
      state_.writer.tell(server, Head::Kind::kLeaving, round_);
      untold_.push_back(server);
    }
  }
  end_if_all_know();
}

void Leaving::end_if_all_know() {
  if (!untold_.empty() || has_handed_over_) return;
  has_handed_over_ = true;
  state_.writer.answer(Head::Kind::kHandedOver, state_.own, 0);
}

void Leaving::take(int from, const Head& head) {
  if (has_handed_over_) return;  // P11
  const auto index = static_cast<std::size_t>(from);
  const bool is_news = !state_.members.leaving[index];
  state_.members.leaving[index] = true;
  state_.writer.tell_latest(from, Head::Kind::kLeavingKnown, head.id);
  if (is_news) begin_anew();
}

void Leaving::take_known(int from, std::uint64_t round) {
  if (round != round_) return;
  std::erase(untold_, from);
  end_if_all_know();
}

}  // namespace vol::ps
