// Runs one function in several real processes, as the ranks of a job.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "dstorm/bootstrap.hpp"
#include "dstorm/errors.hpp"
#include "dstorm/group.hpp"

// For use in a rank, where GoogleTest cannot report: prints the condition that is not true and ends
// the rank with status 1.
#define CHECK_THAT(condition)                                                        \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      return 1;                                                                      \
    }                                                                                \
  } while (false)

namespace testing_processes {

inline constexpr int kMostRanks = 160;
inline constexpr std::size_t kMostBytes = 4096;

// Memory shared by the parent and its children.
template <class T>
class Shared {
 public:
  Shared() {
    void* at = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    value_ = new (at) T{};
  }
  ~Shared() { munmap(value_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  T* operator->() const { return value_; }
  T& operator*() const { return *value_; }

 private:
  T* value_;
};

struct Post {
  std::atomic<int> round;
  std::size_t bytes;
  std::array<std::byte, kMostBytes> data;
};
struct Posts {
  std::array<std::array<Post, 2>, kMostRanks> by_rank;
};

// A bootstrap over memory inherited by fork().
class ForkBootstrap final : public dstorm::Bootstrap {
 public:
  ForkBootstrap(Posts& posts, int rank, int size) : posts_(posts), rank_(rank), size_(size) {
    members_ = Bootstrap::members();
  }
  // For another group of the job, numbered from 1.
  ForkBootstrap generation(int number, std::vector<int> members) const {
    ForkBootstrap next(posts_, rank_, size_);
    next.members_ = std::move(members);
    next.round_ = number * kMostRounds;
    return next;
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<int> members() const override { return members_; }
  std::vector<dstorm::Bytes> allgather(std::span<const std::byte> mine,
                                       const dstorm::Deadline& deadline) override {
    const int round = ++round_;
    Post& post = at(rank_, round);
    post.bytes = mine.size();
    if (!mine.empty()) std::memcpy(post.data.data(), mine.data(), mine.size());
    post.round.store(round, std::memory_order_release);
    std::vector<dstorm::Bytes> all(static_cast<std::size_t>(size_));
    for (int r : members_) {
      while (at(r, round).round.load(std::memory_order_acquire) < round) {
        if (deadline.left().count() == 0) throw dstorm::TimeoutError("start-up", {r});
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
      const Post& theirs = at(r, round);
      all[static_cast<std::size_t>(r)].assign(
          theirs.data.begin(), theirs.data.begin() + static_cast<long>(theirs.bytes));
    }
    return all;
  }

 private:
  static constexpr int kMostRounds = 100;  // in one group

  Post& at(int rank, int round) {
    return posts_.by_rank[static_cast<std::size_t>(rank)][static_cast<std::size_t>(round % 2)];
  }
  Posts& posts_;
  int rank_;
  int size_;
  std::vector<int> members_;
  int round_ = 0;
};

// The transport of these tests, which are repeated for each transport.
inline std::string transport() {
  const char* name = std::getenv("MALT_TRANSPORT");
  return name == nullptr ? "shm" : name;
}

inline std::shared_ptr<dstorm::Group> join(dstorm::Bootstrap& bootstrap,
                                           dstorm::GroupOptions options = {}) {
  if (options.transport == "auto") options.transport = transport();
  if (options.transport == "verbs") {  // an adapter each, up to four (tests/softroce)
    constexpr int kAdapters = 4;
    const std::string device = "rxe" + std::to_string(1 + bootstrap.rank() % kAdapters);
    options.rdma.device = device;
  }
  return dstorm::Group::join(bootstrap, std::move(options));
}

// Starts `size` processes. `body` runs in each, and its result is the exit status. An exception is
// printed, and the status is 99.
class Job {
 public:
  Job(int size, const std::function<int(dstorm::Bootstrap&)>& body) {
    std::fflush(nullptr);
    for (int rank = 0; rank < size; ++rank) {
      const pid_t pid = fork();
      if (pid != 0) {
        pids_.push_back(pid);
        continue;
      }
      int status = 99;
      try {
        ForkBootstrap bootstrap(*posts_, rank, size);
        status = body(bootstrap);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      }
      std::fflush(nullptr);
      _exit(status);
    }
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job() {
    for (pid_t pid : pids_) {
      if (pid > 0) {
        kill(pid, SIGKILL);
        waitpid(pid, nullptr, 0);
      }
    }
  }

  pid_t pid(int rank) const { return pids_[static_cast<std::size_t>(rank)]; }
  void signal(int rank, int number) const { kill(pid(rank), number); }
  // Exit status, or 128 + the signal that ended it.
  int wait(int rank) {
    int status = 0;
    pid_t& pid = pids_[static_cast<std::size_t>(rank)];
    if (pid <= 0) return -1;
    waitpid(pid, &status, 0);
    pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::vector<int> wait_all() {
    std::vector<int> statuses;
    for (std::size_t rank = 0; rank < pids_.size(); ++rank) {
      statuses.push_back(wait(static_cast<int>(rank)));
    }
    return statuses;
  }

 private:
  Shared<Posts> posts_;
  std::vector<pid_t> pids_;
};

inline void expect_all_well(Job& job) {
  const std::vector<int> statuses = job.wait_all();
  EXPECT_EQ(statuses, std::vector<int>(statuses.size(), 0));
}

}  // namespace testing_processes
