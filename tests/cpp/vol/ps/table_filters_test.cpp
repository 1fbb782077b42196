// Tables whose messages are made smaller: the same values arrive, also when ranks are killed.
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "stressed.hpp"
#include "table_rank.hpp"

namespace vol::ps {
namespace {

TEST(TableFilters, AListOfKeysIsSentOnceToEachServer) {
  TableOptions options = options_of(20'000, 1);
  options.cached_keys = 50'000;
  run_ranks(2, options, [&](Rank& one) {
    const std::vector<std::int64_t> keys = every(20'000, 2);
    std::vector<std::uint64_t> bytes;  // of each round
    for (int round = 0; round < 3; ++round) {
      const std::uint64_t before = one.client->bytes_out();
      one.client->wait(one.add(keys, 1), {});
      bytes.push_back(one.client->bytes_out() - before);
    }
    const std::size_t heads = 4 * kHeadBytes;
    CHECK_THAT(bytes[0] > keys.size() * 2 * sizeof(double));
    CHECK_THAT(bytes[1] < keys.size() * sizeof(double) + heads && bytes[2] == bytes[1]);
    one.client->advance({});
    return 0;
  });
}

// There is room for 2 of the 5 lists that a rank uses in turn, and for some of another 3 in
// irregular order. So lists are dropped on both sides all the time.
TEST(TableFilters, ListsThatHaveBeenDroppedAreSentAgain) {
  const auto rounds = static_cast<int>(stressed(300));
  Shared<std::atomic<int>> finished;
  TableOptions options = options_of(3000, 2);
  options.cached_keys = 500;
  run_ranks(3, options, [&](Rank& one) {
    std::uint64_t random = 5;
    for (int round = 0; round < rounds; ++round) {
      random = random * 6364136223846793005U + 1442695040888963407U;
      const std::int64_t step = 2 + static_cast<std::int64_t>(random >> 33) % 8;
      one.add(every(3000, step), 1);
      one.add(every(3000, 2 + round % 5), -1);
      one.add(every(3000, 2 + round % 5), 1);
      const std::vector<double> values = one.pull(every(3000, step));
      CHECK_THAT(values.front() >= round + 1);
    }
    one.client->wait({}, {});
    ++*finished;
    while (*finished < 3) std::this_thread::sleep_for(1ms);
    random = 5;
    std::vector<double> expected(6000);
    for (int round = 0; round < rounds; ++round) {
      random = random * 6364136223846793005U + 1442695040888963407U;
      const std::int64_t step = 2 + static_cast<std::int64_t>(random >> 33) % 8;
      for (std::int64_t key : every(3000, step)) {
        for (std::int64_t i : {2 * key, 2 * key + 1}) expected[static_cast<std::size_t>(i)] += 3;
      }
    }
    CHECK_THAT(one.all() == expected);
    return 0;
  });
}

// Integers of at most 8 bits, which each of these codecs keeps as they are.
TEST(TableFilters, ACodecKeepsWhatItCanRepresent) {
  for (const Codec& codec : {Codec::float16(), Codec::bfloat16(), Codec::int8()}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      TableOptions options = options_of(20'000, 1);
      options.dtype = dtype;
      options.codec = codec;
      options.replicas = 1;
      options.staleness = 0;
      run_ranks(2, options, [&](Rank& one) {
        const std::size_t size = dtype_size(dtype);
        std::vector<std::byte> given(20'000 * size);
        for (std::size_t i = 0; i < 20'000; ++i) {  // twice this has 7 bits
          const double value = i % 2 == 0 ? 63.5 : static_cast<double>(i % 7) * 0.5;
          const float narrow = static_cast<float>(value);
          std::memcpy(given.data() + i * size,
                      dtype == DType::kFloat32 ? static_cast<const void*>(&narrow) : &value, size);
        }
        one.client->push({nullptr, 0, 20'000}, given.data(), {});
        one.client->advance({});
        std::vector<std::byte> pulled(given.size());
        const std::uint64_t before = one.client->bytes_in();
        one.client->pull({nullptr, 0, 20'000}, pulled.data(), {});
        const std::size_t value_bytes = codec.kind() == Codec::Kind::kInt8 ? 1 : 2;
        CHECK_THAT(one.client->bytes_in() - before < 20'000 * value_bytes + 20'000);
        for (std::size_t i = 0; i < 20'000; ++i) {
          double value = 0;
          float narrow = 0;
          std::memcpy(dtype == DType::kFloat32 ? static_cast<void*>(&narrow) : &value,
                      pulled.data() + i * size, size);
          if (dtype == DType::kFloat32) value = narrow;
          CHECK_THAT(value == 2 * (i % 2 == 0 ? 63.5 : static_cast<double>(i % 7) * 0.5));
        }
        return 0;
      });
    }
  }
}

TEST(TableFilters, HeldBackRowsAreSentAtTheThresholdOrByWaitOrAtTheEnd) {
  Shared<std::atomic<bool>> has_seen;
  TableOptions options = options_of(100'000, 1);
  options.threshold = 1;
  run_ranks(2, options, [&](Rank& one) {
    const std::vector<std::int64_t> keys = every(100'000, 1);
    if (one.rank == 0) {
      for (int push = 0; push < 3; ++push) {
        const std::uint64_t before = one.client->bytes_out();
        one.client->wait(one.add(keys, 0.25), {});
        CHECK_THAT(one.client->bytes_out() == before);
        CHECK_THAT(are_all(one.all(), 0));
      }
      CHECK_THAT(one.client->rows_held_back() == 100'000);
      one.client->wait(one.add(keys, 0.25), {});
      CHECK_THAT(one.client->rows_held_back() == 0 && are_all(one.all(), 1));
      one.add(keys, 0.5);
      one.client->advance({});
      CHECK_THAT(are_all(one.all(), 1));
      one.client->wait({}, {});
      CHECK_THAT(one.client->rows_held_back() == 0 && are_all(one.all(), 1.5));
      one.add(keys, 0.5);
    } else {
      while (!are_all(one.all(), 2)) {
      }
      *has_seen = true;
    }
    return 0;
  });
  EXPECT_TRUE(*has_seen);
}

// All at once: lists that the rank shares with one server are used with another after a death, and
// what it holds back is pushed there.
TEST(TableFilters, DeathsLoseNothing) {
  std::uint64_t random = 4;
  for (std::uint64_t trial = 0; trial < stressed(8); ++trial) {
    random = random * 6364136223846793005U + 1442695040888963407U;
    const int moment = 30 + static_cast<int>(random >> 33) % 150;
    Shared<Posts> posts;
    Shared<std::atomic<int>> pushed;
    Shared<std::atomic<int>> finished;
    Job job(3, [&](dstorm::Bootstrap& bootstrap) {
      TableOptions options = options_of(4000, 4);
      options.replicas = 1;
      options.codec = Codec::float16();
      options.threshold = 3;
      options.cached_keys = 2500;
      Rank one(*posts, bootstrap.rank(), 3, options);
      if (one.rank == 2) {
        for (;;) std::this_thread::sleep_for(1h);
      }
      for (int push = 0; push < 200; ++push) {
        one.add(every(4000, 1 + push % 2), 1);
        ++*pushed;
        one.pull(every(4000, 3 + push % 5));
      }
      one.client->wait({}, {});
      ++*finished;
      while (*finished < 2) std::this_thread::sleep_for(1ms);
      CHECK_THAT(are_all(one.pull(every(4000, 2)), 400));
      CHECK_THAT(one.pull({1, 3999}) == std::vector<double>(8, 200));
      one.client->finish({});
      return 0;
    });
    while (*pushed < moment) std::this_thread::yield();
    job.signal(2, SIGKILL);
    for (int rank : {0, 1}) EXPECT_EQ(job.wait(rank), 0) << trial;
  }
}

}  // namespace
}  // namespace vol::ps
