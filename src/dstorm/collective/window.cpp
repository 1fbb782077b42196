#include "dstorm/collective/window.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "dstorm/host/quiet_thread.hpp"
#include "dstorm/host/roll_call.hpp"
#include "dstorm/slot/layout.hpp"

namespace dstorm {
namespace {

using std::chrono::nanoseconds;

// Of the messages: few short ones where puts to all ranks go to their memory; else parts of puts.
constexpr std::size_t kShortSlot = 64;
constexpr int kFewSlots = 4;
constexpr std::size_t kLongSlot = 128 << 10;
constexpr int kManySlots = 16;
// The receiving thread leaves the mail alone for so long after a call has used it, as another one
// often follows.
constexpr std::chrono::milliseconds kAlone{1};
// The longest wait of a thread for what another one takes in, before it looks by itself; and for
// the mail, before it looks at signals.
constexpr std::chrono::milliseconds kLook{20};
constexpr std::chrono::milliseconds kMailNap{200};
constexpr std::chrono::hours kLong{1000};

using Kind = WindowMessage::Kind;

}  // namespace

// The record that each rank posts while the ranks make a window.
struct Window::Offer {
  std::int32_t pid = -1;
  std::int32_t fds[2] = {-1, -1};  // of its memory, of its counts
  host::Token tokens[2] = {};
  std::uint64_t memory_bytes = 0;
  std::uint64_t first = 0;
  std::uint64_t bytes = 0;
  std::uint32_t note_bytes = 0;
  std::byte note[kMostNote] = {};
  char error[384] = {};
};

Window::Window(std::shared_ptr<Group> group, std::string name, std::shared_ptr<WindowMemory> memory,
               Place place, std::span<const std::byte> note)
    : group_(std::move(group)), name_("window '" + name + "'") {
  static_assert(sizeof(Offer) <= Group::kMostExchanged);
  const std::size_t memory_bytes = memory->bytes().size();
  for (int r = 0; r < group_->size(); ++r) peers_.push_back(std::make_unique<Peer>());
  Offer mine;
  Peer& own = peer(group_->rank());
  own.memory = std::move(memory);
  attempt(mine, [&] {
    if (note.size() > kMostNote || place.first > memory_bytes ||
        place.bytes > memory_bytes - place.first) {
      throw ConfigError(name_ + ": its place or its note is too long");
    }
    own.counts = std::make_shared<WindowMemory>(Bytes(peers_.size() * kLine));
    mine.fds[0] = own.memory->fd();
    mine.fds[1] = own.counts->fd();
    mine.tokens[0] = own.memory->token();
    mine.tokens[1] = own.counts->token();
    mine.note_bytes = static_cast<std::uint32_t>(note.size());
    if (!note.empty()) std::memcpy(mine.note, note.data(), note.size());
  });
  mine.pid = getpid();
  mine.memory_bytes = memory_bytes;
  mine.first = place.first;
  mine.bytes = place.bytes;
  const std::vector<Offer> offers = exchange("memory", mine);
  attempt(mine, [&] {
    for (int r = 0; r < group_->size(); ++r) open(r, offers[static_cast<std::size_t>(r)]);
  });
  exchange("mapped", mine);
  const bool is_one_host = group_->is_one_host();
  mail_ = std::make_unique<Mail>(group_, std::move(name), is_one_host ? kShortSlot : kLongSlot,
                                 is_one_host ? kFewSlots : kManySlots);
  if (!is_one_host) receiver_ = start_quiet_thread([this] { run(); });
}

Window::~Window() { shut(nanoseconds(1)); }

std::vector<Window::Offer> Window::exchange(const std::string& step, const Offer& mine) {
  const auto posts = group_->exchange(name_ + ", " + step, std::as_bytes(std::span(&mine, 1)));
  std::vector<Offer> offers(posts.size());
  std::vector<int> missing;
  for (int r = 0; r < group_->size(); ++r) {
    const auto& post = posts[static_cast<std::size_t>(r)];
    if (post && post->size() == sizeof(Offer)) {
      std::memcpy(&offers[static_cast<std::size_t>(r)], post->data(), sizeof(Offer));
    } else {
      missing.push_back(r);
    }
  }
  throw_if_any_failed(offers);
  if (!missing.empty()) {
    throw PeerError(name_ + ": " + describe_ranks(missing) + " died while the ranks made it",
                    missing);
  }
  return offers;
}

void Window::open(int rank, const Offer& offer) {
  Peer& of = peer(rank);
  if (offer.note_bytes > kMostNote || offer.first > offer.memory_bytes ||
      offer.bytes > offer.memory_bytes - offer.first) {
    throw ConfigError(name_ + ": rank " + std::to_string(rank) +
                      " has posted a record that is not valid; its memory is damaged");
  }
  of.place = {offer.first, offer.bytes};
  of.note.assign(offer.note, offer.note + offer.note_bytes);
  if (rank == group_->rank() || group_->route(rank).transport != "shm") return;
  of.memory =
      std::make_shared<WindowMemory>(offer.pid, offer.fds[0], offer.memory_bytes, offer.tokens[0]);
  of.counts = std::make_shared<WindowMemory>(offer.pid, offer.fds[1], peers_.size() * kLine,
                                             offer.tokens[1]);
}

std::atomic<std::uint64_t>& Window::count(int of, int from) const {
  std::byte* const line = &peer(of).counts->bytes()[static_cast<std::size_t>(from) * kLine];
  return *reinterpret_cast<std::atomic<std::uint64_t>*>(line);
}

std::uint64_t Window::signals_of(int rank) const {
  return is_mapped(rank) ? count(group_->rank(), rank).load(std::memory_order_acquire)
                         : peer(rank).signals.load(std::memory_order_acquire);
}

bool Window::is_gone(int rank) const { return rank != group_->rank() && !mail_->is_live(rank); }

void Window::check_open() const {
  if (is_shut_) throw ConfigError(name_ + " is closed");
  group_->check_standing();
}

void Window::check_to(int rank) const {
  check_open();
  if (is_gone(rank)) {
    throw PeerError(name_ + ": rank " + std::to_string(rank) + " is dead or has left", {rank});
  }
}

void Window::put(int to, std::size_t offset, std::span<const std::byte> bytes,
                 const Deadline& deadline) {
  check_to(to);
  const Place place = peer(to).place;
  if (offset > place.bytes || bytes.size() > place.bytes - offset) {
    throw ConfigError(name_ + ": " + std::to_string(bytes.size()) + " bytes at " +
                      std::to_string(offset) + " exceed the window size of rank " +
                      std::to_string(to) + ", " + std::to_string(place.bytes) + " bytes");
  }
  if (bytes.empty()) return;
  if (is_mapped(to)) {
    std::memmove(memory(to)->bytes().data() + place.first + offset, bytes.data(), bytes.size());
  } else {
    send_all(to, offset, bytes, deadline);
  }
}

void Window::signal(int to, std::uint64_t count, const Deadline& deadline) {
  check_to(to);
  if (!is_mapped(to)) {
    send(to, {Kind::kSignal, count}, deadline);
    return;
  }
  std::atomic<std::uint64_t>& sent = this->count(to, group_->rank());
  if (sent.load(std::memory_order_relaxed) < count) sent.store(count, std::memory_order_release);
  mail_->wake(to);
}

void Window::await_signals(int from, std::uint64_t count, const Deadline& deadline) {
  check_open();
  if (signals_of(from) >= count && !group_->is_left_out(from)) return;
  await([&] { return signals_of(from) >= count && !group_->is_left_out(from); },
        [&] { return std::vector<int>{from}; }, false, deadline);
}

void Window::close(const Deadline& deadline) {
  check_open();
  std::vector<int> others;
  for (int r = 0; r < group_->size(); ++r) {
    if (r != group_->rank()) others.push_back(r);
  }
  for (int r : others) {
    if (!is_gone(r)) send(r, {Kind::kEnd, 0}, deadline);
  }
  const auto late = [&] {
    std::vector<int> ranks;
    for (int r : others) {
      if (!peer(r).has_ended) ranks.push_back(r);
    }
    return ranks;
  };
  await([&] { return late().empty(); }, late, true, deadline);
}

// Uses the mail, which nobody uses; `lock` is let go meanwhile.
template <class Function>
void Window::use(Lock& lock, Function&& function) {
  struct Used {
    Window& window;
    Lock& lock;
    Used(Window& of, Lock& held) : window(of), lock(held) {
      window.is_used_ = true;
      window.user_ = std::this_thread::get_id();
      lock.unlock();
    }
    ~Used() {
      lock.lock();
      window.is_used_ = false;
      window.user_ = {};
      window.used_at_ = Clock::now();
      window.changed_->notify_all();
    }
    Used(const Used&) = delete;
    Used& operator=(const Used&) = delete;
  };
  const Used used(*this, lock);
  const Turn turn(mail_->turns(), "window", mail_->name());
  group_->check_standing();
  function();
}

void Window::check_outside() const {
  if (is_used_ && user_ == std::this_thread::get_id()) {
    throw ConfigError(name_ +
                      ": a signal handler has made a call inside another call of the window: have "
                      "it set a flag, and make the call where the program looks at that");
  }
}

// Waits for changed_, and looks at signals.
void Window::nap(Lock& lock, nanoseconds most, const Deadline& deadline) {
  const auto is_over = changed_->wait_for(lock, std::min<nanoseconds>(deadline.left(), most));
  if (is_over == std::cv_status::no_timeout) return;
  lock.unlock();
  group_->interrupt();
  lock.lock();
}

// Returns when nobody uses the mail.
void Window::take_over(Lock& lock, const Deadline& deadline) {
  check_outside();
  struct Wanted {
    std::atomic<int>& count;
    explicit Wanted(std::atomic<int>& of) : count(of) { ++count; }
    ~Wanted() { --count; }
    Wanted(const Wanted&) = delete;
    Wanted& operator=(const Wanted&) = delete;
  };
  const Wanted wanted(wanted_);
  if (is_used_) mail_->wake();
  while (is_used_) {
    if (deadline.left().count() == 0) {
      throw TimeoutError(
          name_ + ": another thread's call has lasted for " + format_seconds(deadline.limit()), {});
    }
    nap(lock, kMailNap, deadline);
  }
  if (!failure_.empty()) throw Error(failure_);
}

template <class Function>
void Window::use_for_sending(const Deadline& deadline, Function&& function) {
  Lock lock(mutex_);
  take_over(lock, deadline);
  use(lock, [&] {
    take_in();
    function();
  });
}

void Window::send(int to, const Head& head, const Deadline& deadline) {
  use_for_sending(deadline, [&] { put_in_mail(to, head, {}, deadline); });
}

void Window::send_all(int to, std::size_t offset, std::span<const std::byte> bytes,
                      const Deadline& deadline) {
  use_for_sending(deadline, [&] {
    const std::size_t most = mail_->slot_bytes() - sizeof(Head);
    for (std::size_t done = 0; done < bytes.size(); done += most) {
      const auto part = bytes.subspan(done, std::min(most, bytes.size() - done));
      put_in_mail(to, {Kind::kPut, offset + done}, part, deadline);
    }
  });
}

// Returns when the message is in a slot.
void Window::put_in_mail(int to, const Head& head, std::span<const std::byte> body,
                         const Deadline& deadline) {
  if (is_gone(to)) check_to(to);
  await_room(to, deadline);  // for that of a call that has ended early
  std::byte* const room = mail_->begin(to, sizeof(head) + body.size());
  std::memcpy(room, &head, sizeof(head));
  if (!body.empty()) std::memcpy(room + sizeof(head), body.data(), body.size());
  mail_->end();
  await_room(to, deadline);
}

// Returns when no message to a rank waits for a slot. Takes in meanwhile: two ranks may fill each
// other's slots.
void Window::await_room(int to, const Deadline& deadline) {
  while (mail_->waiting_for(to) > 0) {
    take_in();
    if (mail_->pump()) continue;
    const auto is_over = [&] { return is_gone(to) || is_shut_; };
    const bool has_come = mail_->wait(is_over, deadline.left(), [&] {
      return name_ + ": rank " + std::to_string(to) + " has taken nothing";
    });
    check_open();
    if (!has_come) {
      throw TimeoutError(name_ + ": rank " + std::to_string(to) + " did not take a put within " +
                             format_seconds(deadline.limit()),
                         {to});
    }
  }
}

void Window::take_in() {
  mail_->take_in([this](int sender, std::span<const std::byte> message) { take(sender, message); });
}

// W4.
void Window::take(int sender, std::span<const std::byte> message) {
  const Place place = peer(group_->rank()).place;
  const std::optional<WindowMessage> read = WindowMessage::read(message, place.bytes);
  if (!read) {
    throw Error(name_ + ": rank " + std::to_string(sender) +
                " has sent a message that is not valid; its memory is damaged");
  }
  const auto [head, body] = *read;
  Peer& from = peer(sender);
  switch (head.kind) {
    case Kind::kPut:
      if (body.empty()) return;
      std::memcpy(memory(group_->rank())->bytes().data() + place.first + head.value, body.data(),
                  body.size());
      return;
    case Kind::kSignal:
      from.signals.store(std::max(from.signals.load(std::memory_order_relaxed), head.value),
                         std::memory_order_release);
      return;
    case Kind::kEnd:
      from.has_ended = true;
  }
}

void Window::await(const std::function<bool()>& is_done,
                   const std::function<std::vector<int>()>& late, bool may_miss,
                   const Deadline& deadline) {
  Lock lock(mutex_);
  check_outside();
  struct Waiting {
    Window& window;
    explicit Waiting(Window& of) : window(of) { ++window.waiting_; }
    ~Waiting() {
      --window.waiting_;
      window.changed_->notify_all();
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
  };
  const Waiting waiting(*this);
  const auto gone = [&] {
    std::vector<int> ranks = late();
    std::erase_if(ranks, [this](int r) { return !is_gone(r); });
    return ranks;
  };
  // Ranks that were gone before the mail was last taken in: they have sent nothing more.
  std::vector<int> were_gone;
  while (!is_done()) {
    check_open();
    if (!were_gone.empty() && !may_miss) {
      throw PeerError(name_ + ": " + describe_ranks(were_gone) + " died or left", were_gone);
    }
    for (int r : were_gone) peer(r).has_ended = true;
    if (deadline.left().count() == 0) {
      throw TimeoutError(
          name_ + ": waited " + format_seconds(deadline.limit()) + " for " + describe_ranks(late()),
          late());
    }
    were_gone = gone();
    if (is_receivers_ || (!is_used_ && wanted_ == 0)) {
      take_over(lock, deadline);
      use(lock, [&] {
        take_in();
        if (!were_gone.empty()) return;
        const auto is_over = [&] {
          return is_done() || wanted_ > 0 || is_shut_ || !gone().empty();
        };
        mail_->wait(is_over, deadline.left(),
                    [&] { return name_ + ": waits for " + describe_ranks(late()); });
        take_in();
      });
    } else {
      nap(lock, kLook, deadline);
    }
  }
}

void Window::run() {
  Lock lock(mutex_);
  try {
    while (!is_shut_) {
      const nanoseconds left = used_at_ + kAlone - Clock::now();
      if (is_used_ || wanted_ > 0 || waiting_ > 0) {
        changed_->wait(lock);
      } else if (left.count() > 0) {
        changed_->wait_for(lock, left);
      } else {
        is_receivers_ = true;
        const Clock::time_point used_at = used_at_;
        use(lock, [&] {
          take_in();
          mail_->pump();
          mail_->wait([&] { return wanted_ > 0 || waiting_ > 0 || is_shut_; }, kLong);
          take_in();
        });
        used_at_ = used_at;
        is_receivers_ = false;
      }
    }
  } catch (const std::exception& error) {
    if (!lock.owns_lock()) lock.lock();
    failure_ = error.what();
    is_receivers_ = false;
  }
}

void Window::shut(nanoseconds limit) noexcept {
  if (is_shut_.exchange(true)) return;
  if (group_->is_forked()) {  // the thread is the rank's
    if (receiver_.joinable()) receiver_.detach();
    [[maybe_unused]] const auto* const kept = changed_.release();
    return;
  }
  if (mail_) {
    mail_->shut();
    mail_->wake();
  }
  group_->leave(limit);
  {
    const Lock lock(mutex_);
    changed_->notify_all();
  }
  if (receiver_.joinable()) receiver_.join();
}

}  // namespace dstorm
