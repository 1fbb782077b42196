#include "dstorm/group/impl.hpp"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

namespace dstorm {
namespace {

using std::chrono::nanoseconds;

// How long a wait may spin on a core before it sleeps; zero where ranks share cores. To wake a
// virtual core that has gone idle takes 50 to 100 us, and it computes more slowly at first. So the
// time is longer than a round takes among ranks that each have a core, and than a stage of a
// pipeline waits for another one with small layers.
nanoseconds spin_time(const host::Control& control) {
  return control.cores() >= static_cast<int>(control.locals().size())
             ? std::chrono::microseconds(300)
             : nanoseconds::zero();
}

}  // namespace

Group::Impl::Impl(Bootstrap& bootstrap, GroupOptions given, const TransportRow& transport,
                  const Deadline& deadline)
    : options(std::move(given)),
      row(transport),
      turns(options.turns ? options.turns : std::make_shared<Turns>()),
      control(bootstrap, row.sharing, deadline),
      waiter(control.bell(control.rank()), spin_time(control), control.superseded(),
             [this] { interrupt_wait(); }),
      news(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!news) {
    throw ConfigError(std::string("cannot watch the other ranks: ") + std::strerror(errno) +
                      "; raise the limit on open files (ulimit -n)");
  }
  waiter.give_way(*turns);
  waiter.record_in(options.recorder.get());
  waiter.tell_when_slow(options.slow_after, options.slow);
  if (control.hosts().size() > 1) connect(bootstrap, deadline);
  watcher.emplace(control, engine.get(), news.get(),
                  WatcherOptions{missed_after(), options.tie, [this] { note_epoch(); },
                                 options.recorder.get()});
}

void Group::Impl::connect(Bootstrap& bootstrap, const Deadline& deadline) {
  engine = std::make_unique<remote::Engine>(
      bootstrap, control,
      remote::EngineOptions{deadline, missed_after(), options.interface, options.toward,
                            options.secret, options.tls, wish_of(row, options, control), news.get(),
                            remote::Witness::find_program(), options.recorder.get()});
  waiter.lend_a_hand(*engine);
}

void Group::Impl::note_epoch() {
  if (!options.changed) return;
  options.changed();
  waiter.call_soon();
}

void Group::Impl::interrupt_wait() {
  check_standing();
  if (options.interrupt) {
    const Turns::Pause pause(*turns, Turns::Code::kInterrupt);
    options.interrupt();
  }
  check_standing();  // the interrupt may have left the job
  if (control.superseded().load() == 0) return;
  const bool is_new = std::exchange(last_wait, waiter.waits()) != waiter.waits();
  const Turns::Pause pause(*turns, Turns::Code::kOwn);  // its `superseded` works for this call
  if (!options.superseded || !options.superseded(is_new)) throw_superseded();
}

void Group::Impl::throw_superseded() {
  throw Superseded("the ranks move to another group; repeat the call there");
}

void Group::Impl::check_standing() const {
  if (left.load(std::memory_order_relaxed)) {
    throw ConfigError(
        "this rank has left the job (leave or finalize was called); nothing can be sent, folded "
        "or waited for any more");
  }
  if (!control.is_left_out(control.rank())) return;
  std::vector<int> others;
  for (int r = 0; r < control.size(); ++r) {
    if (r != control.rank()) others.push_back(r);
  }
  const std::string who = "rank " + std::to_string(control.rank());
  const std::string silence = format_seconds(options.silence);
  const std::string trouble = engine ? engine->adapter_trouble() : "";
  const std::string adapter = trouble.empty() ? "" : "; " + trouble;
  throw PeerError(
      control.state(control.rank()) == host::State::kEvicted
          ? who + " was evicted from the job: the others received no heartbeat from it for " +
                silence + " (was it stopped, or its network cut?), and go on without it" + adapter
          : who + " is cut off: for " + silence +
                " it has received no heartbeat from so many ranks that those it can reach are no "
                "majority; the others may go on without it" +
                adapter,
      others);
}

}  // namespace dstorm
