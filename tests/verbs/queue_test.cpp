// Writes from rxe1 to rxe2, both ends in this process.
#include "dstorm/remote/verbs/queue.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>

#include "dstorm/errors.hpp"
#include "ends.hpp"

namespace dstorm::verbs {
namespace {

using namespace std::chrono_literals;

void fill_at_random(std::span<std::byte> bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random()); });
}

TEST(Queue, BytesArriveWholeAndNothingBeside) {
  constexpr std::size_t kMargin = 64;
  Connection ends((1 << 20) + 2 * kMargin);
  unsigned seed = 0;
  for (const std::size_t bytes :
       std::initializer_list<std::size_t>{1, 2, 3, 63, 64, 65, 4095, 4096, 4097, 65'536, 1 << 20}) {
    auto& from = ends.writer.memory;
    auto& to = ends.reader.memory;
    fill_at_random(from, ++seed);
    std::fill(to.begin(), to.end(), std::byte{0xee});
    const auto write = ends.writer.queue.write(ends.writer.part(bytes, 1), ends.target(kMargin),
                                               {.signaled = true});
    ASSERT_TRUE(settle(ends.writer.queue, write)) << bytes;
    EXPECT_EQ(std::memcmp(to.data() + kMargin, from.data() + 1, bytes), 0) << bytes;
    EXPECT_EQ(std::count(to.begin(), to.begin() + kMargin, std::byte{0xee}), kMargin) << bytes;
    const auto after = to.begin() + static_cast<std::ptrdiff_t>(kMargin + bytes);
    EXPECT_EQ(std::count(after, after + kMargin, std::byte{0xee}), kMargin) << bytes;
  }
}

TEST(Queue, PartsArriveOneAfterTheOther) {
  Connection ends(64 * 1024);
  fill_at_random(ends.writer.memory, 1);
  const std::array parts = {ends.writer.part(64, 40'000), ends.writer.part(5'000, 100),
                            ends.writer.part(7, 9'000)};
  const auto write = ends.writer.queue.write(parts, ends.target(), {.signaled = true});
  ASSERT_TRUE(settle(ends.writer.queue, write));
  const std::byte* to = ends.reader.memory.data();
  for (const Part& part : parts) {
    EXPECT_EQ(std::memcmp(to, part.address, part.bytes), 0);
    to += part.bytes;
  }
  const std::array<Part, 4> four{};
  EXPECT_EQ(ends.writer.queue.write(four, ends.target()), 0);
  ASSERT_TRUE(ends.writer.queue.failed());
  EXPECT_TRUE(has(ends.writer.queue.failed()->what, "at most 3"));
}

TEST(Queue, InlineSourceIsFreeAtOnce) {
  Connection ends;
  Queue& queue = ends.writer.queue;
  ASSERT_GE(queue.inline_bytes(), 64U);
  std::uint64_t value = 0;  // in no region
  std::uint64_t last = 0;
  for (std::uint64_t i = 0; i < 64; ++i) {
    value = i + 1;
    last = queue.write({&value, sizeof(value), 0}, ends.target(i * sizeof(value)),
                       {.inlined = true, .signaled = i == 63});
    ASSERT_NE(last, 0);
    value = 0;
  }
  ASSERT_TRUE(settle(queue, last));
  const auto* arrived = reinterpret_cast<const std::uint64_t*>(ends.reader.memory.data());
  for (std::uint64_t i = 0; i < 64; ++i) EXPECT_EQ(arrived[i], i + 1);
  queue.write(ends.writer.part(queue.inline_bytes() + 1), ends.target(), {.inlined = true});
  ASSERT_TRUE(queue.failed());
  const std::string& error = queue.failed()->what;
  EXPECT_TRUE(has(error, "at most " + std::to_string(queue.inline_bytes()) + " inline")) << error;
}

TEST(Queue, FullQueueTakesNoMoreAndLosesNothing) {
  constexpr std::uint32_t kDepth = 16;
  constexpr std::uint64_t kWrites = 4'000;
  Connection ends(kWrites * 8, {.depth = kDepth});
  Queue& queue = ends.writer.queue;
  auto* from = reinterpret_cast<std::uint64_t*>(ends.writer.memory.data());
  std::uint64_t most_in_flight = 0;
  int full = 0;
  for (std::uint64_t i = 0; i < kWrites;) {
    from[i] = ~i;
    if (queue.write(ends.writer.part(8, i * 8), ends.target(i * 8),
                    {.signaled = i + 1 == kWrites}) == 0) {
      ++full;
      ASSERT_EQ(queue.room(), 0);
      ASSERT_FALSE(queue.failed()) << queue.failed()->what;
      queue.reap();
      continue;
    }
    most_in_flight = std::max(most_in_flight, queue.posted() - queue.completed());
    ++i;
  }
  ASSERT_TRUE(settle(queue, kWrites));
  EXPECT_EQ(queue.posted(), kWrites);
  EXPECT_EQ(queue.room(), kDepth);
  EXPECT_EQ(most_in_flight, kDepth);
  EXPECT_GT(full, 0);
  EXPECT_EQ(ends.writer.memory, ends.reader.memory);
}

TEST(Queue, CompletionCountsForEverythingBeforeIt) {
  Connection ends;
  Queue& queue = ends.writer.queue;
  for (int i = 0; i < 3; ++i) queue.write(ends.writer.part(8), ends.target());
  EXPECT_FALSE(settle(queue, 3, 200ms));  // nothing asked for a completion
  EXPECT_FALSE(queue.failed());
  EXPECT_TRUE(settle(queue, queue.write(ends.writer.part(8), ends.target(), {.signaled = true})));
  EXPECT_EQ(queue.completed(), 4);
}

TEST(Queue, PeerWithSmallerPacketsIsMet) {
  End writer("rxe1", 65'536);
  End reader("rxe2", 65'536);
  fill_at_random(writer.memory, 1);
  Endpoint small = reader.queue.local();
  small.mtu_bytes = 1024;
  Endpoint other = writer.queue.local();
  other.mtu_bytes = 1024;
  writer.queue.connect(small);
  reader.queue.connect(other);
  const auto write =
      writer.queue.write(writer.part(65'536), reader.address().target, {.signaled = true});
  ASSERT_TRUE(settle(writer.queue, write));
  EXPECT_EQ(writer.memory, reader.memory);
}

// Writes until the queue fails.
Failure failure_of(Queue& queue, const Part& part, const Target& target) {
  while (settle(queue, queue.write(part, target, {.signaled = true}))) {
  }
  return queue.failed().value_or(Failure{IBV_WC_SUCCESS, "no failure"});
}

TEST(Queue, WrongKeyIsNamedAndTheQueueRefusesMore) {
  Connection ends;
  Target target = ends.target();
  target.rkey ^= 0x5a00;
  Queue& queue = ends.writer.queue;
  for (int i = 0; i < 3; ++i) queue.write(ends.writer.part(8), target, {.signaled = true});
  EXPECT_FALSE(settle(queue, 3));
  ASSERT_TRUE(queue.failed());
  EXPECT_EQ(queue.failed()->status, IBV_WC_REM_ACCESS_ERR);  // the first, not what was flushed
  EXPECT_TRUE(has(queue.failed()->what, "the peer has withdrawn its memory"));
  EXPECT_EQ(queue.write(ends.writer.part(8), ends.target()), 0);
  EXPECT_EQ(queue.completed(), 0);
}

TEST(Queue, WriteBeyondThePeersMemoryIsRefused) {
  Connection ends;
  const Failure failure = failure_of(ends.writer.queue, ends.writer.part(8), ends.target(4092));
  EXPECT_EQ(failure.status, IBV_WC_REM_ACCESS_ERR) << failure.what;
}

TEST(Queue, MemoryThatIsWithdrawnIsNamed) {
  End writer("rxe1");
  End reader("rxe2");
  writer.queue.connect(reader.queue.local());
  reader.queue.connect(writer.queue.local());
  std::vector<std::byte> memory(4096);
  std::optional<Region> region(std::in_place, reader.device, memory, "a test");
  const Target target{region->address(), region->rkey()};
  ASSERT_TRUE(settle(writer.queue, writer.queue.write(writer.part(8), target, {.signaled = true})));
  region.reset();
  const Failure failure = failure_of(writer.queue, writer.part(8), target);
  EXPECT_EQ(failure.status, IBV_WC_REM_ACCESS_ERR) << failure.what;
}

TEST(Queue, SourceThatIsNotRegisteredIsNamed) {
  Connection ends;
  Part part = ends.writer.part(4096);
  part.lkey ^= 0x5a00;
  const Failure failure = failure_of(ends.writer.queue, part, ends.target());
  // The status differs: soft-RoCE says LOC_QP_OP_ERR, adapters LOC_PROT_ERR.
  EXPECT_TRUE(has(failure.what, "not registered here")) << failure.what;
}

TEST(Queue, CutNetworkIsAnErrorWithinHalfTheSilence) {
  for (const auto suspect_after : {200ms, 700ms}) {
    Connection ends(4096, {.suspect_after = suspect_after});
    Queue& queue = ends.writer.queue;
    ASSERT_TRUE(settle(queue, queue.write(ends.writer.part(8), ends.target(), {.signaled = true})));
    const Unplugged reader(2);
    const auto start = std::chrono::steady_clock::now();
    const Failure failure = failure_of(queue, ends.writer.part(8), ends.target());
    const auto took = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(failure.status, IBV_WC_RETRY_EXC_ERR) << failure.what;
    EXPECT_TRUE(has(failure.what, "the network to it is cut"));
    EXPECT_GT(took, suspect_after / 5);
    EXPECT_LT(took, suspect_after / 2 + 400ms);
  }
}

TEST(Queue, EndpointThatMakesNoSenseIsRefused) {
  const End writer("rxe1");
  const End reader("rxe2");
  const auto refusal = [&](void (*spoil)(Endpoint&)) {
    Endpoint remote = reader.queue.local();
    spoil(remote);
    return message_of<ConfigError>([&] { Queue(writer.device).connect(remote); });
  };
  EXPECT_TRUE(has(refusal([](Endpoint& e) { e.queue_pair = 0; }), "makes no sense"));
  EXPECT_TRUE(has(refusal([](Endpoint& e) { e.queue_pair = 1U << 24; }), "makes no sense"));
  EXPECT_TRUE(has(refusal([](Endpoint& e) { e.first_packet = 1U << 24; }), "makes no sense"));
  EXPECT_TRUE(has(refusal([](Endpoint& e) { e.mtu_bytes = 1000; }), "MTU of 1000 bytes"));
  EXPECT_TRUE(has(refusal([](Endpoint& e) { e.fabric = Fabric::kRoceV1; }),
                  "uses another kind of network"));
}

TEST(Queue, OptionsBeyondTheLimitsAreRefusedWithThem) {
  const Device device = Device::open(Library::load(), "rxe1");
  const auto refusal = [&](const QueueOptions& options) {
    return message_of<ConfigError>([&] { Queue(device, options); });
  };
  EXPECT_TRUE(has(refusal({.depth = 0}), "takes 1 to"));
  EXPECT_TRUE(has(refusal({.depth = 1U << 30}), "takes 1 to"));
  EXPECT_TRUE(has(refusal({.suspect_after = 0ms}), "RDMA needs 1 to 60000"));
  EXPECT_TRUE(has(refusal({.suspect_after = 61s}), "RDMA needs 1 to 60000"));
}

TEST(Queue, WriteBeforeTheConnectionFailsTheQueue) {
  End writer("rxe1");
  EXPECT_EQ(writer.queue.write(writer.part(8), writer.address().target), 0);
  ASSERT_TRUE(writer.queue.failed());
  EXPECT_TRUE(has(writer.queue.failed()->what, "is the queue connected"));
}

}  // namespace
}  // namespace dstorm::verbs
