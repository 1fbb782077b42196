// Fold kernels at every level this machine has, beside plain loops and memcpy. Bytes per second
// count what the fold must move: every input once and the output once.
//
//   kernels_benchmark --benchmark_filter='mean/float32/.*/k:2/'
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "vol/kernels.hpp"

namespace {

constexpr std::size_t kSizes[] = {std::size_t{4} << 10,   std::size_t{32} << 10,
                                  std::size_t{256} << 10, std::size_t{2} << 20,
                                  std::size_t{16} << 20,  std::size_t{64} << 20};
constexpr std::size_t kLineFloats = 16;
constexpr std::size_t kPageFloats = 1024;

// k arrays on cache lines, each starting elsewhere in its page as separate mailboxes would. The
// result replaces the first, as a gather folds into the rank's own values.
class Inputs {
 public:
  Inputs(std::size_t k, std::size_t n) {
    for (std::size_t j = 0; j < k; ++j) {
      auto& array = arrays_.emplace_back(n + kPageFloats + kLineFloats);
      for (std::size_t i = 0; i < array.size(); ++i) {
        array[i] = static_cast<float>((i * 7919 + j * 104729) % 1000) * 0.25F;
      }
      void* start = array.data();
      std::size_t space = array.size() * sizeof(float);
      start = std::align(kLineFloats * sizeof(float), n * sizeof(float), start, space);
      pointers_.push_back(static_cast<float*>(start) + 4 * kLineFloats * j % kPageFloats);
    }
  }
  float* out() { return const_cast<float*>(in(0)); }
  const void* const* in() const { return pointers_.data(); }
  const float* in(std::size_t j) const { return static_cast<const float*>(pointers_[j]); }

 private:
  std::vector<std::vector<float>> arrays_;
  std::vector<const void*> pointers_;
};

void count_bytes(benchmark::State& state, std::size_t streams, std::size_t bytes) {
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(streams * bytes));
}

template <class Fold>
void run_fold(benchmark::State& state, std::size_t k, std::size_t bytes, Fold fold) {
  const std::size_t n = bytes / sizeof(float);
  Inputs inputs(k, n);
  for (auto _ : state) {
    fold(inputs, n);
    benchmark::ClobberMemory();
  }
  count_bytes(state, k + 1, bytes);
}

// What one writes without a kernel: a pass an input.
void naive_sum(Inputs& inputs, std::size_t k, std::size_t n) {
  float* const out = inputs.out();
  for (std::size_t j = 1; j < k; ++j) {
    const float* const in = inputs.in(j);
    for (std::size_t i = 0; i < n; ++i) out[i] += in[i];
  }
}

void naive_mean(Inputs& inputs, std::size_t k, std::size_t n) {
  naive_sum(inputs, k, n);
  for (std::size_t i = 0; i < n; ++i) inputs.out()[i] /= static_cast<float>(k);
}

void naive_median(Inputs& inputs, std::size_t k, std::size_t n) {
  std::vector<float> column(k);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < k; ++j) column[j] = inputs.in(j)[i];
    const auto middle = column.begin() + static_cast<std::ptrdiff_t>(k / 2);
    std::nth_element(column.begin(), middle, column.end());
    inputs.out()[i] =
        k % 2 == 1 ? *middle : (*middle + *std::max_element(column.begin(), middle)) / 2;
  }
}

std::string name_of(std::string_view fold, std::string_view how, std::size_t k, std::size_t bytes) {
  return std::string(fold) + "/float32/" + std::string(how) + "/k:" + std::to_string(k) +
         "/bytes:" + std::to_string(bytes);
}

void register_folds(std::size_t k, std::size_t bytes) {
  const auto add = [&](std::string_view fold, std::string_view how, auto run) {
    benchmark::RegisterBenchmark(name_of(fold, how, k, bytes).c_str(),
                                 [=](benchmark::State& state) { run_fold(state, k, bytes, run); });
  };
  add("sum", "naive", [k](Inputs& x, std::size_t n) { naive_sum(x, k, n); });
  add("mean", "naive", [k](Inputs& x, std::size_t n) { naive_mean(x, k, n); });
  if (bytes <= std::size_t{4} << 20) {
    add("median", "naive", [k](Inputs& x, std::size_t n) { naive_median(x, k, n); });
  }
  for (const std::string_view level : {"baseline", "avx2", "avx512"}) {
    const vol::Kernels* const kernels = vol::kernels_at(vol::DType::kFloat32, level);
    if (kernels == nullptr) continue;
    add("sum", level, [=](Inputs& x, std::size_t n) { kernels->sum(x.out(), x.in(), k, n); });
    add("mean", level, [=](Inputs& x, std::size_t n) { kernels->mean(x.out(), x.in(), k, n); });
    add("median", level, [=](Inputs& x, std::size_t n) { kernels->median(x.out(), x.in(), k, n); });
    add("trimmed_mean", level, [=](Inputs& x, std::size_t n) {
      kernels->trimmed_mean(x.out(), x.in(), (k - 1) / 4, k, n);
    });
  }
}

template <class Copy>
void register_copy(std::string_view how, std::size_t bytes, Copy copy) {
  benchmark::RegisterBenchmark(
      ("copy/" + std::string(how) + "/bytes:" + std::to_string(bytes)).c_str(),
      [=](benchmark::State& state) {
        const std::vector<char> from(bytes, 1);
        std::vector<char> to(bytes);
        for (auto _ : state) {
          copy(to.data(), from.data(), bytes);
          benchmark::ClobberMemory();
        }
        count_bytes(state, 2, bytes);
      });
}

void register_all() {
  for (const std::size_t size : kSizes) {
    for (const std::size_t k : {2U, 4U, 8U}) register_folds(k, size);
    register_copy("memcpy", size,
                  [](void* to, const void* from, std::size_t n) { std::memcpy(to, from, n); });
    register_copy("vol", size, vol::copy);
  }
  // Call and tail, and more streams than the prefetchers follow.
  for (const std::size_t k : {2U, 3U}) register_folds(k, sizeof(float));
  for (const std::size_t k : {3U, 16U, 32U, 64U}) register_folds(k, std::size_t{1} << 20);
}

}  // namespace

int main(int argc, char** argv) {
  register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
