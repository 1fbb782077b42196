// How the engine works. There is one Uplink for each other host, which sends, and one Downlink for
// each connection that another host's rank has made, which takes in.
//
// pump() sends: it hands the changed segments to the uplinks, and each uplink sends what is due. It
// runs under the lock: on the rank's thread in drive() after a scatter or in poll() while the rank
// waits, on the watcher's thread in flush_notices(), and on the engine's thread. take_in()
// receives, on the rank's thread and on the engine's.
//
// run() is the loop of the engine's thread: it sleeps in epoll, takes in, pumps, and in tend() and
// settle() does what time or a lost connection demands. While the rank polls, keep_away() keeps the
// thread asleep, since taking turns at the lock would slow both down.
//
// A rank that scatters in a burst may hold updates back (may_wait(), hold_back()) to send several
// with one system call; the engine's thread sends them after kHeldBack if the rank does not.
#include "dstorm/remote/engine.hpp"

#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "dstorm/host/quiet_thread.hpp"
#include "dstorm/host/roll_call.hpp"

namespace dstorm::remote {
namespace {

using std::chrono::nanoseconds;

// The time between two calls to a host that does not answer.
constexpr std::chrono::milliseconds kRedial{20};
// A payload up to this long is sent by the thread that scatters it. With RDMA alone the limit is
// higher: the adapter copies nothing, and the thread that wrote the payload has it in its cache for
// the checksum.
constexpr std::size_t kLendAHand = 64 * 1024;
constexpr std::size_t kLendAHandByRdma = 1024 * 1024;
// With more hosts than this, looking for arrivals takes longer than waking a thread.
constexpr std::size_t kMostPolled = 9;
// How long the engine's thread keeps away while the rank polls. Arrivals may lie unread for so long
// when the rank stops polling. The time is longer if they are for this rank alone.
constexpr nanoseconds kAway{500'000};
constexpr nanoseconds kAwayAlone{5'000'000};
// Updates of a burst are sent several at once. A burst begins after kBurst scatters in a row, each
// within kSoon of the one before and with no update coming in between. Updates are then held back
// until they have kHeldBytes bytes or fill half of the slots, but for no longer than kHeldBack.
constexpr int kBurst = 4;
constexpr std::chrono::microseconds kSoon{50};
constexpr std::size_t kHeldBytes = 256 * 1024;
constexpr nanoseconds kHeldBack{100'000};
// The longest time for which a rank waits until the engine's thread gives up the lock.
constexpr std::chrono::milliseconds kTurn{10};
constexpr std::size_t kMostInterfaces = 16;

struct InterfaceRecord {
  char name[16];
  tcp::Address address;
  std::int32_t prefix_bits;
  bool is_loopback;
};

}  // namespace

// First record: what each rank of a job of several hosts tells the others.
struct Networks {
  tcp::Key nonce;  // that of the lowest member is part of the job's key
  bool is_encrypted;
  AdapterRecord adapter;
  std::uint32_t interfaces;
  std::array<InterfaceRecord, kMostInterfaces> interface;
  char error[256];
};

namespace {

// Second record: where the rank listens. It is sent again as the last record, to say whether the
// rank has reached all hosts.
struct Listening {
  tcp::Address address;
  char without_witness[160];  // why it has no witness; empty if it has
  char error[512];
};

template <class Record, class Step>
void attempt(Record& mine, Step&& step) {
  try {
    step();
  } catch (const Error& error) {
    set_text(mine.error, error.what());
  }
}

Networks own_networks(const tcp::TlsContext* tls) {
  Networks mine{};
  mine.nonce = tcp::make_key();
  mine.is_encrypted = tls != nullptr;
  for (const tcp::Interface& one : tcp::interfaces()) {
    if (mine.interfaces == kMostInterfaces) break;
    InterfaceRecord& record = mine.interface[mine.interfaces++];
    set_text(record.name, one.name);
    record.address = one.address;
    record.prefix_bits = one.prefix_bits;
    record.is_loopback = one.is_loopback;
  }
  return mine;
}

std::vector<tcp::Interface> interfaces_of(const Networks& networks) {
  std::vector<tcp::Interface> all;
  for (std::size_t i = 0; i < std::min<std::size_t>(networks.interfaces, kMostInterfaces); ++i) {
    const InterfaceRecord& record = networks.interface[i];
    all.push_back({get_text(record.name), record.address, record.prefix_bits, record.is_loopback});
  }
  return all;
}

// Whether two ranks are on one network stack, though perhaps in two containers.
bool same_stack(const Networks& a, const Networks& b) {
  const auto one = interfaces_of(a);
  const auto other = interfaces_of(b);
  return std::equal(
      one.begin(), one.end(), other.begin(), other.end(),
      [](const tcp::Interface& x, const tcp::Interface& y) { return x.address == y.address; });
}

// The address at which a rank listens and from which it calls: as the user says, or else one at
// which the others can reach it.
tcp::Address pick_address(const EngineOptions& options, const std::vector<Networks>& networks,
                          const host::Control& control) {
  if (!options.interface.empty()) return tcp::address_of(options.interface);
  const auto of = [&](int r) -> const Networks& { return networks[static_cast<std::size_t>(r)]; };
  const Networks& mine = of(control.rank());
  const std::vector<int>& members = control.members();
  const auto other =
      std::find_if(members.begin(), members.end(), [&](int r) { return !same_stack(mine, of(r)); });
  if (other == members.end()) return *tcp::Address::parse("127.0.0.1");
  if (!options.toward.empty()) {
    const auto address = tcp::address_toward(options.toward);
    if (address && !address->is_loopback()) return *address;
  }
  const auto address = tcp::choose_address(interfaces_of(mine), interfaces_of(of(*other)));
  if (address) return *address;
  throw ConfigError(
      "this host has no network in common with rank " + std::to_string(*other) +
      "'s and no route to it; say which to use with MALT_INTERFACE (a name, or a network such as "
      "10.0.0.0/8)");
}

// Checks that this process can open enough descriptors: one for the connection to each other host,
// and one for each rank whose first proxy is this one. To others, a rank that can accept no more
// calls would look like a rank behind a firewall.
void check_descriptors(const host::Control& control) {
  const std::vector<int>& locals = control.locals();
  const std::size_t hosts = control.hosts().size() - 1;
  std::size_t callers = 0;
  for (int r = 0; r < control.size(); ++r) {
    if (!control.is_local(r) && locals[first_proxy(r, locals)] == control.rank()) ++callers;
  }
  std::vector<Descriptor> there;
  while (there.size() < hosts + callers) {
    Descriptor one(eventfd(0, EFD_CLOEXEC));
    if (!one) {
      rlimit limit{};
      getrlimit(RLIMIT_NOFILE, &limit);
      throw ConfigError("needs " + std::to_string(hosts + callers) +
                        " open files more for connections, and can have " +
                        std::to_string(there.size()) + " of " + std::to_string(limit.rlim_cur) +
                        " in all: " + std::strerror(errno) + "; raise ulimit -n");
    }
    there.push_back(std::move(one));
  }
}

void check_encryption(const std::vector<Networks>& networks, const std::vector<int>& members) {
  const auto is_encrypted = [&](int r) {
    return networks[static_cast<std::size_t>(r)].is_encrypted;
  };
  const int first = members.front();
  for (int r : members) {
    if (is_encrypted(r) == is_encrypted(first)) continue;
    throw ConfigError("rank " + std::to_string(first) + " has MALT_TLS " +
                      std::string(is_encrypted(first) ? "" : "not ") + "set and rank " +
                      std::to_string(r) + " has it " + (is_encrypted(r) ? "" : "not ") +
                      "set; set it for every rank or for none");
  }
}

}  // namespace

// ---- joining ----

Engine::Engine(Bootstrap& bootstrap, host::Control& control, const EngineOptions& options)
    : control_(control),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      alarm_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      listener_stops_(eventfd(0, EFD_CLOEXEC)),
      news_(options.news),
      probes_(control, settings_,
              [this](int fd) { add_to_epoll(fd, EPOLLIN | EPOLLOUT | EPOLLET); }),
      unreached_since_(control.hosts().size()),
      ended_elsewhere_(static_cast<std::size_t>(control.size())) {
  for (auto& since : unreached_since_) since.store(kReached);
  Networks mine{};
  attempt(mine, [&] {
    if (!epoll_ || !alarm_ || !listener_stops_) {
      throw ConfigError(std::string("cannot watch connections: ") + std::strerror(errno) +
                        "; raise the limit on open files (ulimit -n)");
    }
    tls_ = tcp::TlsContext::from_environment();
    mine = own_networks(tls_.get());
    if (options.rdma == Rdma::kNever) return;
    if (tls_ != nullptr) {
      constexpr const char* kWhy = "MALT_TLS asks for encryption, which RDMA has not";
      if (options.rdma == Rdma::kRequired) throw ConfigError(std::string(kWhy) + "; choose tcp");
      return set_text(mine.adapter.text, kWhy);
    }
    const auto settings = verbs::DeviceSettings::from_environment();
    try {
      device_ = verbs::Device::open(verbs::Library::load(), settings);
      mine.adapter.is_there = true;
      mine.adapter.fabric = device_->choice().fabric;
      set_text(mine.adapter.text, describe(device_->choice()));
    } catch (const ConfigError& error) {
      if (options.rdma == Rdma::kRequired || settings.is_set()) throw;
      set_text(mine.adapter.text, error.what());
    }
  });
  const auto networks = call_roll(bootstrap, mine, options.timeout);
  throw_if_any_failed(networks);
  check_encryption(networks, control.members());
  std::vector<AdapterRecord> adapters;
  for (const Networks& one : networks) adapters.push_back(one.adapter);
  use_rdma(choose_rdma(bootstrap, control, adapters, device_ ? &*device_ : nullptr, options.rdma,
                       options.timeout));

  Listening listening{};
  attempt(listening, [&] {
    auto [socket, address] = tcp::listen_at(pick_address(options, networks, control));
    const int listener = socket.get();
    listening.address = address;
    settings_.key =
        tcp::authenticate(networks[static_cast<std::size_t>(control.members().front())].nonce,
                          std::as_bytes(std::span(options.secret.data(), options.secret.size())));
    settings_.own = address.with_port(0);
    settings_.tls = tls_.get();
    settings_.silence = options.silence;
    listener_.emplace(std::move(socket), settings_.key, static_cast<std::uint32_t>(control.rank()),
                      address, settings_.tls, settings_.silence, settings_.silence);
    check_descriptors(control);
    try {
      start_witness(options.witness, listener);
    } catch (const ConfigError& error) {
      set_text(listening.without_witness, error.what());
    }
  });
  const auto addresses = call_roll(bootstrap, listening, options.timeout);
  throw_if_any_failed(addresses);
  for (std::size_t r = 0; r < addresses.size(); ++r) {
    settings_.addresses.push_back(addresses[r].address.with_scope_of(settings_.own));
    const std::string reason = get_text(addresses[r].without_witness);
    if (!reason.empty()) why_[r] += "; its death would be found by silence alone: " + reason;
  }
  listener_->expect(settings_.addresses);

  add_to_epoll(alarm_.get(), EPOLLIN);
  last_tend_ = Clock::now();
  listened_.store(last_tend_);
  for (const std::vector<int>& host : control.hosts()) {
    if (&host != &control.hosts()[static_cast<std::size_t>(control.own_host())]) {
      uplinks_.emplace_back(control, settings_, host);
    }
  }
  for (Uplink& one : uplinks_) {
    const int shared = shares_with(one.host());
    if (shared >= 0 && shared < control.rank()) {
      one.await(shared, Clock::now());
      add_to_epoll(one.fd(), EPOLLIN | EPOLLOUT | EPOLLET);
    } else {
      call(one, Clock::now());
    }
  }
  thread_ = start_quiet_thread([this] { run(); });

  // The time limit begins here: exchanges and proofs have taken none of the connections' time.
  const auto deadline = Clock::now() + options.timeout;
  Listening reached{};
  try {
    listener_thread_ = start_quiet_thread([this] { run_listener(); });
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait_until(lock, deadline, [this] { return is_connected(); })) {
        set_text(reached.error, who_is_missing());
      }
    }
    throw_if_any_failed(call_roll(bootstrap, reached, options.timeout));
  } catch (...) {
    leave(nanoseconds::zero());
    throw;
  }
}

Engine::~Engine() { leave(nanoseconds::zero()); }

void Engine::start_witness(const std::string& program, int listener) {
  WitnessOrder order{};
  order.token = token_of(settings_.key, control_.rank(), listener_->listening());
  order.hosts = static_cast<std::uint32_t>(control_.hosts().size());
  order.own_host = static_cast<std::uint32_t>(control_.own_host());
  order.limit_ms = static_cast<std::uint64_t>(
      std::chrono::ceil<std::chrono::milliseconds>(settings_.silence).count());
  witness_.emplace(program, listener, order);
}

// Applies the choice: which ranks are reached by RDMA, and the adapter if any rank is.
void Engine::use_rdma(RdmaChoice choice) {
  settings_.rdma = std::move(choice.is_used);
  why_ = std::move(choice.why);
  settings_.most_ranks = 0;
  settings_.device = nullptr;
  for (const std::vector<int>& host : control_.hosts()) {
    settings_.most_ranks = std::max(settings_.most_ranks, host.size());
    if (control_.is_local(host[0])) continue;
    const bool is_used = settings_.rdma[static_cast<std::size_t>(host[0])];
    if (is_used) settings_.device = &*device_;
    has_streams_ = has_streams_ || !is_used;
  }
  if (settings_.device == nullptr) return device_.reset();
  add_to_epoll(device_->event_fd(), EPOLLIN);
}

// Links that the device's events concern fail.
void Engine::hear_device() {
  while (const auto event = device_->next_event()) {
    for (Uplink& one : uplinks_) one.hear_adapter(*event);
    for (Downlink& one : downlinks_) one.hear_adapter(*event);
    if (event->is_last) {
      epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, device_->event_fd(), nullptr);
      return;
    }
  }
}

std::string Engine::adapter_trouble() {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const Uplink& one : uplinks_) {
    if (one.adapter_trouble().empty() || text.find(one.adapter_trouble()) != std::string::npos) {
      continue;
    }
    text += (text.empty() ? "" : "; ") + one.adapter_trouble();
  }
  for (const auto& [rank, why] : refusals_) {
    text += (text.empty() ? "rank " : "; rank ") + std::to_string(rank) +
            " cannot be let write: " + why;
  }
  return text.empty() ? text : "by " + describe(device_->choice()) + ": " + text;
}

std::string Engine::why(int rank) const { return why_[static_cast<std::size_t>(rank)]; }

bool Engine::is_connected() {
  const auto now = Clock::now();
  bool all = true;
  for (Uplink& one : uplinks_) all = one.can_call(now) && all;
  return all;
}

std::string Engine::who_is_missing() const {
  std::string text;
  for (const Uplink& one : uplinks_) {
    if (one.state() == Uplink::State::kUp && !one.is_trying()) continue;
    text += (text.empty() ? "cannot connect from " + settings_.own.host() + " to " : "; ") +
            (one.reason().empty() ? describe_ranks(one.host()) + ": no answer" : one.reason());
  }
  return text + "; is a firewall in between? MALT_INTERFACE says which network to use";
}

// ---- what the program's thread calls ----

std::shared_ptr<Attachment> Engine::attach(std::uint32_t id,
                                           std::shared_ptr<const host::SegmentMemory> memory) {
  auto attachment = std::make_shared<Attachment>(id, std::move(memory));
  if (has_rdma()) {
    const host::SegmentMemory& there = *attachment->memory;
    const MailboxShape& shape = there.shape().mailbox;
    const std::uint64_t most = verbs::Sender::most_payload_bytes(*device_, settings_.most_ranks);
    if (shape.slot_bytes() > most) {
      throw ConfigError("an update may take " + std::to_string(shape.slot_bytes()) +
                        " bytes here, and " + device_->choice().name + ", which carries " +
                        std::to_string(device_->choice().longest_write_bytes) +
                        " as one write, takes at most " + std::to_string(most) +
                        " as one update; use several smaller vectors, or transport tcp");
    }
    attachment->mailbox.emplace(*device_, std::span(there.mailbox(control_.rank()), shape.bytes()),
                                "a segment's mailbox");
    for (int r : control_.locals()) {
      const std::size_t begin = shape.cursor(0);
      attachment->cursors.emplace_back(
          *device_, std::span(there.mailbox(r) + begin, shape.ranks() * sizeof(Cursor)),
          "a segment's cursors");
    }
  }
  const std::lock_guard lock(mutex_);
  last_attached_ = id;
  attachments_[id] = attachment;
  changed_segments_.add(*attachment);  // the state at its beginning has to be sent
  if (has_rdma()) wake();              // to say where others may write
  return attachment;
}

void Engine::detach(std::uint32_t id) noexcept {
  const std::lock_guard lock(mutex_);
  erase(id);
}

void Engine::erase(std::uint32_t id) {
  detached_ += attachments_.erase(id);
  for (Uplink& one : uplinks_) one.forget(id);
}

void Engine::flush(Attachment& attachment, std::size_t bytes, bool may_lag) noexcept {
  number_change(attachment, !may_lag);
  if (may_lag) return drive(true);
  if (bytes > (has_streams_ ? kLendAHand : kLendAHandByRdma)) return wake();
  if (bytes > 0 && has_streams_ && may_wait(attachment, bytes)) return hold_back();
  drive();
  if (!has_streams_) return;
  held_updates_ = held_bytes_ = 0;
  last_active_ = Clock::now();
}

// E3.
void Engine::acknowledge(Attachment& attachment) noexcept {
  number_change(attachment, true);
  // Put off once only: this rank is about to scatter an answer, which also carries these cursors.
  if (answers_ >= kBurst && !std::exchange(owes_answer_, true) && keeps_away_.load()) {
    return noted_.store(true);
  }
  drive();
}

// Whether this update may be held back. Only under QUEUE, where no newer update replaces it
// meanwhile; only updates of one segment, so that none overtakes another; and only while this rank
// takes care of the connections when it waits.
bool Engine::may_wait(const Attachment& attachment, std::size_t bytes) noexcept {
  const host::SegmentShape& shape = attachment.memory->shape();
  const auto now = Clock::now();
  const bool is_soon = now - std::exchange(last_active_, now) < kSoon;
  const bool has_come = has_come_.exchange(false);
  owes_answer_ = false;
  answers_ = is_soon && has_come ? answers_ + 1 : 0;
  burst_ = is_soon && !has_come && shape.policy == Policy::kQueue ? burst_ + 1 : 0;
  const bool is_same = std::exchange(held_segment_, attachment.id) == attachment.id;
  held_bytes_ += bytes;
  return burst_ >= kBurst && is_same && held_bytes_ < kHeldBytes &&
         ++held_updates_ * 2 <= shape.mailbox.depth() && control_.hosts().size() <= kMostPolled;
}

// E3.
void Engine::hold_back() noexcept {
  holds_back_.store(true);
  if (!away_briefly_.load() && asleep_.exchange(false)) eventfd_write(alarm_.get(), 1);
}

// With RDMA alone the rank waits for the engine's thread, whose turn is short. Otherwise that
// thread would post update after update, on the core of another rank, while this rank fills its
// slots and then has nothing to do.
bool Engine::take_turn(std::unique_lock<std::mutex>& lock) noexcept {
  for (std::optional<Clock::time_point> end;; sched_yield()) {
    // The engine's thread goes first: with a mutex alone it would starve.
    if (!queued_.load() && lock.try_lock()) return true;
    if (has_streams_) return false;
    const auto now = Clock::now();
    if (!end) end = now + kTurn;
    if (now >= *end) return false;
  }
}

// E2.
void Engine::drive(bool may_lag) noexcept {
  wanted_.store(true);
  while (wanted_.load()) {
    std::unique_lock lock(mutex_, std::defer_lock);
    if (!take_turn(lock)) return;  // the thread that has the lock looks at wanted_ after it
    if (!wanted_.exchange(false)) continue;
    const auto now = Clock::now();
    if (holds_back_.exchange(false)) take_in_polled(now);  // saves waking the thread
    pump(now, false, may_lag);
    lags_.store(may_lag);
    turns_.fetch_add(1);
    if (is_blocked_.load() && !away_briefly_.load() && keeps_away_.exchange(false)) {
      eventfd_write(alarm_.get(), 1);
    }
  }
}

std::size_t Engine::take_in(Downlink& downlink, bool to_the_end, Clock::time_point now) {
  const std::uint64_t before = downlink.updates();
  const std::size_t bytes = downlink.take_in(attachments_, last_attached_, to_the_end, now);
  if (downlink.updates() != before) has_come_.store(true);
  return bytes;
}

// Takes in on the rank's thread; the engine's thread then keeps away. Returns whether anything
// came.
bool Engine::take_in_polled(Clock::time_point now) {
  if (control_.hosts().size() > kMostPolled) return false;
  bool has_moved = false;
  bool is_polled = false;
  for (Downlink& one : downlinks_) {
    if (one.has_adapter()) continue;  // little comes over such a connection
    is_polled = true;
    has_moved = take_in(one, false, now) > 0 || has_moved;
  }
  if (is_polled) polled_.store(true, std::memory_order_relaxed);
  return has_moved;
}

bool Engine::poll() noexcept {
  if (!has_streams_ || control_.hosts().size() > kMostPolled) {
    if (holds_back_.load() || lags_.load()) drive();
    return false;
  }
  if (queued_.load()) return false;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) {
    polled_.store(true, std::memory_order_relaxed);
    return false;
  }
  const auto now = Clock::now();
  const std::uint64_t before = sent_bytes();
  const bool has_come = take_in_polled(now);
  if (holds_back_.exchange(false) || lags_.exchange(false) || is_blocked_.load()) pump(now, false);
  turns_.fetch_add(1);
  last_active_ = now;
  return has_come || sent_bytes() != before;
}

std::uint64_t Engine::sent_bytes() const {
  std::uint64_t bytes = 0;
  for (const Uplink& one : uplinks_) bytes += one.sent_bytes();
  return bytes;
}

void Engine::rest() noexcept {
  if (noted_.exchange(false, std::memory_order_relaxed) || holds_back_.load() || lags_.load()) {
    drive();
  }
  polled_.store(false, std::memory_order_relaxed);
  if (keeps_away_.exchange(false)) eventfd_write(alarm_.get(), 1);
}

void Engine::wake() noexcept {
  wanted_.store(true);
  if (asleep_.exchange(false)) eventfd_write(alarm_.get(), 1);
}

bool Engine::make_room(Attachment& attachment) noexcept {
  const std::lock_guard lock(mutex_);
  bool found = false;
  for (Uplink& one : uplinks_) found = one.make_room(attachment.id) || found;
  return found;
}

void Engine::leave(nanoseconds limit) noexcept {
  if (!thread_.joinable()) return;
  bool all_know =
      limit == nanoseconds::zero();  // others learn from the bootstrap that nothing was made
  {
    std::unique_lock lock(mutex_);
    leaving_ = true;
    pump(Clock::now(), true);
    const auto has_heard = [](const Uplink& one) {
      return one.state() == Uplink::State::kDone || !one.is_needed();
    };
    changed_.wait_for(lock, limit, [&] {
      return is_out() || std::all_of(uplinks_.begin(), uplinks_.end(), [&](const Uplink& one) {
               return has_heard(one) || one.is_unwanted();
             });
    });
    all_know = all_know || is_out() || std::all_of(uplinks_.begin(), uplinks_.end(), has_heard);
    stop_ = true;
  }
  eventfd_write(alarm_.get(), 1);
  eventfd_write(listener_stops_.get(), 1);
  thread_.join();
  if (listener_thread_.joinable()) listener_thread_.join();
  const std::lock_guard lock(mutex_);  // the watcher and waiting calls may still drive it
  for (Uplink& one : uplinks_) one.hang_up();
  downlinks_.clear();
  if (witness_) witness_->dismiss(all_know);
  witness_.reset();
  listener_.reset();
}

// ---- the thread ----

void Engine::run() {
  const auto tick = std::clamp<nanoseconds>(settings_.silence / 16, std::chrono::milliseconds(1),
                                            std::chrono::milliseconds(100));
  nanoseconds limit = tick;
  bool is_busy = false;
  bool in_burst = false;  // the rank held something back before the last turn
  std::array<epoll_event, 64> events;
  for (;;) {
    const bool is_polled = polled_.exchange(false, std::memory_order_relaxed);
    const bool rank_is_at_it = is_polled || in_burst || holds_back_.load();
    if (rank_is_at_it) keep_away(in_burst);
    asleep_.store(true);
    const bool wait =
        !is_busy && !rank_is_at_it && !wanted_.load() && !holds_back_.load();  // E2, E3
    const auto limit_ms = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                 wait ? static_cast<int>(limit_ms) : 0);
    asleep_.store(false);
    queued_.store(true);
    const std::lock_guard lock(mutex_);
    queued_.store(false);
    if (stop_) return;
    wanted_.store(false);
    in_burst = holds_back_.exchange(false);
    const auto now = Clock::now();
    for (int i = 0; i < count; ++i) {
      if (events[static_cast<std::size_t>(i)].data.fd == alarm_.get()) {
        eventfd_t value = 0;
        eventfd_read(alarm_.get(), &value);
      }
      if (device_ && events[static_cast<std::size_t>(i)].data.fd == device_->event_fd()) {
        hear_device();
      }
    }
    is_busy = false;
    for (Downlink& one : downlinks_) {
      is_busy = take_in(one, true, now) >= Downlink::kTurn || is_busy;
    }
    listened_.store(now);
    pump(now, true);
    if (now - last_tend_ >= tick) tend(now);
    settle(now);
    const bool is_soon =
        !probes_.empty() || std::any_of(downlinks_.begin(), downlinks_.end(),
                                        [](const Downlink& one) { return one.is_held_up(); });
    limit = is_soon ? std::min<nanoseconds>(tick, Probes::kFirstPatience) : tick;
  }
}

void Engine::keep_away(bool in_burst) {
  const auto end = Clock::now() + (control_.locals().size() == 1 ? kAwayAlone : kAway);
  keeps_away_.store(true);
  pollfd alarm{alarm_.get(), POLLIN, 0};
  asleep_.store(true);  // E2, E3
  for (bool is_rank_at_it = true; is_rank_at_it;) {
    const std::uint64_t before = turns_.load();
    away_briefly_.store(false);
    away_briefly_.store(in_burst || holds_back_.load() || is_blocked_.load());
    const nanoseconds left = std::max(end - Clock::now(), nanoseconds::zero());
    const timespec nap{0, away_briefly_.load() ? kHeldBack.count() : left.count()};
    if (wanted_.load() || ppoll(&alarm, 1, &nap, nullptr) != 0) break;
    is_rank_at_it = turns_.load() != before && Clock::now() < end;
  }
  keeps_away_.store(false);
  away_briefly_.store(false);
}

void Engine::add_to_epoll(int fd, std::uint32_t events) const {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (fd >= 0) epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

void Engine::call(Uplink& uplink, Clock::time_point now) {
  if (uplink.call(++calls_, now)) add_to_epoll(uplink.fd(), EPOLLIN | EPOLLOUT | EPOLLET);
}

// The listener has a thread of its own. A handshake takes as long as sending many updates, and the
// scheduler would hold that time against the engine's thread. The lock is taken only to add callers
// that have been let in.
void Engine::run_listener() {
  std::array<pollfd, 2> wait{{{listener_->fd(), POLLIN, 0}, {listener_stops_.get(), POLLIN, 0}}};
  while (wait[1].revents == 0) {
    if (std::vector<tcp::Caller> callers = listener_->ready(); !callers.empty())
      let_in(std::move(callers));
    ::poll(wait.data(), wait.size(), -1);
  }
}

// Callers that it does not keep are closed.
void Engine::let_in(std::vector<tcp::Caller> callers) {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  for (tcp::Caller& caller : callers) {
    const auto rank = static_cast<int>(caller.introduction.rank);
    const bool is_known = rank >= 0 && rank < control_.size() && !control_.is_local(rank);
    if (!is_known || !control_.is_live(rank)) continue;                             // closes it
    if (caller.introduction.number <= control_.member(rank).link.load()) continue;  // an old call
    Downlink& downlink = downlinks_.emplace_back(
        control_, settings_, std::make_shared<tcp::Stream>(std::move(caller.stream)),
        caller.introduction, now);
    add_to_epoll(downlink.fd(), EPOLLIN | EPOLLOUT | EPOLLET);
    for (Uplink& one : uplinks_) {
      if (one.state() != Uplink::State::kAwaiting || one.proxy() != rank) continue;
      downlink.join(one);
      one.share(downlink, ++calls_, now);
    }
  }
  wake();  // their first frames may have come
}

// The rank of `host` with which this rank shares a connection, or -1: each is the first proxy of
// the other. The lower of the two ranks calls, for both.
int Engine::shares_with(const std::vector<int>& host) const {
  const int proxy = host[first_proxy(control_.rank(), host)];
  const std::vector<int>& locals = control_.locals();
  const bool is_mutual = locals[first_proxy(proxy, locals)] == control_.rank();
  return is_mutual && !has_rdma_with(proxy) && control_.is_live(proxy) ? proxy : -1;
}

// The rank that this one has called now speaks over the same connection.
void Engine::share(Uplink& uplink, Clock::time_point now) {
  const std::optional<Uplink::Shared> shared = uplink.take_shared();
  if (!shared) return;
  if (shares_with(uplink.host()) != uplink.proxy() || uplink.proxy() < control_.rank()) {
    return uplink.partner_is_over(false, "wants to share a connection that is not shared");
  }
  Downlink& downlink = downlinks_.emplace_back(control_, settings_, uplink.stream(), shared->call,
                                               now, shared->unparsed);
  downlink.join(uplink);
  uplink.join(downlink);
  wake();  // more may have come
}

// E4. A segment that this rank has closed stays in closing_ until it can be removed.
void Engine::take_changes() {
  changed_segments_.take([this](const std::shared_ptr<Attachment>& changed) {
    if (!attachments_.contains(changed->id))
      return;  // it was not made after all, or all ranks have closed it
    for (Uplink& one : uplinks_) one.note(changed);
    if (!changed->memory->is_closed(control_.rank())) return;
    if (!std::exchange(changed->is_closing, true)) closing_.push_back(changed);
  });
}

std::uint64_t Engine::looks() {
  const std::lock_guard lock(mutex_);
  std::uint64_t looks = looks_;
  for (const Uplink& one : uplinks_) looks += one.looks();
  return looks;
}

void Engine::pump(Clock::time_point now, bool with_answers, bool may_lag) {
  take_changes();
  for (Uplink& one : uplinks_) {
    const int before = one.adapter_fd();
    one.pump(attachments_, leaving_, with_answers, may_lag, now);
    if (one.adapter_fd() != before) add_to_epoll(one.adapter_fd(), EPOLLIN | EPOLLET);
    share(one, now);
  }
  is_blocked_.store(std::any_of(uplinks_.begin(), uplinks_.end(),
                                [](const Uplink& one) { return one.is_blocked(); }));
}

// Removes connections that have ended, and calls again where one was lost.
void Engine::settle(Clock::time_point now) {
  for (auto one = downlinks_.begin(); one != downlinks_.end();) {
    if (one->end() == Downlink::End::kLost) probes_.begin(one->sender(), true, now);
    if (one->end() == Downlink::End::kBroken) turn_away(one->sender());
    if (one->end() == Downlink::End::kRefused && has_rdma_with(one->sender())) {
      refusals_[one->sender()] = one->reason();
    }
    one = one->end() == Downlink::End::kNot ? std::next(one) : downlinks_.erase(one);
  }
  for (Uplink& one : uplinks_) {
    if (const auto lost = one.take_lost()) probes_.begin(*lost, false, now);
  }
  probe(now);
  for (Uplink& one : uplinks_) {
    unreached_since_[static_cast<std::size_t>(control_.host_of(one.host()[0]))].store(
        one.down_since().value_or(kReached));
    if (is_out()) one.hang_up();
    if (is_out() || one.state() != Uplink::State::kOver || now - one.last_call() < kRedial) {
      continue;
    }
    call(one, now);
  }
  changed_.notify_all();
}

// Whether the others go on without this rank.
bool Engine::is_out() const { return control_.is_left_out(control_.rank()); }

void Engine::tend(Clock::time_point now) {
  if (now - last_tend_ > settings_.silence) back_at_ = now;
  last_tend_ = now;
  for (Uplink& one : uplinks_) one.tend(now);
  erase_closed();
  for (Downlink& one : downlinks_) {
    one.tend(attachments_, detached_, settings_.silence, now);
    if (one.end() == Downlink::End::kNot && one.has_adapter()) refusals_.erase(one.sender());
  }
}

// Removes segments that no rank of this host uses any more, and of which no other host needs
// anything.
void Engine::erase_closed() {
  looks_ += closing_.size();
  std::erase_if(closing_, [&](const std::shared_ptr<Attachment>& attachment) {
    const bool is_needed_here = std::any_of(
        control_.locals().begin(), control_.locals().end(),
        [&](int r) { return control_.is_live(r) && !attachment->memory->is_closed(r); });
    if (is_needed_here || !std::all_of(uplinks_.begin(), uplinks_.end(), [&](Uplink& one) {
          return one.is_done_with(*attachment);
        })) {
      return false;
    }
    erase(attachment->id);
    return true;
  });
}

void Engine::note_end(int rank) noexcept {
  std::atomic<bool>& is_noted = ended_elsewhere_[static_cast<std::size_t>(rank)];
  if (is_noted.exchange(true)) return;
  has_ended_elsewhere_.store(true);
  wake();
}

void Engine::probe(Clock::time_point now) {
  if (has_ended_elsewhere_.exchange(false)) {
    for (int r = 0; r < control_.size(); ++r) {
      if (ended_elsewhere_[static_cast<std::size_t>(r)].load()) probes_.note_end(r, now);
    }
  }
  if (!probes_.step(was_away(now), now)) return;
  control_.ring(control_.locals());
  eventfd_write(news_, 1);
}

// Whether this rank was stopped for so long that the others may have evicted it.
bool Engine::was_away(Clock::time_point now) const {
  return now - last_tend_ > settings_.silence || (back_at_ && now - *back_at_ <= settings_.silence);
}

// Takes nothing more from a rank that has broken the protocol. The others will come to suspect it,
// or see the same.
void Engine::turn_away(int rank) {
  if (control_.mark(rank, host::State::kEvicted)) control_.ring(control_.locals());
}

}  // namespace dstorm::remote
