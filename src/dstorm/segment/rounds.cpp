#include "dstorm/segment/rounds.hpp"

#include <algorithm>
#include <set>

namespace dstorm {
namespace {

constexpr std::uint64_t kLongestTable = 64;  // rounds of a varying graph that are worth keeping
constexpr std::uint64_t kFirstRounds = 4;    // whose senders are expected where there are more

}  // namespace

std::vector<int> senders_to(const std::vector<int>& receivers, const Graph& graph, const View& view,
                            int size) {
  const std::vector<int>& members = view.members;
  const auto count = static_cast<int>(members.size());
  const Graph drawn = count < size ? graph.repaired(members, size) : graph;
  const std::uint64_t period = drawn.period(count);
  const bool is_short = graph.repeats() && period <= kLongestTable;
  std::set<int> senders;
  for (const int receiver : receivers) {
    const auto at = std::ranges::lower_bound(members, receiver);
    if (at == members.end() || *at != receiver) continue;
    const auto place = static_cast<int>(at - members.begin());
    for (std::uint64_t number = 0; number < (is_short ? period : kFirstRounds); ++number) {
      for (const int r : drawn.in(place, count, number)) {
        senders.insert(members[static_cast<std::size_t>(r)]);
      }
    }
  }
  return {senders.begin(), senders.end()};
}

Graph Rounds::among_members(const Graph& graph) const {
  return is_repaired() ? graph.repaired(view_.members, group_->size()) : graph;
}

Rounds::Round Rounds::make_round(const Graph& graph, std::uint64_t number) const {
  const std::vector<int>& members = view_.members;
  const auto size = static_cast<int>(members.size());
  const auto rank = static_cast<int>(
      std::lower_bound(members.begin(), members.end(), group_->rank()) - members.begin());
  const Graph drawn = among_members(graph);
  Round made{drawn.out(rank, size, number), drawn.in(rank, size, number),
             drawn.weights(rank, size, number)};
  for (std::vector<int>* side : {&made.out, &made.in}) {
    for (int& r : *side) r = members[static_cast<std::size_t>(r)];
  }
  return made;
}

void Rounds::draw_rounds(std::uint64_t iteration) {
  repeating_.clear();
  const std::uint64_t period = among_members(graph_).period(static_cast<int>(view_.members.size()));
  if (graph_.repeats() && period <= kLongestTable) {
    for (std::uint64_t number = 0; number < period; ++number) repeating_.push_back(make(number));
  }
  current_ = &round_of(nullptr, std::max<std::uint64_t>(iteration, 1) - 1);
}

void Rounds::draw(const Group& group, std::uint64_t iteration) {
  const bool is_first = group_ == nullptr;
  group_ = &group;
  view_ = group.view();
  draw_rounds(iteration);
  if (is_first) is_in_step_ = graph_.is_static() && current_->out == current_->in && !is_repaired();
}

void Rounds::follow_epoch(std::uint64_t iteration) {
  View view = group_->view();
  if (view.epoch == view_.epoch || !view.has(group_->rank())) return;
  Round before = is_in_step_ ? *current_ : Round{};
  view_ = std::move(view);
  draw_rounds(iteration);
  for (std::vector<int>* side : {&before.out, &before.in}) {
    std::erase_if(*side, [this](int r) { return !view_.has(r); });
  }
  is_in_step_ = is_in_step_ && before.out == current_->out && before.in == current_->in;
}

const Rounds::Round& Rounds::other_round_of(const Graph* graph, std::uint64_t number) {
  const bool is_own = graph == nullptr || *graph == graph_;
  if (is_own && !repeating_.empty()) return repeating_[number % repeating_.size()];
  if (!is_own) {
    graph->check(group_->size());
    is_in_step_ = false;
  }
  other_ = make_round(is_own ? graph_ : *graph, number);
  return other_;
}

void Rounds::restore(Round round) {
  other_ = std::move(round);
  current_ = &other_;
}

}  // namespace dstorm
