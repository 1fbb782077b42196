// What a process that is forked from a rank inherits from it.
#include "dstorm/host/fork.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <thread>

#include "tcp_sockets.hpp"

namespace dstorm {
namespace {

using testing_sockets::Pair;

int sockets_here() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the descriptor of another thread, or the one that reads this directory
    const std::string what = std::filesystem::read_symlink(entry.path(), gone).string();
    count += what.starts_with("socket:") ? 1 : 0;
  }
  return count;
}

// The result of `look` in a forked process: 0 to 255.
int in_child(const std::function<int()>& look) {
  const pid_t child = fork();
  if (child == 0) _exit(look());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Fork, IsCountedInTheChildAlone) {
  const std::uint32_t before = forks();
  EXPECT_EQ(in_child([&] { return static_cast<int>(forks() - before); }), 1);
  EXPECT_EQ(in_child([&] { return in_child([&] { return static_cast<int>(forks() - before); }); }),
            2);
  EXPECT_EQ(forks(), before);
}

TEST(Fork, ChildHasNoSocketAndTheRankKeepsItsOwn) {
  const int others = sockets_here();
  Pair pair;
  EXPECT_EQ(sockets_here(), others + 2);
  EXPECT_EQ(in_child(sockets_here), others);
  EXPECT_EQ(testing_sockets::send_text(*pair.caller, "x").bytes, 1);
  EXPECT_TRUE(testing_sockets::eventually(
      [&] { return testing_sockets::take_text(*pair.callee).first == "x"; }));
}

TEST(Fork, ChildHasNoSocketThatAnotherThreadIsAboutToOpenOrClose) {
  const int others = sockets_here();
  const testing_sockets::ListeningSocket listener;
  std::atomic<bool> stop{false};
  std::thread opener([&] {
    while (!stop) {
      net::Stream::connect(listener.at, testing_sockets::loopback(AF_INET), nullptr,
                           std::chrono::seconds(5))
          .reset_at_end();
    }
  });
  for (int i = 0; i < 100; ++i) EXPECT_EQ(in_child(sockets_here), others);
  stop = true;
  opener.join();
}

TEST(Fork, ChildLeavesANumberAloneThatHasAnotherOwnerNow) {
  int number = -1;
  {
    UnforkedDescriptor socket([] { return ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); });
    const UnforkedDescriptor moved = std::move(socket);
    number = moved.get();
  }
  const Descriptor other(dup2(STDERR_FILENO, number));
  ASSERT_EQ(other.get(), number);
  EXPECT_EQ(in_child([&] { return fcntl(number, F_GETFD) < 0 ? 1 : 0; }), 0);
}

TEST(Fork, ChildClosesWhatALibraryOwnsAsLongAsItDoes) {
  const Descriptor owned(dup(STDERR_FILENO));
  const auto is_open = [&] { return fcntl(owned.get(), F_GETFD) < 0 ? 0 : 1; };
  {
    ClosedInChild first(owned.get());
    const ClosedInChild closed = std::move(first);
    EXPECT_EQ(in_child(is_open), 0);
  }
  EXPECT_EQ(in_child(is_open), 1);
  EXPECT_EQ(is_open(), 1);
}

}  // namespace
}  // namespace dstorm
