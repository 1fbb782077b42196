// A bootstrap over MPI's C API. It is header only: libdstorm links no MPI, so one build of it
// serves every MPI and programs without MPI. Include this header in programs that link MPI.
#pragma once

// MPI's C API alone: the old C++ bindings of Open MPI 4 and of MPICH would need their own
// libraries.
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <limits>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dstorm/bootstrap.hpp"
#include "dstorm/errors.hpp"
#include "dstorm/rdma_options.hpp"

namespace dstorm {

namespace mpi_detail {

inline void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(std::string(call) + ": " + std::string(text, static_cast<std::size_t>(length)));
}

// Under `malt run` each process has an MPI of its own, and would be a job of one rank. Throws
// ConfigError there.
inline void refuse_malt_run() {
  const std::string size = environment("MALT_SIZE");
  const bool is_rank = !environment("MALT_RENDEZVOUS").empty() && !size.empty() &&
                       environment("MALT_RANK_PROCESS").empty();  // not a child of a rank
  if (!is_rank || size == "1") return;
  throw ConfigError("`malt run` started this process as one of " + size +
                    " ranks, but its MPI has only this process: start a program that finds its "
                    "ranks by MPI with mpirun or srun (mpirun -n " +
                    size + " PROGRAM)");
}

// Sends one message from this rank to every other and receives one from each. The object must
// outlive its requests.
class Exchange {
 public:
  Exchange(MPI_Comm comm, int rank, int size, std::span<const std::byte> mine)
      : comm_(comm), mine_(mine.begin(), mine.end()), peers_(static_cast<std::size_t>(size)) {
    if (mine_.size() > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
      throw ConfigError(std::to_string(mine_.size()) + " bytes to exchange; MPI takes at most " +
                        std::to_string(std::numeric_limits<int>::max()));
    }
    Peer& self = peers_[static_cast<std::size_t>(rank)];
    self.received = mine_;
    self.state = State::kReceived;
    self.sent = true;
  }

  void send() {
    for (int rank = 0; std::cmp_less(rank, peers_.size()); ++rank) {
      Peer& peer = peers_[static_cast<std::size_t>(rank)];
      if (peer.sent) continue;
      check(MPI_Isend(mine_.data(), static_cast<int>(mine_.size()), MPI_BYTE, rank, kTag, comm_,
                      &peer.send),
            "MPI_Isend");
    }
  }

  // True if a message has arrived or been sent since the last call.
  bool advance() {
    bool progressed = false;
    for (int rank = 0; std::cmp_less(rank, peers_.size()); ++rank) {
      Peer& peer = peers_[static_cast<std::size_t>(rank)];
      if (!peer.sent && (peer.sent = test(peer.send))) progressed = true;
      if (peer.state == State::kUnseen) progressed |= match(rank, peer);
      if (peer.state == State::kReceiving && test(peer.receive)) {
        peer.state = State::kReceived;
        progressed = true;
      }
    }
    return progressed;
  }

  // The ranks whose message has not arrived, or that have not taken this rank's message.
  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = 0; std::cmp_less(rank, peers_.size()); ++rank) {
      const Peer& peer = peers_[static_cast<std::size_t>(rank)];
      if (!peer.sent || peer.state != State::kReceived) ranks.push_back(rank);
    }
    return ranks;
  }

  std::vector<Bytes> take() {
    std::vector<Bytes> all;
    all.reserve(peers_.size());
    for (Peer& peer : peers_) all.push_back(std::move(peer.received));
    return all;
  }

 private:
  // "ME": a tag that a program's own traffic is unlikely to have.
  static constexpr int kTag = 0x4D45;

  enum class State { kUnseen, kReceiving, kReceived };

  struct Peer {
    State state = State::kUnseen;
    bool sent = false;
    MPI_Request send = MPI_REQUEST_NULL;
    MPI_Request receive = MPI_REQUEST_NULL;
    Bytes received;
  };

  static bool test(MPI_Request& request) {
    int done = 0;
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    return done != 0;
  }

  bool match(int rank, Peer& peer) {
    int found = 0;
    int length = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    check(MPI_Improbe(rank, kTag, comm_, &found, &message, &status), "MPI_Improbe");
    if (found == 0) return false;
    check(MPI_Get_count(&status, MPI_BYTE, &length), "MPI_Get_count");
    peer.received.resize(static_cast<std::size_t>(length));
    check(MPI_Imrecv(peer.received.data(), length, MPI_BYTE, &message, &peer.receive),
          "MPI_Imrecv");
    peer.state = State::kReceiving;
    return true;
  }

  MPI_Comm comm_;
  Bytes mine_;
  std::vector<Peer> peers_;
};

}  // namespace mpi_detail

// A bootstrap over the ranks of an intracommunicator. The caller keeps the communicator; it and MPI
// must outlive this object. While a call is in progress, messages with tag 0x4D45 on the
// communicator belong to this object alone. MPI may be finalised once the group has been made; it
// should be, because with MPI live most launchers cancel the whole job at the first death. An error
// that MPI returns becomes a dstorm::Error; if the communicator's error handler is
// MPI_ERRORS_ARE_FATAL, MPI ends the job itself.
class MpiBootstrap final : public Bootstrap {
 public:
  explicit MpiBootstrap(MPI_Comm comm) : comm_(comm) {
    int initialised = 0;
    int finalised = 0;
    mpi_detail::check(MPI_Initialized(&initialised), "MPI_Initialized");
    mpi_detail::check(MPI_Finalized(&finalised), "MPI_Finalized");
    if (initialised == 0 || finalised != 0) {
      throw ConfigError(std::string("MpiBootstrap: MPI is ") +
                        (initialised == 0 ? "not initialised" : "finalised already"));
    }
    if (comm == MPI_COMM_NULL) throw ConfigError("MpiBootstrap: the communicator is MPI_COMM_NULL");
    int between = 0;
    mpi_detail::check(MPI_Comm_test_inter(comm, &between), "MPI_Comm_test_inter");
    if (between != 0) throw ConfigError("MpiBootstrap takes no intercommunicator");
    mpi_detail::check(MPI_Comm_rank(comm, &rank_), "MPI_Comm_rank");
    mpi_detail::check(MPI_Comm_size(comm, &size_), "MPI_Comm_size");
    int world = 0;
    mpi_detail::check(MPI_Comm_size(MPI_COMM_WORLD, &world), "MPI_Comm_size");
    if (world == 1) mpi_detail::refuse_malt_run();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  // As Bootstrap::allgather. After an error the bootstrap can no longer be used.
  std::vector<Bytes> allgather(std::span<const std::byte> mine, const Deadline& deadline) override {
    if (broken_) throw Error("MpiBootstrap was left after an error");
    auto exchange = std::make_unique<mpi_detail::Exchange>(comm_, rank_, size_, mine);
    broken_ = true;  // until the exchange has succeeded
    try {
      exchange->send();
      finish(*exchange, deadline);
    } catch (...) {
      // MPI may still write into the buffers of pending requests, and cannot be stopped: they are
      // leaked.
      static_cast<void>(exchange.release());
      throw;
    }
    broken_ = false;
    return exchange->take();
  }

 private:
  static void finish(mpi_detail::Exchange& exchange, const Deadline& deadline) {
    constexpr std::chrono::microseconds kShortest{20};
    constexpr std::chrono::microseconds kLongest{1000};
    std::chrono::microseconds nap = kShortest;
    for (;;) {
      const bool progressed = exchange.advance();
      std::vector<int> missing = exchange.missing();
      if (missing.empty()) return;
      if (deadline.left() == std::chrono::nanoseconds::zero()) {
        std::ostringstream what;
        what << describe_ranks(missing) << " did not come within "
             << std::chrono::duration<double>(deadline.limit()).count() << " s";
        throw TimeoutError(what.str(), std::move(missing));
      }
      nap = progressed ? kShortest : std::min(2 * nap, kLongest);
      std::this_thread::sleep_for(nap);
    }
  }

  MPI_Comm comm_;
  int rank_ = 0;
  int size_ = 0;
  bool broken_ = false;
};

}  // namespace dstorm
