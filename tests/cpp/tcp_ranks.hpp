// Ranks of a job of several hosts, all of them in this process.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "dstorm/host/control.hpp"
#include "processes.hpp"

namespace testing_ranks {

// Ranks 0 and 1 are one host, each further rank is a host of its own.
inline dstorm::host::Sharing sharing_of(int rank) {
  return rank < 2 ? dstorm::host::Sharing::kPossible : dstorm::host::Sharing::kNone;
}

// Runs `body(bootstrap)` in a thread per rank, and returns when all have ended.
template <class Body>
void in_ranks(int size, Body&& body) {
  const auto posts = std::make_unique<testing_processes::Posts>();
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      testing_processes::ForkBootstrap bootstrap(*posts, rank, size);
      body(bootstrap);
    });
  }
}

}  // namespace testing_ranks
