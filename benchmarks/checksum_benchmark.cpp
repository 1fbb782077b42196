// The checksum of updates over RDMA, in every way this machine has, and copied with it as a
// receiver does.
//
//   checksum_benchmark --benchmark_filter='/65536'
#include <benchmark/benchmark.h>

#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dstorm/slot/checksum.hpp"

namespace {

using dstorm::Checksum;
using dstorm::ChecksumWay;
using Bytes = std::span<const std::byte>;

void register_way(std::string_view name, std::size_t bytes,
                  const std::function<std::uint64_t(Bytes from, std::byte* to)>& way) {
  benchmark::RegisterBenchmark(
      (std::string(name) + "/" + std::to_string(bytes)).c_str(), [=](benchmark::State& state) {
        std::vector<std::uint64_t> from(bytes / 8);
        for (std::size_t i = 0; i < from.size(); ++i) from[i] = i * 0x9E3779B97F4A7C15U;
        std::vector<std::uint64_t> to(from.size());
        for (auto _ : state) {
          benchmark::DoNotOptimize(
              way(std::as_bytes(std::span(from)), reinterpret_cast<std::byte*>(to.data())));
        }
        state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
      });
}

}  // namespace

int main(int argc, char** argv) {
  for (const std::size_t bytes :
       {std::size_t{64}, std::size_t{4} << 10, std::size_t{64} << 10, std::size_t{1} << 20}) {
    for (const ChecksumWay& way : dstorm::checksum_ways()) {
      if (!way.is_possible) continue;
      register_way(way.name, bytes, [=](Bytes from, std::byte*) { return way.add(0, from); });
    }
    register_way("add_copying", bytes, [](Bytes from, std::byte* to) {
      Checksum checksum;
      checksum.add_copying(from, to);
      return checksum.value();
    });
    register_way("memcpy", bytes, [](Bytes from, std::byte* to) {
      std::memcpy(to, from.data(), from.size());
      return static_cast<std::uint64_t>(to[from.size() - 1]);
    });
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
