#include "dstorm/remote/verbs/proof.hpp"

#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "dstorm/errors.hpp"

namespace dstorm::verbs {
namespace {

using Clock = std::chrono::steady_clock;

// Three packets of the largest MTU there is.
constexpr std::size_t kProbeBytes = std::size_t{3} * 4096;
constexpr std::size_t kProbeWords = kProbeBytes / 8;
constexpr std::chrono::microseconds kBetweenLooks{50};
constexpr const char* kAdvice =
    "; do all switches in between carry packets of this MTU, and are both in one network and "
    "partition? MALT_RDMA_DEVICE and MALT_RDMA_PKEY choose others";

// The beginning of an offer; a QueueRecord for each partner follows.
struct OfferHead {
  Endpoint endpoint;  // without the queue pair and its first packet
  Target target;      // where the first partner writes; the others follow
};
struct QueueRecord {
  std::int32_t partner;
  std::uint32_t queue_pair;  // 0: none
  std::uint32_t first_packet;
  std::uint32_t unused;
};

// The word at `index` of the words that `rank` writes.
std::uint64_t word_of(int rank, std::size_t index) {
  std::uint64_t mixed = (static_cast<std::uint64_t>(rank) + 1) << 32 | (index + 1);
  mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9U;
  mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebU;
  return mixed ^ mixed >> 31;
}

bool is_from(int rank, std::uint64_t* words) {
  for (std::size_t i = 0; i < kProbeWords; ++i) {
    const std::atomic_ref word(words[i]);  // the adapter may be writing it
    if (word.load(std::memory_order_acquire) != word_of(rank, i)) return false;
  }
  return true;
}

template <class Record>
bool read(const Bytes& bytes, std::size_t at, Record& record) {
  if (bytes.size() < at + sizeof(record)) return false;
  std::memcpy(&record, bytes.data() + at, sizeof(record));
  return true;
}

}  // namespace

Proof::Proof(const Device& device, int rank, std::vector<int> partners,
             std::chrono::milliseconds limit)
    : device_(device), rank_(rank), limit_(limit), memory_((1 + partners.size()) * kProbeWords) {
  for (std::size_t i = 0; i < kProbeWords; ++i) memory_[i] = word_of(rank, i);
  std::string why;
  try {
    region_.emplace(device, std::as_writable_bytes(std::span(memory_)), "trying the network");
  } catch (const Error& error) {
    why = error.what();
  }
  for (const int partner : partners) {
    Pair& pair = pairs_.emplace_back(Pair{partner, nullptr});
    try {
      if (why.empty()) {
        pair.queue =
            std::make_unique<Queue>(device, QueueOptions{.depth = 1, .suspect_after = limit});
      }
    } catch (const Error& error) {
      why = error.what();
    }
    if (!why.empty()) fail(pair, why);
  }
}

void Proof::fail(Pair& pair, const std::string& why, bool is_echo) {
  pair.queue.reset();
  reasons_.push_back({pair.partner, is_echo, why});
}

Bytes Proof::offer() const {
  Bytes bytes;
  const auto put = [&](const auto& record) {
    const auto part = std::as_bytes(std::span(&record, 1));
    bytes.insert(bytes.end(), part.begin(), part.end());
  };
  OfferHead head{};
  if (region_) head.target = {region_->address() + kProbeBytes, region_->rkey()};
  for (const Pair& pair : pairs_) {
    if (pair.queue) head.endpoint = pair.queue->local();
  }
  put(head);
  for (const Pair& pair : pairs_) {
    const Endpoint own = pair.queue ? pair.queue->local() : Endpoint{};
    put(QueueRecord{pair.partner, own.queue_pair, own.first_packet, 0});
  }
  return bytes;
}

void Proof::connect(std::span<const Bytes> offers, std::span<const std::string> adapters) {
  const auto deadline = Clock::now() + limit_;
  for (Pair& pair : pairs_) {
    if (!pair.queue) continue;
    const Bytes& offer = offers[static_cast<std::size_t>(pair.partner)];
    const std::string& adapter = adapters[static_cast<std::size_t>(pair.partner)];
    OfferHead head{};
    QueueRecord record{};
    bool is_there = read(offer, 0, head);
    std::size_t place = 0;  // of this rank among its partner's partners
    do {
      is_there = is_there && read(offer, sizeof(head) + place++ * sizeof(record), record);
    } while (is_there && record.partner != rank_);
    if (!is_there || record.queue_pair == 0) {
      fail(pair, "rank " + std::to_string(pair.partner) + " has no queue on its " + adapter, true);
      continue;
    }
    if (Clock::now() > deadline) {
      fail(pair,
           "finding the way to the others took longer than " + std::to_string(limit_.count()) +
               " ms",
           true);
      continue;
    }
    head.endpoint.queue_pair = record.queue_pair;
    head.endpoint.first_packet = record.first_packet;
    pair.target = {head.target.address + (place - 1) * kProbeBytes, head.target.rkey};
    try {
      pair.queue->connect(head.endpoint);
    } catch (const Error& error) {
      fail(pair, error.what());
    }
  }
}

// Looks at the pair once more. Returns true if there is nothing more to wait for.
bool Proof::advance(Pair& pair, std::size_t index) {
  if (!pair.queue) return true;
  pair.has_sent = pair.has_sent || pair.queue->reap() == 1;
  pair.has_come =
      pair.has_come || is_from(pair.partner, memory_.data() + (1 + index) * kProbeWords);
  return pair.queue->failed() || (pair.has_sent && pair.has_come);
}

void Proof::write(std::span<const std::string> adapters) {
  const auto deadline = Clock::now() + limit_;
  for (Pair& pair : pairs_) {
    if (!pair.queue) continue;
    pair.queue->write({memory_.data(), kProbeBytes, region_->lkey()}, pair.target,
                      {.signaled = true});
  }
  for (bool all = false; !all && Clock::now() < deadline;) {
    all = true;
    for (std::size_t i = 0; i < pairs_.size(); ++i) all = advance(pairs_[i], i) && all;
    if (!all) std::this_thread::sleep_for(kBetweenLooks);
  }
  const std::string& own = adapters[static_cast<std::size_t>(rank_)];
  for (Pair& pair : pairs_) {
    if (!pair.queue || (pair.has_sent && pair.has_come)) continue;
    const std::string& its = adapters[static_cast<std::size_t>(pair.partner)];
    const std::string partner = "rank " + std::to_string(pair.partner) + "'s " + its;
    const std::string limit = std::to_string(limit_.count()) + " ms";
    if (!pair.has_sent) {
      reasons_.push_back(
          {pair.partner, false,
           own + " gets no write of " + std::to_string(kProbeBytes) + " bytes through to " +
               partner + ": " +
               (pair.queue->failed() ? pair.queue->failed()->what : "not within " + limit) +
               kAdvice});
    } else {
      reasons_.push_back(
          {pair.partner, true, "nothing that is right came from " + partner + " within " + limit});
    }
  }
}

}  // namespace dstorm::verbs
