// Joins the engines of a job. The constructor of Engine does it in these steps, each of which is
// collective:
//   exchange_networks()   each rank tells the others its interfaces and its adapter
//   choose_transports()   all ranks agree on which hosts use adapters (transport_choice.hpp)
//   listen()              each rank picks an address, listens there, starts its witness, and tells
//                         the others the address
//   await_connections()   each rank has called, or been called by, one rank of every other host
// A rank that fails in a step puts its error into its record, and every rank throws that error.
#include "dstorm/remote/engine.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "dstorm/host/quiet_thread.hpp"
#include "dstorm/host/roll_call.hpp"

namespace dstorm::remote {
namespace {

using std::chrono::nanoseconds;

constexpr std::size_t kMostInterfaces = 16;

// The most time that a step may take: the hosts reach one another at once or not at all.
constexpr std::chrono::seconds kStep{30};

}  // namespace

struct InterfaceRecord {
  char name[16];
  net::Address address;
  std::int32_t prefix_bits;
  bool is_loopback;
};

enum class Protection : std::uint8_t { kNone, kKey, kCertificates };  // of TCP

// First record: the network of a rank, in a job of several hosts.
struct Networks {
  net::Key nonce;  // that of the lowest member is part of the job's key
  Protection protection;
  AdapterRecord adapter;
  std::uint32_t interfaces;
  std::array<InterfaceRecord, kMostInterfaces> interface;
  char error[256];
};

namespace {

Protection protection_by(const std::string& tls) {
  if (tls.empty()) return Protection::kKey;
  return tls == "off" ? Protection::kNone : Protection::kCertificates;
}

// Second record: where the rank listens. It is sent again as the last record, to say whether the
// rank has reached all hosts.
struct Listening {
  net::Address address;
  char without_witness[160];  // why it has no witness; empty if it has
  char error[512];
};

Networks own_networks(const std::string& tls) {
  Networks mine{};
  mine.nonce = net::make_key();
  mine.protection = protection_by(tls);
  for (const net::Interface& one : net::interfaces()) {
    if (mine.interfaces == kMostInterfaces) break;
    InterfaceRecord& record = mine.interface[mine.interfaces++];
    set_text(record.name, one.name);
    record.address = one.address;
    record.prefix_bits = one.prefix_bits;
    record.is_loopback = one.is_loopback;
  }
  return mine;
}

std::vector<net::Interface> interfaces_of(const Networks& networks) {
  std::vector<net::Interface> all;
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
      [](const net::Interface& x, const net::Interface& y) { return x.address == y.address; });
}

// The address at which a rank listens and from which it calls: as the user says, or else one at
// which the others can reach it.
net::Address pick_address(const EngineOptions& options, const std::vector<Networks>& networks,
                          const host::Control& control) {
  if (!options.interface.empty()) return net::address_of(options.interface);
  const auto of = [&](int r) -> const Networks& { return networks[static_cast<std::size_t>(r)]; };
  const Networks& mine = of(control.rank());
  const std::vector<int>& members = control.members();
  const auto other =
      std::find_if(members.begin(), members.end(), [&](int r) { return !same_stack(mine, of(r)); });
  if (other == members.end()) return *net::Address::parse("127.0.0.1");
  if (!options.toward.empty()) {
    const auto address = net::address_toward(options.toward);
    if (address && !address->is_loopback()) return *address;
  }
  const auto address = net::choose_address(interfaces_of(mine), interfaces_of(of(*other)));
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

void check_protection(const std::vector<Networks>& networks, const std::vector<int>& members) {
  const auto protection = [&](int r) { return networks[static_cast<std::size_t>(r)].protection; };
  const auto describe = [&](int r) {
    const char* const value = protection(r) == Protection::kNone  ? "off"
                              : protection(r) == Protection::kKey ? "not set"
                                                                  : "a folder";
    return "rank " + std::to_string(r) + " has MALT_TLS " + value;
  };
  const int first = members.front();
  for (int r : members) {
    if (protection(r) == protection(first)) continue;
    throw ConfigError(describe(first) + " and " + describe(r) + "; set it alike for every rank");
  }
}

}  // namespace

Engine::Engine(Bootstrap& bootstrap, host::Control& control, const EngineOptions& options)
    : control_(control),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      listener_stops_(eventfd(0, EFD_CLOEXEC)),
      news_(options.news),
      probes_(control, settings_,
              [this](int fd) { add_to_epoll(fd, EPOLLIN | EPOLLOUT | EPOLLET); }),
      watched_(control.hosts().size(), true),
      unreached_since_(control.hosts().size()),
      ended_elsewhere_(static_cast<std::size_t>(control.size())) {
  for (auto& since : unreached_since_) since.store(kReached);
  const std::vector<Networks> networks = exchange_networks(bootstrap, options);
  std::vector<AdapterRecord> adapters;
  for (const Networks& one : networks) adapters.push_back(one.adapter);
  use_adapter(choose_transports(bootstrap, control, adapters, adapter_.get(), options.adapter,
                                options.deadline.but_within(kStep)));
  listen(bootstrap, options, networks);
  begin_calls();
  thread_ = start_quiet_thread([this] { run(); });
  await_connections(bootstrap, options);
}

// Collective. Tells the others what this rank has, and opens its adapter if one may be used.
std::vector<Networks> Engine::exchange_networks(Bootstrap& bootstrap,
                                                const EngineOptions& options) {
  Networks mine{};
  attempt(mine, [&] {
    if (!epoll_ || !handoff_.alarm() || !listener_stops_) {
      throw ConfigError(std::string("cannot watch connections: ") + std::strerror(errno) +
                        "; raise the limit on open files (ulimit -n)");
    }
    mine = own_networks(options.tls);
    if (mine.protection == Protection::kCertificates) {
      tls_ = std::make_unique<net::TlsContext>(options.tls);
    } else if (mine.protection == Protection::kKey) {
      net::check_tls();  // the context needs the key, which is made later
    }
    mine.adapter = open_adapter(options.adapter);
  });
  std::vector<Networks> networks = call_roll(bootstrap, mine, options.deadline.but_within(kStep));
  throw_if_any_failed(networks);
  check_protection(networks, control_.members());
  return networks;
}

// Throws ConfigError if the user asks for an adapter that cannot be used.
AdapterRecord Engine::open_adapter(const AdapterWish& wish) {
  using Use = AdapterWish::Use;
  AdapterRecord none{};
  if (wish.use == Use::kNever) return none;
  if (tls_ != nullptr) {
    constexpr const char* kWhy = "MALT_TLS asks for encryption, which adapters do not do";
    if (wish.use == Use::kRequired) throw ConfigError(std::string(kWhy) + "; choose tcp");
    set_text(none.text, kWhy);
    return none;
  }
  try {
    adapter_ = wish.open();
    return record_of(*adapter_);
  } catch (const ConfigError& error) {
    if (wish.use == Use::kRequired || wish.is_named) throw;
    set_text(none.text, error.what());
    return none;
  }
}

// Collective. Begins to listen, and learns where the others do.
void Engine::listen(Bootstrap& bootstrap, const EngineOptions& options,
                    const std::vector<Networks>& networks) {
  Listening listening{};
  attempt(listening, [&] {
    auto [socket, address] = net::listen_at(pick_address(options, networks, control_));
    const int listener = socket.get();
    listening.address = address;
    settings_.key =
        net::authenticate(networks[static_cast<std::size_t>(control_.members().front())].nonce,
                          std::as_bytes(std::span(options.secret.data(), options.secret.size())));
    settings_.own = address.with_port(0);
    if (protection_by(options.tls) == Protection::kKey) {
      tls_ = std::make_unique<net::TlsContext>(settings_.key);
    }
    settings_.tls = tls_.get();
    settings_.suspect_after = options.suspect_after;
    settings_.recorder = options.recorder;
    listener_.emplace(std::move(socket), settings_.key, static_cast<std::uint32_t>(control_.rank()),
                      address, settings_.tls, settings_.suspect_after, settings_.suspect_after);
    check_descriptors(control_);
    try {
      start_witness(options.witness, listener);
    } catch (const ConfigError& error) {
      set_text(listening.without_witness, error.what());
    }
  });
  const auto addresses = call_roll(bootstrap, listening, options.deadline.but_within(kStep));
  throw_if_any_failed(addresses);
  for (std::size_t r = 0; r < addresses.size(); ++r) {
    settings_.addresses.push_back(addresses[r].address.with_scope_of(settings_.own));
    const std::string reason = get_text(addresses[r].without_witness);
    if (!reason.empty())
      why_[r] += "; its death is noticed only after the suspect_after: " + reason;
  }
  listener_->expect(settings_.addresses);
}

void Engine::begin_calls() {
  add_to_epoll(handoff_.alarm().get(), EPOLLIN);
  last_tend_ = Clock::now();
  listened_.store(last_tend_);
  for (const std::vector<int>& host : control_.hosts()) {
    if (&host != &control_.hosts()[static_cast<std::size_t>(control_.own_host())]) {
      uplinks_.emplace_back(control_, settings_, host);
    }
  }
  for (Uplink& one : uplinks_) {
    const int shared = shares_with(one.host());
    if (shared >= 0 && shared < control_.rank()) {
      one.await(shared, Clock::now());
      add_to_epoll(one.fd(), EPOLLIN | EPOLLOUT | EPOLLET);
    } else {
      call(one, Clock::now());
    }
  }
}

// Collective. Throws the same ConfigError on all ranks if one of them cannot reach a host.
void Engine::await_connections(Bootstrap& bootstrap, const EngineOptions& options) {
  // A quarter of the time is for telling one another who could not connect.
  const nanoseconds limit = std::min<nanoseconds>(options.deadline.left() / 4 * 3, kStep);
  Listening reached{};
  try {
    listener_thread_ = start_quiet_thread([this] { run_listener(); });
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait_for(lock, limit, [this] { return is_connected(); })) {
        set_text(reached.error, who_is_missing());
      }
    }
    throw_if_any_failed(call_roll(bootstrap, reached, options.deadline.but_within(kStep)));
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
      std::chrono::ceil<std::chrono::milliseconds>(settings_.suspect_after).count());
  witness_.emplace(program, listener, order);
}

// Applies the choice. An adapter by which no rank is reached is closed.
void Engine::use_adapter(TransportChoice choice) {
  settings_.by_adapter = std::move(choice.by_adapter);
  why_ = std::move(choice.why);
  bool is_used = false;
  for (const std::vector<int>& host : control_.hosts()) {
    if (control_.is_local(host[0])) continue;
    (goes_by_adapter(host[0]) ? is_used : has_streams_) = true;
  }
  if (!is_used) adapter_.reset();
  settings_.adapter = adapter_.get();
  if (adapter_) add_to_epoll(adapter_->event_fd(), EPOLLIN);
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
            " cannot be given access to write: " + why;
  }
  if (text.empty()) return text;
  return "transport " + std::string(adapter_->transport()) + " does not get through by " +
         adapter_->describe() + ": " + text;
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

}  // namespace dstorm::remote
