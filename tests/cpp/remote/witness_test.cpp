// A rank's witness: what it reports, when, and that it leaves nothing behind.
#include "dstorm/remote/witness.hpp"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "dstorm/errors.hpp"
#include "tcp_sockets.hpp"

namespace dstorm::remote {
using net::Address;
using net::Key;
namespace {

using testing_sockets::eventually;
using testing_sockets::ListeningSocket;
using testing_sockets::loopback;
using testing_sockets::raw_connect;
using testing_sockets::raw_take;
using namespace std::chrono_literals;

constexpr int kRank = 3;
constexpr std::uint32_t kHosts = 3, kOwnHost = 1;
constexpr std::uint64_t kLongMs = 60'000;

WitnessOrder order_for(const Address& at, std::uint64_t limit_ms) {
  return {token_of(Key{}, kRank, at), kHosts, kOwnHost, limit_ms};
}

std::string text_of(const WitnessToken& token) {
  return {reinterpret_cast<const char*>(token.data()), token.size()};
}

std::vector<pid_t> children() {
  std::ifstream file("/proc/self/task/" + std::to_string(getpid()) + "/children");
  std::vector<pid_t> found;
  for (pid_t pid = 0; file >> pid;) found.push_back(pid);
  return found;
}

bool has_ended(pid_t pid) { return waitpid(pid, nullptr, WNOHANG) == pid; }

void die_with_parent() { prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0); }

// A rank with a witness, which is this process' child: it adopts orphans, as `malt run` does.
class Rank {
 public:
  using Life = std::function<void(std::unique_ptr<ListeningSocket>, std::optional<Witness>)>;

  explicit Rank(const Life& life = {}, std::uint64_t limit_ms = kLongMs) {
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe(ends.data()), 0);
    const Descriptor here(ends[0]), there(ends[1]);
    pid = fork();
    if (pid == 0) {
      die_with_parent();
      setpgid(0, 0);
      auto listener = std::make_unique<ListeningSocket>();
      std::optional<Witness> own;
      own.emplace(Witness::find_program(), listener->socket.get(),
                  order_for(listener->at, limit_ms));
      if (write(there.get(), &listener->at, sizeof(Address)) < 0) _exit(1);
      if (life) life(std::move(listener), std::move(own));
      for (;;) pause();
    }
    Address at_there;
    EXPECT_EQ(read(here.get(), &at_there, sizeof(at_there)), ssize_t{sizeof(at_there)});
    at = at_there;
    EXPECT_TRUE(eventually([] { return children().size() == 2; }));
    for (const pid_t child : children()) witness = child == pid ? witness : child;
    EXPECT_TRUE(
        eventually([&] { return std::filesystem::read_symlink(of_witness("cwd")) == "/"; }));
  }
  ~Rank() {
    for (const pid_t child : children()) ::kill(child, SIGKILL);
    while (waitpid(-1, nullptr, 0) > 0) {
    }
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  void kill() const {
    ::kill(-pid, SIGKILL);  // its whole process group
    EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
  }
  // The bytes that a caller receives, up to the end of the connection.
  std::string ask(std::optional<WitnessReceipt> receipt = std::nullopt) const {
    const Descriptor call = raw_connect(at);
    std::string told;
    EXPECT_TRUE(eventually([&] {
      const auto more = raw_take(call);
      if (more) told += *more;
      return !more;
    }));
    if (receipt) send(call.get(), &*receipt, sizeof(*receipt), MSG_NOSIGNAL);
    return told;
  }
  bool is_refused() const {
    const Descriptor call(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    return connect(call.get(), at.get(), at.size()) != 0 && errno == ECONNREFUSED;
  }
  std::string of_witness(const std::string& what) const {
    return "/proc/" + std::to_string(witness) + "/" + what;
  }
  std::string token() const { return text_of(token_of(Key{}, kRank, at)); }

  pid_t pid = 0, witness = 0;
  Address at;
};

// Whether the witness accepts a call for a while, and sends nothing.
void expect_silence(const Rank& rank) {
  const Descriptor call = raw_connect(rank.at);
  std::this_thread::sleep_for(300ms);
  EXPECT_EQ(raw_take(call), "");
}

TEST(Witness, ProvesTheEndOfARankToAllWhoCall) {
  const Rank rank;
  rank.kill();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(rank.ask(), rank.token());
}

TEST(Witness, AnswersWhoCalledBeforeTheEnd) {
  const Rank rank;
  const Descriptor call = raw_connect(rank.at);
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(raw_take(call), "");
  rank.kill();
  std::string told;
  EXPECT_TRUE(eventually([&] {
    told += raw_take(call).value_or("");
    return told == rank.token();
  }));
}

TEST(Witness, SaysNothingOfARankThatLives) { expect_silence(Rank()); }

TEST(Witness, SaysNothingOfARankThatIsStopped) {
  const Rank rank;
  kill(rank.pid, SIGSTOP);
  expect_silence(rank);
}

// The rank's connections have ended, but the rank has not.
TEST(Witness, SaysNothingOfARankThatRunsAnotherProgramAndGoes) {
  const Rank rank(
      [](auto, auto) {
        std::this_thread::sleep_for(100ms);
        execlp("sleep", "sleep", "60", nullptr);
      },
      500);
  expect_silence(rank);
  EXPECT_TRUE(eventually([&] { return has_ended(rank.witness); }));
  EXPECT_TRUE(rank.is_refused());
  EXPECT_FALSE(has_ended(rank.pid));
}

TEST(Witness, EndsWhenEveryOtherHostHasItsAnswer) {
  const Rank rank;
  rank.kill();
  for (const WitnessReceipt host : {0U, 0U, kOwnHost, kHosts, 0xffffffffU}) {
    EXPECT_EQ(rank.ask(host), rank.token());
  }
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(rank.ask(2), rank.token());
  EXPECT_TRUE(eventually([&] { return has_ended(rank.witness); }));
  EXPECT_TRUE(rank.is_refused());
}

TEST(Witness, EndsAtTheLimitThoughNobodyCalls) {
  const Rank rank({}, 200);
  rank.kill();
  EXPECT_TRUE(eventually([&] { return has_ended(rank.witness); }));
  EXPECT_TRUE(rank.is_refused());
}

TEST(Witness, HasEndedWhenARankHasLeftInOrderAndThePortIsFree) {
  const Rank rank([](auto listener, auto witness) {
    std::this_thread::sleep_for(100ms);
    witness.reset();
    listener.reset();
  });
  EXPECT_TRUE(eventually([&] { return rank.is_refused(); }));
  EXPECT_TRUE(eventually([&] { return has_ended(rank.witness); }));
}

TEST(Witness, TellsOfARankThatHasLeftUnheard) {
  const Rank rank([](auto listener, auto witness) {
    witness->dismiss(false);
    listener.reset();
    for (;;) pause();
  });
  EXPECT_EQ(rank.ask(), rank.token());
  EXPECT_FALSE(has_ended(rank.pid));
}

TEST(Witness, OutlivesWhatEndsTheRanksOfAJob) {
  const Rank rank;
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1}) kill(rank.witness, number);
  rank.kill();
  EXPECT_EQ(rank.ask(), rank.token());
}

TEST(Witness, EndsWithTheLauncherThatHasAdoptedIt) {
  Address at;
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const pid_t launcher = fork();
  if (launcher == 0) {
    const Rank rank;
    rank.kill();
    if (rank.ask() != rank.token() || write(ends[1], &rank.at, sizeof(rank.at)) < 0) _exit(1);
    _exit(0);  // the witness remains
  }
  close(std::exchange(ends[1], -1));
  ASSERT_EQ(read(ends[0], &at, sizeof(at)), ssize_t{sizeof(at)});
  close(ends[0]);
  ASSERT_EQ(waitpid(launcher, nullptr, 0), launcher);
  EXPECT_TRUE(eventually([&] {
    const Descriptor call(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    return connect(call.get(), at.get(), at.size()) != 0;
  }));
  while (waitpid(-1, nullptr, 0) > 0) {  // this process adopts orphans too
  }
}

TEST(Witness, HasNothingOpenThatIsTheProgramsAndNoPlaceOfIts) {
  const Descriptor of_the_program(dup(STDOUT_FILENO));  // programs inherit this
  const Rank rank;
  const std::filesystem::directory_iterator open(rank.of_witness("fd"));
  EXPECT_EQ(std::distance(begin(open), end(open)), 4);
  EXPECT_EQ(std::filesystem::read_symlink(rank.of_witness("fd/2")), "/dev/null");
  EXPECT_EQ(getsid(rank.witness), rank.witness);
}

TEST(Witness, IsNoChildOfTheRanks) {
  const Rank rank([](auto, auto) { _exit(waitpid(-1, nullptr, WNOHANG) == -1 ? 42 : 1); });
  int status = 0;
  EXPECT_EQ(waitpid(rank.pid, &status, 0), rank.pid);
  EXPECT_EQ(WEXITSTATUS(status), 42);
}

// It would live as long as the child.
TEST(Witness, IsNotKeptByAChildThatTheRankForks) {
  const Rank rank([](auto, auto) {
    if (fork() == 0) setpgid(0, 0);  // and so outlives it
    for (;;) pause();
  });
  std::this_thread::sleep_for(100ms);
  rank.kill();
  for (const WitnessReceipt host : {0U, 2U}) EXPECT_EQ(rank.ask(host), rank.token());
  EXPECT_TRUE(eventually([&] { return has_ended(rank.witness); }));
  EXPECT_TRUE(rank.is_refused());
}

TEST(Witness, TokensDifferByKeyRankAndAddress) {
  const Address at = loopback(AF_INET).with_port(4000), other = at.with_port(4001);
  const WitnessToken token = token_of(Key{}, kRank, at);
  EXPECT_TRUE(is_token(token, token_of(Key{}, kRank, at)));
  EXPECT_FALSE(is_token(token, token_of(Key{std::byte{1}}, kRank, at)));
  EXPECT_FALSE(is_token(token, token_of(Key{}, kRank + 1, at)));
  EXPECT_FALSE(is_token(token, token_of(Key{}, kRank, other)));
}

TEST(Witness, ThatCannotBeStartedIsAnErrorThatSaysWhy) {
  const ListeningSocket listener;
  for (const std::string program : {"", "/nowhere/malt-witness"}) {
    try {
      const Witness witness(program, listener.socket.get(), order_for(listener.at, 1));
      ADD_FAILURE();
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("malt-witness"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace dstorm::remote
