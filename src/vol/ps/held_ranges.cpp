#include "vol/ps/held_ranges.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "dstorm/errors.hpp"
#include "dstorm/host/memory.hpp"

namespace vol::ps {
namespace {

// A table is shown if its values take at most this part of the memory that is available.
constexpr std::size_t kShownPart = 4;

}  // namespace

HeldRanges::HeldRanges(ServerState& state, bool are_empty)
    : state_(state),
      held_(state.placement.ranges()),
      kept_(static_cast<std::size_t>(state.clients)),
      is_counted_(kept_.size()) {
  const Placement& placement = state_.placement;
  std::size_t held_bytes = 0;
  for (std::size_t range = 0; range < held_.size(); ++range) {
    const int place = placement.place_of(range, state_.own);
    if (place > placement.replicas()) continue;
    Held& held = held_[range];
    const std::int64_t rows = placement.end_row(range) - placement.first_row(range);
    held_bytes += static_cast<std::size_t>(rows) * state_.options.row_bytes();
    held.is_primary = place == 0;
    if (are_empty) held.range = make(range);
    if (!held.is_primary) continue;
    for (int copy = 1; copy <= placement.replicas(); ++copy) {
      held.copies.push_back(placement.server(range, copy));
    }
  }
  most_kept_ = state_.options.most_kept_with(held_bytes);
}

std::unique_ptr<Range> HeldRanges::make(std::size_t range) const {
  return std::make_unique<Range>(state_.options, state_.placement.first_row(range),
                                 state_.placement.end_row(range), state_.clients);
}

std::vector<Stretch> HeldRanges::stretches_of(const Rows& rows) const {
  const Placement& placement = state_.placement;
  std::vector<Stretch> stretches;
  for (std::size_t begin = 0; begin < rows.count;) {
    const std::size_t range = placement.range_of(rows.at(begin));
    const std::int64_t last = placement.end_row(range);
    std::size_t end = begin + 1;
    if (rows.keys == nullptr) {
      end = std::min(rows.count, static_cast<std::size_t>(last - rows.first));
    } else {
      while (end < rows.count && rows.keys[end] < last) ++end;
    }
    stretches.push_back({begin, end, range});
    begin = end;
  }
  return stretches;
}

// ---- pushes ----

std::size_t HeldRanges::count_kept(std::optional<int> client) const {
  std::size_t bytes = 0;
  for (const Held& held : held_) {
    for (const Range* const range : {held.range.get(), held.coming.get()}) {
      const bool is_primary = held.is_primary && range == held.range.get();
      if (range == nullptr || is_primary != client.has_value()) continue;
      for (const Range::Kept& kept : range->kept()) {
        if (!client || kept.client == *client) bytes += kept.bytes();
      }
    }
  }
  return bytes;
}

bool HeldRanges::keep(Range& range, const Head& head, const Rows& rows, const std::byte* gradients,
                      bool is_primary) {
  Range::Kept kept{head.clock, static_cast<int>(head.client), head.push, {}, {}};
  kept.keys.resize(rows.count);
  for (std::size_t i = 0; i < rows.count; ++i) kept.keys[i] = rows.at(i);
  kept.gradients.assign(gradients, gradients + rows.count * state_.options.row_bytes());
  std::size_t& bytes = is_primary ? kept_[head.client] : kept_in_copies_;
  const std::size_t most = is_primary ? most_kept_ : kept_.size() * most_kept_;
  if (bytes + kept.bytes() > most) {  // much of it may have been applied since
    if (is_primary && is_counted_[head.client]) return false;
    bytes = count_kept(is_primary ? std::optional(kept.client) : std::nullopt);
    if (is_primary) is_counted_[head.client] = true;
    if (bytes + kept.bytes() > most) return false;
  }
  bytes += kept.bytes();
  range.keep(std::move(kept));
  return true;
}

bool HeldRanges::change(std::size_t range, const Head& head, const Rows& rows,
                        const std::byte* gradients, std::string& failure) {
  const Held& held = held_[range];
  if (state_.options.is_bsp() && (!held.is_primary || head.clock >= state_.clocks.lowest())) {
    if (keep(*held.range, head, rows, gradients, held.is_primary)) return true;  // P6
    failure = "a push of clock " + std::to_string(head.clock) + " is dropped: the server of rank " +
              std::to_string(state_.own) + " keeps " + std::to_string(most_kept_ >> 20) +
              " MiB of pushes of rank " + std::to_string(head.client) +
              " until all ranks come to the next clock, and no more; call clock() more often";
    return false;
  }
  try {
    apply(range, rows, gradients);
  } catch (const std::exception& error) {  // of the user's function
    failure = failure_of(error);
  }
  return true;
}

std::string HeldRanges::failure_of(const std::exception& error) const {
  return "the update function failed on rank " + std::to_string(state_.own) + ": " + error.what();
}

void HeldRanges::apply(std::size_t range, const Rows& rows, const std::byte* gradients) {
  show(range);
  held_[range].range->apply(rows, gradients);
}

std::vector<Range::Kept> HeldRanges::take_kept(std::size_t range, std::uint64_t clock) {
  std::vector<Range::Kept> taken = held_[range].range->take_kept(clock);
  if (!taken.empty()) std::fill(is_counted_.begin(), is_counted_.end(), false);
  return taken;
}

void HeldRanges::apply_kept(std::size_t range, std::uint64_t clock, bool tells) {
  for (const Range::Kept& kept : take_kept(range, clock)) {
    try {
      apply(range, {kept.keys.data(), 0, kept.keys.size()}, kept.gradients.data());
    } catch (const std::exception& error) {  // of the user's function
      // A client that has so many answers to take hears of others that have failed (P15).
      if (tells && state_.mail.untaken(kept.client) < kMostUntaken) {
        state_.writer.answer(Head::Kind::kFailed, kept.client, 0, 0, failure_of(error));
      }
    }
  }
}

void HeldRanges::apply_kept_at_start(std::size_t range) {
  const Held& held = held_[range];
  apply_kept(range, held.is_primary ? state_.clocks.lowest() : held.applied, held.is_primary);
}

// ---- rows that clients on this host read in place (P9) ----

// Clients read in place what they would get by messages, so not with a codec. All pages of a range
// are backed once it is shown. So a table of far more rows than are ever pushed to is not shown.
void HeldRanges::show() {
  const TableOptions& options = state_.options;
  if (!state_.mail.group().is_one_host() || options.coder(1).is_on()) return;
  const std::size_t bytes = static_cast<std::size_t>(options.rows) * options.row_bytes();
  if (bytes > dstorm::host::available_bytes() / kShownPart) return;
  try {
    shown_.emplace(options, state_.placement);
  } catch (const dstorm::ConfigError&) {
    return;  // no room: clients pull by messages
  }
  show_clock();
  Head head{};
  head.kind = Head::Kind::kShown;
  const ShownAt at = shown_->at();
  for (int client = 0; client < state_.clients; ++client) {
    state_.writer.send_to_client(client, head, std::as_bytes(std::span(&at, 1)));
  }
}

void HeldRanges::show(std::size_t range) {
  const Held& held = held_[range];
  if (!held.is_primary || !shown_ || is_full_ || held.range->is_shown()) return;
  try {
    held.range->show(shown_->reserve(range));
  } catch (const dstorm::ConfigError&) {
    is_full_ = true;  // clients pull this range by messages
  }
}

void HeldRanges::show_clock() {
  if (shown_) shown_->set_clock(state_.clocks.lowest());
}

void HeldRanges::hide(bool is_stopped) noexcept {
  for (const Held& held : held_) {
    if (held.range != nullptr && (is_stopped || held.range.use_count() > 1)) held.range->hide();
  }
}

}  // namespace vol::ps
