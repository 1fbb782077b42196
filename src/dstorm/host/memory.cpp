#include "dstorm/host/memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>
#include <utility>

#include "dstorm/errors.hpp"
#include "dstorm/slot/layout.hpp"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace dstorm::host {
namespace {

constexpr std::size_t kFewBytes = std::size_t{1} << 20;

std::string megabytes(std::size_t bytes) {
  std::ostringstream text;
  if (bytes < 10'000'000) {
    text << bytes << " bytes";
  } else {
    text << bytes / 1'000'000 << " MB";
  }
  return text.str();
}

std::string reason() { return std::strerror(errno); }  // one thread sets up a process's memory

// The number in a file, or `otherwise` if there is none ("max", no such file).
std::size_t read_number(const std::string& path, std::size_t otherwise) {
  std::ifstream file(path);
  std::size_t value = 0;
  return file >> value ? value : otherwise;
}

// Cached file pages that the kernel drops when memory is asked for. The control group counts them
// as used.
std::size_t page_cache(const std::string& path) {
  std::ifstream file(path);
  for (std::string key; file >> key;) {
    std::size_t bytes = 0;
    file >> bytes;
    if (key == "inactive_file") return bytes;
  }
  return 0;
}

// The bytes that the control groups of this process (v2, nested; or v1) leave. Without a limit, v2
// says "max" and v1 gives a number beyond any memory. The bytes in use are read only if there is a
// limit, because the system takes far longer to report them.
std::size_t control_group_headroom() {
  constexpr std::size_t kUnlimited = std::size_t{1} << 62;
  std::size_t least = kUnlimited;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    std::string folder;
    const char* limit = "/memory.max";
    const char* used = "/memory.current";
    if (line.starts_with("0::")) {
      folder = "/sys/fs/cgroup" + line.substr(3);
    } else if (const auto at = line.find(":memory:"); at != std::string::npos) {
      folder = "/sys/fs/cgroup/memory" + line.substr(at + 8);
      limit = "/memory.limit_in_bytes";
      used = "/memory.usage_in_bytes";
    } else {
      continue;
    }
    while (folder.size() >= std::strlen("/sys/fs/cgroup")) {
      const std::size_t most = read_number(folder + limit, kUnlimited);
      if (most < kUnlimited) {
        const std::size_t now = read_number(folder + used, 0) - page_cache(folder + "/memory.stat");
        least = std::min(least, most > now ? most - now : 0);
      }
      folder.erase(folder.find_last_of('/'));
    }
  }
  return least;
}

std::string address_space_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  return "; this process may map " + megabytes(limit.rlim_cur) + " in all: raise ulimit -v";
}

// Beyond the limit, the system would end the process by a signal. The limit is on shared memory as
// on files.
void check_file_limit(std::size_t bytes, std::string_view what) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  if (bytes <= limit.rlim_cur) return;
  throw ConfigError(std::string(what) + " needs shared memory of " + megabytes(bytes) +
                    ", and this process may write files of " + megabytes(limit.rlim_cur) +
                    ": raise the limit (ulimit -f unlimited)");
}

[[noreturn]] void throw_no_room(std::size_t need, std::size_t have, std::string_view what) {
  throw ConfigError(
      std::string(what) + " needs " + megabytes(need) + " of shared memory, but only " +
      megabytes(have) +
      " of memory are available to this process; use fewer ranks, a smaller depth or a "
      "smaller vector, or raise the memory limit of the container");
}

}  // namespace

std::size_t available_bytes() {
  std::size_t available = std::numeric_limits<std::size_t>::max();
  std::ifstream info("/proc/meminfo");
  for (std::string key; info >> key;) {
    std::size_t kilobytes = 0;
    if (key == "MemAvailable:" && info >> kilobytes) {
      available = kilobytes * 1024;
      break;
    }
    info.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::min(available, control_group_headroom());
}

Token make_token() {
  Token token{};
  if (getrandom(token.data(), sizeof(token), 0) != static_cast<ssize_t>(sizeof(token))) {
    throw ConfigError("the system gives no random bytes: " + reason());
  }
  return token;
}

Memory::Memory(int fd, std::size_t bytes, std::string_view what) : size_(bytes), fd_(fd) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) {
    const std::string why = reason();
    close_fd();
    throw ConfigError("cannot map " + megabytes(bytes) + " for " + std::string(what) + ": " + why +
                      address_space_limit());
  }
  data_ = static_cast<std::byte*>(at);
}

Memory Memory::create(std::size_t bytes, std::size_t used, std::string_view what) {
  if (const std::size_t have = available_bytes(); used > have) throw_no_room(used, have, what);
  check_file_limit(bytes, what);
  int fd = memfd_create("malt", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = memfd_create("malt", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) {
    const bool is_forbidden = errno == EPERM || errno == EACCES || errno == ENOSYS;
    throw ConfigError(
        "cannot make shared memory for " + std::string(what) + ": memfd_create: " + reason() +
        (errno == EMFILE ? "; raise the limit on open files (ulimit -n)"
         : is_forbidden  ? "; have the container's seccomp filter allow it (`malt doctor` tries it)"
                         : ""));
  }
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) != 0) {
    const std::string why = reason();
    ::close(fd);
    throw ConfigError("cannot size shared memory for " + std::string(what) + " to " +
                      megabytes(bytes) + ": " + why);
  }
  Memory made(fd, bytes, what);
  made.room_ = bytes;
  return made;
}

Memory Memory::open(pid_t pid, int fd, std::size_t bytes, std::string_view what) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  const std::string namespaces =
      "; ranks that share memory see each other's processes (one PID namespace)";
  const std::string is_other = path + " is not the shared memory of " + std::string(what);
  // On another host, or in another container, the number may be that of any other file. Opening a
  // pipe or a device would have effects.
  std::array<char, 64> target{};
  const auto length = readlink(path.c_str(), target.data(), target.size());
  const std::string_view name(target.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  if (length > 0 && !name.starts_with("/memfd:malt")) throw MemoryGone(is_other + namespaces);
  const int own = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (own < 0) {
    const int error = errno;
    const std::string hint =
        error == EMFILE ? "; raise the limit on open files (ulimit -n)"
                        : "; ranks that share memory run as one user, on one host, and see each "
                          "other's processes (one PID namespace)";
    const std::string text = "cannot open the shared memory of " + std::string(what) + " at " +
                             path + ": " + std::strerror(error) + hint;
    if (error == ENOENT) throw MemoryGone(text);
    throw ConfigError(text);
  }
  struct stat status{};
  if (fstat(own, &status) != 0 || static_cast<std::size_t>(status.st_size) != bytes) {
    ::close(own);
    throw MemoryGone(is_other + ": it has " + std::to_string(status.st_size) +
                     " bytes instead of " + std::to_string(bytes) + namespaces);
  }
  return Memory(own, bytes, what);
}

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      fd_(std::exchange(other.fd_, -1)),
      room_(std::exchange(other.room_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  std::swap(room_, other.room_);
  return *this;
}

Memory::~Memory() {
  if (data_ != nullptr) munmap(data_, size_);
  close_fd();
}

void Memory::reserve(std::size_t offset, std::size_t bytes, std::string_view what) {
  if (bytes == 0) return;
  // fallocate would rather call the OOM killer than fail, so this looks for room first. Looking
  // takes longer than reserving a few pages; for these the room that create() found is enough.
  if (bytes <= std::min(kFewBytes, room_)) {
    room_ -= bytes;
  } else if (const std::size_t have = available_bytes(); bytes > have) {
    throw_no_room(bytes, have, what);
  }
  int failed = 0;
  do {
    failed = fallocate(fd_, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (failed != 0 && errno == EINTR);
  if (failed != 0) throw_no_room(bytes, available_bytes(), what);
}

void Memory::populate(std::size_t offset, std::size_t bytes, std::string_view what,
                      std::size_t wanted) const {
  if (bytes == 0) return;
  wanted = std::max(wanted, bytes);
  if (const std::size_t have = available_bytes(); wanted > have) throw_no_room(wanted, have, what);
  if (madvise(data_ + offset, bytes, MADV_POPULATE_WRITE) == 0) return;
  if (errno != EINVAL) throw_no_room(wanted, available_bytes(), what);
  // Linux before 5.14: writes to each page without changing it.
  for (std::size_t at = offset; at < offset + bytes; at += kPage) {
    __atomic_fetch_or(reinterpret_cast<unsigned char*>(data_ + at), 0, __ATOMIC_RELAXED);
  }
}

void Memory::close_fd() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

}  // namespace dstorm::host
