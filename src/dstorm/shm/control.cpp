#include "dstorm/shm/control.hpp"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "dstorm/slot.hpp"

namespace dstorm::shm {
namespace {

constexpr std::uint32_t kVersion = 1;  // of everything laid out in shared memory

// What each rank tells the others. Fixed size, no pointers: it crosses process borders as bytes.
struct Hello {
  std::uint32_t version;
  std::int32_t pid;
  std::int32_t fd;  // rank 0's control memory; -1 from the others
  Token token;
  cpu_set_t cores;  // that the rank may run on
  char host[64];
  char error[256];  // empty if all is well
};

template <class T>
std::vector<T> gather_all(Bootstrap& bootstrap, const T& mine, std::chrono::nanoseconds timeout) {
  const auto all = bootstrap.allgather(std::as_bytes(std::span(&mine, 1)), timeout);
  std::vector<T> records(all.size());
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].size() != sizeof(T)) {
      throw ConfigError("rank " + std::to_string(r) + " sent " + std::to_string(all[r].size()) +
                        " bytes where " + std::to_string(sizeof(T)) +
                        " were due; all ranks must run the same version of MALT");
    }
    std::memcpy(&records[r], all[r].data(), sizeof(T));
  }
  return records;
}

void set_text(std::span<char> to, std::string_view text) {
  const std::size_t bytes = std::min(text.size(), to.size() - 1);
  std::memcpy(to.data(), text.data(), bytes);
  to[bytes] = '\0';
}

std::string get_text(std::span<const char> from) {
  return std::string(from.data(), strnlen(from.data(), from.size()));
}

void throw_if_any_failed(const std::vector<Hello>& hellos) {
  std::string errors;
  for (std::size_t r = 0; r < hellos.size(); ++r) {
    const std::string error = get_text(hellos[r].error);
    if (error.empty() || errors.find(error) != std::string::npos) continue;
    errors += (errors.empty() ? "rank " : "; rank ") + std::to_string(r) + ": " + error;
  }
  if (!errors.empty()) throw ConfigError(errors);
}

}  // namespace

Control::Control(Bootstrap& bootstrap, std::chrono::nanoseconds timeout)
    : rank_(bootstrap.rank()),
      size_(bootstrap.size()),
      pids_(static_cast<std::size_t>(size_)),
      pidfds_(static_cast<std::size_t>(size_)) {
  const std::size_t bytes =
      round_up(sizeof(ControlHeader) + static_cast<std::size_t>(size_) * sizeof(Member), kPage);
  constexpr std::string_view kWhat = "the group";
  Hello mine{};
  mine.version = kVersion;
  mine.pid = getpid();
  mine.fd = -1;
  CPU_ZERO(&mine.cores);
  sched_getaffinity(0, sizeof(mine.cores), &mine.cores);
  gethostname(mine.host, sizeof(mine.host) - 1);
  if (rank_ == 0) {
    try {
      memory_ = Memory::create(bytes, kWhat);
      memory_.reserve(0, bytes, kWhat);
      header().token = mine.token = make_token();
      header().size = static_cast<std::uint32_t>(size_);
      mine.fd = memory_.fd();
    } catch (const Error& error) {
      set_text(mine.error, error.what());
    }
  }
  const auto hellos = gather_all(bootstrap, mine, timeout);
  throw_if_any_failed(hellos);
  cpu_set_t cores = mine.cores;
  for (const Hello& hello : hellos) CPU_OR(&cores, &cores, &hello.cores);
  cores_ = CPU_COUNT(&cores);
  try {
    for (int r = 0; r < size_; ++r) {
      const Hello& hello = hellos[static_cast<std::size_t>(r)];
      if (hello.version != kVersion) {
        throw ConfigError("rank " + std::to_string(r) + " has memory layout " +
                          std::to_string(hello.version) + ", this rank has " +
                          std::to_string(kVersion) + "; install one version of MALT everywhere");
      }
      pids_[static_cast<std::size_t>(r)] = hello.pid;
      if (r != rank_) peers_.push_back(r);
    }
    if (rank_ != 0) {
      memory_ = Memory::open(hellos[0].pid, hellos[0].fd, bytes, kWhat);
      if (header().token != hellos[0].token) {
        throw ConfigError("process " + std::to_string(hellos[0].pid) +
                          " here is not rank 0, which is on '" + get_text(hellos[0].host) + "'");
      }
    }
    for (int r : peers_) watch(r);
  } catch (const Error& error) {
    const bool elsewhere = std::strncmp(hellos[0].host, mine.host, sizeof(mine.host)) != 0;
    set_text(mine.error, elsewhere
                             ? "transport shm joins ranks of one host only, but rank 0 is on '" +
                                   get_text(hellos[0].host) + "' and this rank on '" +
                                   get_text(mine.host) + "'"
                             : std::string(error.what()));
  }
  if (memory_.data() != nullptr) {
    member(rank_).state.store(State::kAlive, std::memory_order_release);
  }
  // Everyone has mapped the memory and holds a pidfd of everyone else, taken while all were here.
  throw_if_any_failed(gather_all(bootstrap, mine, timeout));
  memory_.close_fd();
}

void Control::watch(int rank) {
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid(rank), 0));
  if (fd < 0) {
    const bool full = errno == EMFILE;
    throw ConfigError(
        "cannot watch rank " + std::to_string(rank) + " (process " + std::to_string(pid(rank)) +
        "): " + std::strerror(errno) +
        (full ? "; each rank needs one descriptor for every other rank: raise ulimit -n"
              : "; Linux 5.3 or later is needed, and one PID namespace"));
  }
  pidfds_[static_cast<std::size_t>(rank)] = Descriptor(fd);
}

Member& Control::member(int rank) const noexcept {
  return *reinterpret_cast<Member*>(memory_.data() + sizeof(ControlHeader) +
                                    static_cast<std::size_t>(rank) * sizeof(Member));
}

bool Control::mark(int rank, State state) noexcept {
  State alive = State::kAlive;
  if (!member(rank).state.compare_exchange_strong(alive, state)) return false;
  header().epoch.fetch_add(1);
  return true;
}

}  // namespace dstorm::shm
