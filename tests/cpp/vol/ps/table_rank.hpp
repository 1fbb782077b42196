// A rank of a table, for tests with real processes as ranks.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "processes.hpp"
#include "vol/ps/client.hpp"
#include "vol/ps/server_thread.hpp"

namespace testing_table {

// Stops a process; kill() returns before all of its threads have stopped.
inline void stop(pid_t pid) {
  kill(pid, SIGSTOP);
  const auto has_stopped = [](const std::filesystem::directory_entry& thread) {
    std::ifstream file(thread.path() / "stat");
    const std::string stat{std::istreambuf_iterator<char>(file), {}};
    return stat.find(") T ") != std::string::npos;
  };
  const std::filesystem::path threads = "/proc/" + std::to_string(pid) + "/task";
  while (!std::ranges::all_of(std::filesystem::directory_iterator(threads), has_stopped)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

using testing_processes::ForkBootstrap;
using testing_processes::Posts;
using vol::ps::Client;
using vol::ps::ServerThread;
using vol::ps::TableOptions;

inline TableOptions options_of(std::int64_t rows, std::size_t width) {
  TableOptions options;
  options.name = "t";
  options.rows = rows;
  options.width = width;
  options.dtype = vol::DType::kFloat64;
  return options;
}

// A rank's part of a table.
class Rank {
  TableOptions options_;
  std::shared_ptr<dstorm::Group> group_;
  std::optional<ServerThread> thread_;

 public:
  Rank(Posts& posts, int own, int ranks, const TableOptions& options)
      : options_(options), rank(own) {
    options_.ranks.resize(static_cast<std::size_t>(ranks));
    std::iota(options_.ranks.begin(), options_.ranks.end(), 0);
    std::shared_ptr<dstorm::Group> server_group;
    std::thread joining([&] {
      ForkBootstrap bootstrap(posts, ranks + rank, 2 * ranks);
      server_group = testing_processes::join(bootstrap);
    });
    ForkBootstrap bootstrap(posts, rank, 2 * ranks);
    group_ = testing_processes::join(bootstrap);
    joining.join();
    thread_.emplace(server_group, options_);
    client.emplace(group_, options_, *thread_);
    thread_->await_made();
  }
  bool is_one_host() const { return group_->is_one_host(); }
  std::uint64_t add(const std::vector<std::int64_t>& keys, double value) {
    const std::vector<double> gradients(keys.size() * options_.width, value);
    return client->push({keys.data(), 0, keys.size()},
                        reinterpret_cast<const std::byte*>(gradients.data()), {});
  }
  std::vector<double> pull(const std::vector<std::int64_t>& keys) {
    std::vector<double> values(keys.size() * options_.width);
    client->pull({keys.data(), 0, keys.size()}, reinterpret_cast<std::byte*>(values.data()), {});
    return values;
  }
  std::vector<double> all() {
    std::vector<double> values(static_cast<std::size_t>(options_.rows) * options_.width);
    client->pull({nullptr, 0, static_cast<std::size_t>(options_.rows)},
                 reinterpret_cast<std::byte*>(values.data()), {});
    return values;
  }

  std::uint64_t hot_answers() const { return thread_->hot_answers(); }
  std::vector<int> behind(std::uint64_t clock) const { return thread_->behind(clock); }

  // Servers that are live as far as this rank knows.
  int live() const {
    const int ranks = static_cast<int>(options_.ranks.size());
    int count = 0;
    for (int server = ranks; server < 2 * ranks; ++server) count += group_->is_live(server);
    return count;
  }

  std::size_t width() const { return options_.width; }

  int rank;
  std::optional<Client> client;
};

// Returns when so many ranks have called it. `come` counts them, always the same number of ranks.
inline void meet(std::atomic<int>& come, int ranks) {
  const int goal = (come.fetch_add(1) / ranks + 1) * ranks;
  while (come < goal) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

inline void await(const std::atomic<bool>& flag) {
  while (!flag) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

inline std::vector<std::int64_t> every(std::int64_t rows, std::int64_t step) {
  std::vector<std::int64_t> keys;
  for (std::int64_t key = 0; key < rows; key += step) keys.push_back(key);
  return keys;
}

inline bool are_all(const std::vector<double>& values, double value) {
  return std::ranges::all_of(values, [value](double each) { return each == value; });
}

// Runs `body(rank)` on so many ranks, which then close the table. It returns a rank's exit status:
// 0, or what CHECK_THAT returns.
template <class Body>
void run_ranks(int ranks, const TableOptions& options, Body&& body) {
  testing_processes::Shared<Posts> posts;
  testing_processes::Job job(ranks, [&](dstorm::Bootstrap& bootstrap) {
    Rank one(*posts, bootstrap.rank(), ranks, options);
    if (const int status = body(one); status != 0) return status;
    one.client->finish({});
    return 0;
  });
  testing_processes::expect_all_well(job);
}

}  // namespace testing_table

namespace vol::ps {  // the tests' namespace

using namespace std::chrono_literals;
using testing_processes::expect_all_well;
using testing_processes::Job;
using testing_processes::Posts;
using testing_processes::Shared;
using testing_table::are_all;
using testing_table::await;
using testing_table::every;
using testing_table::meet;
using testing_table::options_of;
using testing_table::Rank;
using testing_table::run_ranks;

}  // namespace vol::ps
