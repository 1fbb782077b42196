#include "dstorm/recorder/memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <string>

#include "dstorm/errors.hpp"
#include "dstorm/slot/layout.hpp"

namespace dstorm {
namespace {

std::size_t names_at(int size) {
  return round_up(sizeof(RecorderHeader) + static_cast<std::size_t>(size) * sizeof(RecorderPeer),
                  sizeof(EventCell));
}
std::size_t reports_at(int size) { return names_at(size) + kReportNames * sizeof(ReportName); }
std::size_t changes_at(int size) {
  return reports_at(size) + kReportNames * kReportCells * sizeof(EventCell);
}
std::size_t calls_at(int size) { return changes_at(size) + kChangeCells * sizeof(EventCell); }

[[noreturn]] void throw_unusable(int fd, const std::string& why) {
  throw ConfigError("descriptor " + std::to_string(fd) + " is no memory of a recorder: " + why);
}

}  // namespace

RecorderMemory::RecorderMemory(int fd, bool writes) {
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0) throw_unusable(fd, std::strerror(errno));
  if ((seals & F_SEAL_SHRINK) == 0) throw_unusable(fd, "it is not sealed, and may shrink");
  struct stat status{};
  if (fstat(fd, &status) != 0) throw_unusable(fd, std::strerror(errno));
  bytes_ = static_cast<std::size_t>(status.st_size);
  if (bytes_ < sizeof(RecorderHeader)) {
    throw_unusable(fd, "it has " + std::to_string(bytes_) + " bytes");
  }
  fd_ = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (fd_ < 0) {
    throw ConfigError(std::string("cannot keep a recorder's memory: ") + std::strerror(errno) +
                      "; raise the limit on open files (ulimit -n)");
  }
  void* at = mmap(nullptr, bytes_, writes ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd_, 0);
  if (at == MAP_FAILED) {
    const std::string why = std::strerror(errno);
    ::close(fd_);
    throw ConfigError("cannot map " + std::to_string(bytes_) + " bytes of a recorder: " + why);
  }
  data_ = static_cast<std::byte*>(at);
}

RecorderMemory::~RecorderMemory() {
  munmap(data_, bytes_);
  ::close(fd_);
}

std::size_t RecorderMemory::room_for_cells(int size) const noexcept {
  if (size < 1 || static_cast<std::size_t>(size) > bytes_ / sizeof(RecorderPeer)) return 0;
  const std::size_t begin = calls_at(size);
  return bytes_ <= begin ? 0 : std::bit_floor((bytes_ - begin) / sizeof(EventCell));
}

std::span<RecorderPeer> RecorderMemory::peers(int size) const noexcept {
  return {reinterpret_cast<RecorderPeer*>(data_ + sizeof(RecorderHeader)),
          static_cast<std::size_t>(size)};
}

std::span<ReportName> RecorderMemory::names(int size) const noexcept {
  return {reinterpret_cast<ReportName*>(data_ + names_at(size)), kReportNames};
}

EventRing RecorderMemory::reports(int size, std::size_t name) const noexcept {
  auto* const cells = reinterpret_cast<EventCell*>(data_ + reports_at(size));
  return {&names(size)[name].head, {cells + name * kReportCells, kReportCells}};
}

EventRing RecorderMemory::changes(int size) const noexcept {
  return {&header().changes,
          {reinterpret_cast<EventCell*>(data_ + changes_at(size)), kChangeCells}};
}

EventRing RecorderMemory::calls(int size, std::size_t cells) const noexcept {
  return {&header().calls, {reinterpret_cast<EventCell*>(data_ + calls_at(size)), cells}};
}

}  // namespace dstorm
