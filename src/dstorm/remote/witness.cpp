#include "dstorm/remote/witness.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "dstorm/errors.hpp"

namespace dstorm::remote {
namespace {

constexpr const char* kName = "malt-witness";
constexpr const char* kFolder = "dstorm";  // the folder where it is installed, beside the library
constexpr std::array<char, 8> kMagic = {'M', 'A', 'L', 'T', 'e', 'n', 'd', 's'};
constexpr int kQuitMs = 1000;  // how long to wait for the witness to end

// A copy with a number above those that the child gets, so that it is not overwritten when they are
// given out.
Descriptor copy_above_standard(int fd) {
  return Descriptor(fcntl(fd, F_DUPFD_CLOEXEC, kWitnessRank + 1));
}

struct FileActions {
  FileActions() { posix_spawn_file_actions_init(&actions); }
  FileActions(const FileActions&) = delete;
  FileActions& operator=(const FileActions&) = delete;
  ~FileActions() { posix_spawn_file_actions_destroy(&actions); }
  posix_spawn_file_actions_t actions;
};

struct Attributes {
  Attributes() {
    posix_spawnattr_init(&attributes);
    sigset_t signals;
    sigfillset(&signals);
    posix_spawnattr_setsigdefault(&attributes, &signals);
    sigemptyset(&signals);
    posix_spawnattr_setsigmask(&attributes, &signals);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;
  ~Attributes() { posix_spawnattr_destroy(&attributes); }
  posix_spawnattr_t attributes;
};

[[noreturn]] void fail(const std::string& program, int error) {
  throw ConfigError("cannot start " + program + ": " + std::strerror(error));
}

// Runs the program with these descriptors. Its first process only forks, and has ended when this
// returns. So the witness is not a child of the rank.
void spawn(const std::string& program, int control, int listener) {
  const Descriptor one = copy_above_standard(control);
  const Descriptor two = copy_above_standard(listener);
  const Descriptor own(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  const Descriptor three = copy_above_standard(own.get());
  if (!one || !two || !three) fail(program, errno);
  FileActions files;
  posix_spawn_file_actions_adddup2(&files.actions, one.get(), kWitnessControl);
  posix_spawn_file_actions_adddup2(&files.actions, two.get(), kWitnessListener);
  posix_spawn_file_actions_adddup2(&files.actions, three.get(), kWitnessRank);
  posix_spawn_file_actions_addopen(&files.actions, kWitnessNowhere, "/dev/null", O_RDWR, 0);
  const Attributes attributes;
  std::string name = kName;
  char* const arguments[] = {name.data(), nullptr};
  char* const environment[] = {nullptr};
  pid_t child = 0;
  const int error = posix_spawn(&child, program.c_str(), &files.actions, &attributes.attributes,
                                arguments, environment);
  if (error != 0) fail(program, error);
  int status = 0;
  pid_t ended = 0;
  while ((ended = waitpid(child, &status, 0)) < 0 && errno == EINTR) {
  }
  // If waitpid finds nothing, the rank's program has reaped the child first, or ignores its
  // children.
  if (ended == child && status != 0) fail(program, EAGAIN);
}

// The folder of the library as it was opened, and the folder that the path leads to if it is a
// link.
std::vector<std::filesystem::path> folders_of_library() {
  static const char here = 0;
  Dl_info found{};
  if (dladdr(&here, &found) == 0 || found.dli_fname == nullptr) return {};
  std::error_code error;
  const std::filesystem::path opened = std::filesystem::absolute(found.dli_fname, error);
  const std::filesystem::path leads_to = std::filesystem::canonical(found.dli_fname, error);
  return {opened.parent_path(), leads_to.parent_path()};
}

}  // namespace

WitnessToken token_of(const net::Key& key, int rank, const net::Address& listening) {
  const std::string said = "MALT witness: rank " + std::to_string(rank) + " at " +
                           listening.with_scope_of(net::Address()).text() + " has ended";
  const net::Mac mac = net::authenticate(key, std::as_bytes(std::span(said)));
  WitnessToken token{};
  std::memcpy(token.data(), kMagic.data(), kMagic.size());
  std::memcpy(token.data() + kMagic.size(), mac.data(), mac.size());
  return token;
}

bool is_token(const WitnessToken& given, const WitnessToken& right) {
  return net::is_same(std::as_bytes(std::span(given)), std::as_bytes(std::span(right)));
}

std::string Witness::find_program() {
  for (const std::filesystem::path& folder : folders_of_library()) {
    if (!folder.is_absolute()) continue;  // the path is not known
    for (const std::filesystem::path& path : {folder / kName, folder / kFolder / kName}) {
      if (access(path.c_str(), X_OK) == 0) return path;
    }
  }
  return {};
}

Witness::Witness(const std::string& program, int listener, const WitnessOrder& order)
    : control_(Descriptor()) {
  if (program.empty()) {
    throw ConfigError(std::string(kName) + " is not beside the library");
  }
  int theirs = -1;
  control_ = UnforkedDescriptor([&] {
    std::array<int, 2> ends{-1, -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return -1;
    theirs = ends[1];
    return ends[0];
  });
  if (!control_) fail(program, errno);
  const UnforkedDescriptor control{Descriptor(theirs)};
  if (send(control_.get(), &order, sizeof(order), MSG_NOSIGNAL) != sizeof(order)) {
    fail(program, errno);
  }
  spawn(program, control.get(), listener);
}

Witness::~Witness() { dismiss(true); }

void Witness::dismiss(bool all_know) noexcept {
  if (!control_) return;
  const char word = static_cast<char>(all_know ? WitnessWord::kQuit : WitnessWord::kLeft);
  send(control_.get(), &word, sizeof(word), MSG_NOSIGNAL);
  pollfd end{control_.get(), POLLIN, 0};  // the socket ends when the witness does
  if (all_know) poll(&end, 1, kQuitMs);
  control_ = UnforkedDescriptor(Descriptor());
}

}  // namespace dstorm::remote
