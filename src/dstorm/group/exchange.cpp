// The one collective step of a group, exchange(), and its error messages.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <utility>

#include "dstorm/group/impl.hpp"

namespace dstorm {
namespace {

using std::chrono::nanoseconds;

// The error of unlike calls waits for so long for word that one of them has been given up.
constexpr std::chrono::milliseconds kWordOnItsWay{250};

// The name of the call that "segment 'w', step 2" is a step of.
std::string_view call_of(std::string_view what) { return what.substr(0, what.rfind(", step ")); }

// The other part of it: "step 2"; empty if the call has no steps.
std::string step_of(std::string_view what) {
  const std::size_t at = call_of(what).size();
  return std::string(what.substr(std::min(what.size(), at + 2)));
}

// The length of the text that fits a notice, and the room in it for the name of a step.
constexpr std::size_t kMostWhat = sizeof(host::Notice::what);
constexpr std::size_t kStepRoom = 24;

// Shortens the name of the call if need be, for steps with names that fit their room alike; the
// name of the step stays whole.
std::string fit(std::string_view what) {
  const std::string_view call = call_of(what);
  const std::string_view step = what.substr(call.size());
  const std::size_t room = kMostWhat - std::clamp(step.size(), kStepRoom, kMostWhat);
  return std::string(call.substr(0, room)) + std::string(step.substr(0, kMostWhat));
}

// Whether the notice of an exchange is one of a step of this call, whose name fit() has shortened.
bool is_step_of(const host::Notice& notice, std::string_view call) {
  const std::size_t bytes = std::min<std::size_t>(notice.what_bytes, kMostWhat);
  const std::string_view posted = call_of({notice.what, bytes});
  const bool may_be_short = posted.size() >= kMostWhat - kStepRoom || bytes == kMostWhat;
  return posted == call || (may_be_short && call.starts_with(posted));
}

// Whether it is one of step 0, in which ranks only meet.
bool is_meeting(const host::Notice& notice) {
  const std::size_t bytes = std::min<std::size_t>(notice.what_bytes, kMostWhat);
  return std::string_view(notice.what, bytes).ends_with(", step 0");
}

// The length in bytes at which an error message ends its list of calls.
constexpr std::size_t kLongText = 300;

}  // namespace

std::vector<std::optional<Bytes>> Group::exchange(std::string_view given,
                                                  std::span<const std::byte> mine,
                                                  std::optional<Deadline> timeout) {
  const Turn turn(*impl_->turns, "exchange");
  check_standing();
  host::Control& control = impl_->control;
  if (mine.size() > kMostExchanged) {
    throw ConfigError("cannot exchange " + std::to_string(mine.size()) + " bytes; at most " +
                      std::to_string(kMostExchanged));
  }
  // Two notices, used in turn, suffice: a rank that posts to exchange n + 2 has seen every rank at
  // n + 1, and a rank at n + 1 has read all of n.
  const Deadline deadline = timeout ? *timeout : this->deadline();
  std::uint64_t number = impl_->exchanges + 1;
  host::Member& own = control.member(rank());
  const std::string fitting = fit(given);
  const std::string_view what = fitting;
  bool is_posted = own.posted.load(std::memory_order_relaxed) == number;
  if (is_posted) {
    // The last call timed out. Other ranks may be reading its notice now, so that notice stays and
    // counts for this call.
    const host::Notice& before = own.notices[number % 2];
    const std::string_view posted(before.what, before.what_bytes);
    if (call_of(posted) != call_of(what) && own.abandoned.load() != number) {
      throw ConfigError(std::string(call_of(what)) + " cannot start: '" +
                        std::string(call_of(posted)) +
                        "' timed out or was interrupted on this rank, and the others may still "
                        "come to it; repeat that first");
    }
    // This is another step of the same call, or that one has been abandoned. The others finish the
    // posted exchange, and learn in the next one what this rank has begun.
    if (posted != what) {
      await_posts_of(number, what, deadline);
      impl_->exchanges = number++;
      is_posted = false;
    }
  }
  if (impl_->abandoned_call == call_of(what)) impl_->abandoned_call.clear();
  for (;; ++number) {
    if (!is_posted) post(number, what, mine);
    await_posts_of(number, what, deadline);
    impl_->exchanges = number;
    try {
      std::vector<std::optional<Bytes>> posts = posts_of(number, what);
      impl_->abandoned_call.clear();
      return posts;
    } catch (const OtherCalls& error) {
      // Word that a rank of another host has given its call up may still be on its way.
      const auto is_over = [&] { return is_void(number, error.ranks()); };
      const auto lacks = [&] { return std::string(error.what()); };
      const auto limit = std::min<nanoseconds>(deadline.left(), kWordOnItsWay);
      if (!impl_->waiter.until(is_over, limit, false, lacks, [] { return -1; })) {
        impl_->abandoned_call.clear();
        throw;
      }
    }
    is_posted = false;
  }
}

void Group::post(std::uint64_t number, std::string_view what, std::span<const std::byte> mine) {
  host::Control& control = impl_->control;
  host::Member& own = control.member(rank());
  host::Notice& notice = own.notices[number % 2];
  std::unique_lock<std::mutex> held;
  if (impl_->engine) held = impl_->engine->hold_notices();
  notice.what_bytes = static_cast<std::uint32_t>(what.size());
  std::memcpy(notice.what, what.data(), what.size());
  notice.bytes = static_cast<std::uint32_t>(mine.size());
  if (!mine.empty()) std::memcpy(notice.data, mine.data(), mine.size());
  own.posted.store(number, std::memory_order_release);
  if (held) held.unlock();
  control.ring(control.neighbours());
  if (impl_->engine) impl_->engine->flush_notices();
}

// Whether these ranks, which have posted another call than this one, have given it up, or were in
// one that this rank has given up. The latter have an error now, so all can meet in the next
// exchange.
bool Group::is_void(std::uint64_t number, const std::vector<int>& elsewhere) const {
  return std::ranges::all_of(elsewhere, [&](int r) {
    const host::Board& board = impl_->control.board(r);
    return board.abandoned.load(std::memory_order_acquire) >= number ||
           (!impl_->abandoned_call.empty() &&
            is_step_of(board.notices[number % 2], impl_->abandoned_call));
  });
}

std::string Group::pending() const {
  const std::uint64_t number = impl_->exchanges + 1;
  if (posted() != number) return "";
  const host::Notice& notice = impl_->control.member(rank()).notices[number % 2];
  return {notice.what, notice.what_bytes};
}

bool Group::has_posted(int rank, std::uint64_t number) const noexcept {
  return impl_->control.board(rank).posted.load(std::memory_order_acquire) >= number;
}

std::uint64_t Group::met() const noexcept {
  const std::uint64_t next = impl_->exchanges + 1;
  if (posted() != next) return impl_->exchanges;
  for (int r = 0; r < size(); ++r) {
    if (is_live(r) && !has_posted(r, next)) return impl_->exchanges;
  }
  return next;
}

// The notices of that exchange stay as they are until this rank has posted to it, too.
bool Group::is_begun_anew(std::string_view call) const noexcept {
  const std::uint64_t number = impl_->exchanges + 1;
  for (int r = 0; r < size(); ++r) {
    if (r == rank() || !has_posted(r, number) || !is_live(r)) continue;
    const host::Notice& post = impl_->control.board(r).notices[number % 2];
    if (is_step_of(post, call) && !is_meeting(post)) return true;
  }
  return false;
}

void Group::abandon(std::string_view call) {
  const std::uint64_t number = impl_->exchanges + 1;
  if (posted() != number) return;
  const host::Notice& post = impl_->control.member(rank()).notices[number % 2];
  if (!is_step_of(post, call)) return;
  impl_->abandoned_call = call_of({post.what, post.what_bytes});
  impl_->control.member(rank()).abandoned.store(number, std::memory_order_release);
  impl_->control.ring(impl_->control.neighbours());
  if (impl_->engine) impl_->engine->flush_notices();
}

void Group::await_posts_of(std::uint64_t number, std::string_view what, const Deadline& deadline) {
  int next = 0;  // all ranks below it have posted or are not live
  const auto all_here = [&] {
    while (next < size() && (has_posted(next, number) || !is_live(next))) ++next;
    return next == size();
  };
  const auto missing = [&] {
    std::vector<int> ranks;
    for (int r = 0; r < size(); ++r) {
      if (is_live(r) && !has_posted(r, number)) ranks.push_back(r);
    }
    return ranks;
  };
  const auto lacks = [&](const std::vector<int>& ranks) {
    return std::string(call_of(what)) + ": " + describe_ranks(ranks) + " did not come";
  };
  const auto next_missing = [&] { return next < size() ? next : -1; };
  if (impl_->waiter.until(
          all_here, deadline.left(), false, [&] { return lacks(missing()); }, next_missing)) {
    return;
  }
  const std::vector<int> late = missing();
  if (late.empty()) return;  // the last rank posted just now
  const nanoseconds limit = std::max(deadline.limit(), nanoseconds(0));
  throw TimeoutError(lacks(late) + " within " + format_seconds(limit) + last_calls(late) +
                         "; every rank must make the same collective calls in the same order",
                     late);
}

// The collective call that each of these ranks made last, for an error message.
std::string Group::last_calls(const std::vector<int>& ranks) const {
  std::string text;
  for (const int r : ranks) {
    const host::Board& board = impl_->control.board(r);
    // A rank that is late may post twice while this reads, the second time into the notice that is
    // read: what is read counts only if its number is still the last one then.
    std::uint64_t posted = 0;
    std::string what;
    do {
      std::unique_lock<std::mutex> held;
      if (impl_->engine) held = impl_->engine->hold_notices();
      posted = board.posted.load(std::memory_order_acquire);
      const host::Notice& last = board.notices[posted % 2];
      what.assign(last.what, std::min<std::size_t>(last.what_bytes, sizeof(last.what)));
      std::atomic_thread_fence(std::memory_order_acquire);
    } while (board.posted.load(std::memory_order_relaxed) != posted);
    text += (text.empty() ? " (" : "; ") + describe_ranks({r}) +
            (posted == 0 ? " has not come to such a call, or is still at work in it"
                         : " was last in " + std::string(call_of(what)));
    if (text.size() > kLongText) break;
  }
  return text.empty() ? "" : text + ")";
}

std::vector<std::optional<Bytes>> Group::posts_of(std::uint64_t number,
                                                  std::string_view what) const {
  std::vector<std::optional<Bytes>> posts(static_cast<std::size_t>(size()));
  std::map<std::string, std::vector<int>> doing;
  for (int r = 0; r < size(); ++r) {
    if (!has_posted(r, number)) continue;  // it died or left before it posted
    const host::Notice& post = impl_->control.board(r).notices[number % 2];
    // The board is another process's memory: lengths are copied, then checked.
    const std::size_t what_bytes = std::min<std::size_t>(post.what_bytes, sizeof(post.what));
    const std::size_t bytes = std::min<std::size_t>(post.bytes, kMostExchanged);
    doing[std::string(post.what, what_bytes)].push_back(r);
    posts[static_cast<std::size_t>(r)].emplace(post.data, post.data + bytes);
  }
  if (doing.size() < 2) return posts;
  std::map<std::string, std::vector<int>> calls;
  for (const auto& [step, ranks] : doing) {
    std::vector<int>& all = calls[std::string(call_of(step))];
    all.insert(all.end(), ranks.begin(), ranks.end());
    std::ranges::sort(all);
  }
  if (calls.size() == 1) {
    std::string steps;
    for (const auto& [step, ranks] : doing) {
      steps += (steps.empty() ? "" : "; ") + describe_ranks(ranks) + ": " + step_of(step);
    }
    throw BegunAnew(std::string(call_of(what)) + ": the ranks are at different steps of it (" +
                    steps +
                    "), as it has ended early on some (at the time limit, or interrupted); all "
                    "ranks repeat it");
  }
  std::string who;
  for (const auto& [call, ranks] : calls) {
    who += (who.empty() ? "" : "; ") + describe_ranks(ranks) + ": " + call;
  }
  const std::string text =
      "the ranks make different collective calls at once (" + who +
      "); every rank must make the same ones in the same order, and all repeat one that timed out "
      "on any";
  std::vector<int> elsewhere;
  for (const auto& [call, ranks] : calls) {
    if (call != call_of(what)) elsewhere.insert(elsewhere.end(), ranks.begin(), ranks.end());
  }
  std::ranges::sort(elsewhere);
  throw OtherCalls(text, elsewhere);
}

}  // namespace dstorm
