// How the ranks of a host find their control memory. The constructor takes three roll calls, which
// all ranks of the job join. In the first, each rank makes a memory and tells where it is. It then
// maps the memory of the lowest rank that it can, and in the second roll call tells which one that
// is: ranks that have mapped one memory are one host. In the third, each rank reports that it has
// mapped the memory and has a pidfd of each other rank of its host.
//
// The memory holds, one after the other: a header, a Member for each rank, the membership records,
// the words that say which process writes which copy of a board, and the further copies of boards.
// records_at(), tables_at() and boards_at() compute where each part begins.
#include "dstorm/host/control.hpp"

#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "dstorm/host/fork.hpp"
#include "dstorm/host/roll_call.hpp"
#include "dstorm/slot/layout.hpp"

namespace dstorm::host {
namespace {

constexpr std::uint32_t kVersion = 7;  // of everything laid out in shared memory
constexpr std::string_view kWhat = "the group";
// The number of copies of a board. If so many ranks of a host are stopped, each while it writes for
// the same rank of another host, the next writer waits until one of them has died or goes on.
constexpr std::size_t kBoardCopies = 64;

// First record: each rank tells the others its process and the control memory it has made.
struct Hello {
  std::uint32_t version;
  std::int32_t pid;
  std::int32_t fd;  // the control memory it has made
  Token token;
  cpu_set_t cores;  // on which the rank may run
  char host[64];
  char error[256];  // empty if all is well
};

Hello hello_of_process() {
  Hello mine{};
  mine.version = kVersion;
  mine.pid = getpid();
  mine.fd = -1;
  CPU_ZERO(&mine.cores);
  sched_getaffinity(0, sizeof(mine.cores), &mine.cores);
  gethostname(mine.host, sizeof(mine.host) - 1);
  return mine;
}

// Maps the memory of `leader`. Throws ConfigError if this process may not, or if it is not the
// leader's memory.
Memory map_of(const Hello& leader, std::size_t bytes) {
  Memory memory = Memory::open(leader.pid, leader.fd, bytes, kWhat);
  if (std::memcmp(memory.data(), &leader.token, sizeof(leader.token)) != 0) {
    throw ConfigError("process " + std::to_string(leader.pid) + " here is another one than on '" +
                      get_text(leader.host) + "'");
  }
  return memory;
}

// Maps the memory of the lowest of these ranks that has one which this process can map, and notes
// the rank; or, if the ranks must share memory (`must_share`), an error. A host is a set of ranks
// that can really map one memory: host names and boot ids say less, because containers share them.
template <class Place>
Memory find_leader(const std::vector<Hello>& hellos, const std::vector<int>& ranks,
                   const Hello& mine, std::size_t bytes, bool must_share, Place& place) {
  for (int r : ranks) {
    const Hello& leader = hellos[static_cast<std::size_t>(r)];
    try {
      Memory shared = map_of(leader, bytes);
      place.leader = r;
      return shared;
    } catch (const ConfigError& error) {
      if (!must_share) continue;
      const bool elsewhere = get_text(leader.host) != get_text(mine.host);
      set_text(place.error, elsewhere ? "transport shm joins ranks of one host only, but rank " +
                                            std::to_string(r) + " is on '" + get_text(leader.host) +
                                            "' and this rank on '" + get_text(mine.host) + "'"
                                      : std::string(error.what()));
      break;
    }
  }
  return {};
}

void check_versions(const std::vector<Hello>& hellos, const std::vector<int>& members) {
  for (int r : members) {
    const std::uint32_t theirs = hellos[static_cast<std::size_t>(r)].version;
    if (theirs == kVersion) continue;
    throw ConfigError("rank " + std::to_string(r) + " has memory layout " + std::to_string(theirs) +
                      ", this rank has " + std::to_string(kVersion) +
                      "; install one version of MALT everywhere");
  }
}

bool has_ended(const Descriptor& pidfd) {
  pollfd end{pidfd.get(), POLLIN, 0};
  return poll(&end, 1, 0) != 0;
}

// The pidfd of a process, which all groups of this process share. As long as a process that is
// known has not ended, no other one has its number. Empty, and errno says why: the system gives
// none.
std::shared_ptr<const Descriptor> open_process(pid_t pid) {
  static auto& known = *new std::map<pid_t, std::weak_ptr<const Descriptor>>;
  std::shared_ptr<const Descriptor> opened;
  between_forks([&] {
    std::erase_if(known, [](const auto& each) { return each.second.expired(); });
    const auto found = known.find(pid);
    if (found != known.end()) opened = found->second.lock();
    if (opened != nullptr && !has_ended(*opened)) return;
    opened.reset();
    Descriptor made(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    if (!made) return;
    opened = std::make_shared<const Descriptor>(std::move(made));
    known[pid] = opened;
  });
  return opened;
}

}  // namespace

// The second record that ranks give one another: the rank whose memory this rank maps.
struct Control::Place {
  std::int32_t leader;
  char error[256];
};

Control::Control(Bootstrap& bootstrap, Sharing sharing, const Deadline& deadline)
    : rank_(bootstrap.rank()),
      size_(bootstrap.size()),
      members_(bootstrap.members()),
      format_(size_),
      host_of_(static_cast<std::size_t>(size_)),
      pids_(static_cast<std::size_t>(size_)),
      pidfds_(static_cast<std::size_t>(size_)),
      board_read_(static_cast<std::size_t>(size_)) {
  Hello mine = hello_of_process();
  // Every rank makes a memory. Ranks that then map another's drop their own, which was never
  // touched.
  attempt(mine, [&] {
    memory_ = Memory::create(boards_at(size_), boards_at(0), kWhat);
    memory_.reserve(0, kPage, kWhat);
    header().token = mine.token = make_token();
    header().size = static_cast<std::uint32_t>(size_);
    mine.fd = memory_.fd();
  });
  const auto hellos = call_roll(bootstrap, mine, deadline);
  throw_if_any_failed(hellos);
  check_versions(hellos, members_);

  Place place{};
  place.leader = rank_;
  Memory shared = sharing == Sharing::kNone
                      ? Memory()
                      : find_leader(hellos, lower_members(), mine, boards_at(size_),
                                    sharing == Sharing::kAll, place);
  attempt(place, [&] {
    if (place.leader == rank_) memory_.reserve(0, boards_at(0), kWhat);
  });
  const auto places = call_roll(bootstrap, place, deadline);
  throw_if_any_failed(places);
  if (place.leader != rank_) memory_ = std::move(shared);
  note_hosts(places);

  attempt(place, [&] {
    cpu_set_t cores = mine.cores;
    for (int r : locals()) {
      const Hello& hello = hellos[static_cast<std::size_t>(r)];
      pids_[static_cast<std::size_t>(r)] = hello.pid;
      CPU_OR(&cores, &cores, &hello.cores);
      if (r == rank_) continue;
      neighbours_.push_back(r);
      watch(r);
    }
    cores_ = CPU_COUNT(&cores);
  });
  note_states();
  // Now every rank has mapped the memory, and holds a pidfd of every other rank that was opened
  // while all of them lived.
  throw_if_any_failed(call_roll(bootstrap, place, deadline));
  memory_.close_fd();
}

std::vector<int> Control::lower_members() const {
  return {members_.begin(), std::ranges::lower_bound(members_, rank_)};
}

void Control::note_hosts(const std::vector<Place>& places) {
  for (int r : members_) {
    const int leader = places[static_cast<std::size_t>(r)].leader;
    if (leader == r) {
      host_of_[static_cast<std::size_t>(r)] = static_cast<int>(hosts_.size());
      hosts_.push_back({r});
    } else if (leader >= 0 && leader < r &&
               places[static_cast<std::size_t>(leader)].leader == leader) {
      const int host = host_of(leader);
      host_of_[static_cast<std::size_t>(r)] = host;
      hosts_[static_cast<std::size_t>(host)].push_back(r);
    } else {
      throw ConfigError("rank " + std::to_string(r) + " can map the memory of rank " +
                        std::to_string(leader) +
                        ", which itself shares that of a lower rank that " + std::to_string(r) +
                        " cannot map; run all ranks of a host as one user in " +
                        "one PID namespace, or choose transport 'tcp'");
    }
  }
}

void Control::note_states() {
  for (int r : members_) {
    // A rank that joined sooner than this one may also have left or died by now; its state then
    // stays.
    State absent = State::kAbsent;
    if (r == rank_ || !is_local(r)) {
      member(r).state.compare_exchange_strong(absent, State::kAlive);
    }
  }
  for (int r = 0; r < size_; ++r) {
    if (is_member(r)) continue;
    member(r).state.store(State::kDead);
    host_of_[static_cast<std::size_t>(r)] = own_host();
  }
}

void Control::watch(int rank) {
  auto pidfd = open_process(pid(rank));
  if (pidfd == nullptr) {
    const bool full = errno == EMFILE;
    throw ConfigError(
        "cannot watch rank " + std::to_string(rank) + " (process " + std::to_string(pid(rank)) +
        "): " + std::strerror(errno) +
        (full ? "; each rank needs one descriptor for every other rank: raise ulimit -n"
              : "; Linux 5.3 or later is needed, and one PID namespace"));
  }
  pidfds_[static_cast<std::size_t>(rank)] = std::move(pidfd);
}

Member& Control::member(int rank) const noexcept {
  return *reinterpret_cast<Member*>(memory_.data() + sizeof(ControlHeader) +
                                    static_cast<std::size_t>(rank) * sizeof(Member));
}

std::size_t Control::records_at(int rank) const noexcept {
  return sizeof(ControlHeader) + static_cast<std::size_t>(size_) * sizeof(Member) +
         static_cast<std::size_t>(rank) * round_up(format_.words() * sizeof(std::uint64_t), kLine);
}

std::size_t Control::tables_at(int rank) const noexcept {
  const std::size_t words =
      round_up(CopyTable::words_for(kBoardCopies) * sizeof(std::uint64_t), kLine);
  return records_at(size_) + static_cast<std::size_t>(rank) * words;
}

std::size_t Control::boards_at(int rank) const noexcept {
  const std::size_t boards = round_up((kBoardCopies - 1) * sizeof(Board), kPage);
  return round_up(tables_at(size_), kPage) + static_cast<std::size_t>(rank) * boards;
}

CopyTable Control::board_table(int rank) const noexcept {
  auto* words = reinterpret_cast<std::atomic<std::uint64_t>*>(memory_.data() + tables_at(rank));
  return CopyTable({words, CopyTable::words_for(kBoardCopies)});
}

Board& Control::board_copy(int rank, std::size_t copy) const noexcept {
  if (copy == 0) return member(rank);
  return reinterpret_cast<Board*>(memory_.data() + boards_at(rank))[copy - 1];
}

void Control::reserve_board(int rank, std::size_t copy) const {
  if (copy == 0) return;
  const std::size_t begin = boards_at(rank) + (copy - 1) * sizeof(Board);
  const std::size_t page = begin / kPage * kPage;
  memory_.populate(page, round_up(begin + sizeof(Board), kPage) - page, kWhat);
}

const Board& Control::board(int rank) noexcept {
  std::size_t& copy = board_read_[static_cast<std::size_t>(rank)];
  const Board& read = board_copy(rank, copy);
  const std::size_t current = board_table(rank).current();
  if (current == copy) return read;
  const Board& next = board_copy(rank, current);
  const std::uint64_t reached = read.posted.load(std::memory_order_acquire);
  if (next.posted.load(std::memory_order_acquire) < reached) return read;
  copy = current;
  return next;
}

RecordFormat::Cell Control::record(int rank) const noexcept {
  auto* words = reinterpret_cast<std::atomic<std::uint64_t>*>(memory_.data() + records_at(rank));
  return {words, format_.words()};
}

bool Control::mark(int rank, State state) noexcept {
  std::atomic<State>& known = member(rank).state;
  State before = known.load(std::memory_order_acquire);
  const auto is_possible = [&] {
    return before == State::kAlive ||
           (state == State::kDead && (before == State::kEvicted || before == State::kCutOff));
  };
  while (is_possible()) {
    if (known.compare_exchange_weak(before, state)) return true;
  }
  return false;
}

void Control::raise_epoch(std::uint64_t epoch) noexcept {
  const auto given = static_cast<std::uint32_t>(epoch);
  for (std::uint32_t known = this->epoch(); known < given;) {
    if (header().epoch.compare_exchange_weak(known, given)) return;
  }
}

void Control::ring(std::span<const int> ranks) noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // W2
  for (int r : ranks) {
    if (is_local(r)) dstorm::ring(bell(r));
  }
}

}  // namespace dstorm::host
