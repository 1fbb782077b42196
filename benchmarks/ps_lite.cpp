// ps-lite on the rounds of benchmarks/ps.py, which builds and runs it: ps_lite KEYS_FILE... is one
// process of its job. Prints a worker's keys a second, pushed and pulled.
#include <ps/ps.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace {

// The rows lie evenly in the space of keys, so that each server has as many. A server keeps its
// rows in one array, which is faster than ps-lite's own handle, a hash table of single values.
struct Shape {
  std::size_t rows, width;
  ps::Key stride() const { return ps::kMaxKey / rows; }
};

void serve(const Shape& shape) {
  auto* const server = new ps::KVServer<float>(0);
  std::vector<float> table(shape.rows * shape.width);
  server->set_request_handle([shape, table](const ps::KVMeta& meta, const ps::KVPairs<float>& asked,
                                            ps::KVServer<float>* from) mutable {
    const std::size_t count = asked.keys.size(), width = shape.width;
    const ps::Key stride = shape.stride();
    ps::KVPairs<float> answer;
    if (meta.pull) {
      answer.keys = asked.keys;
      answer.vals.resize(count * width);
    }
    for (std::size_t i = 0; i < count; ++i) {
      float* const row = &table[asked.keys[i] / stride * width];
      for (std::size_t j = 0; j < width; ++j) {
        if (meta.push) row[j] += asked.vals[i * width + j];
        if (meta.pull) answer.vals[i * width + j] = row[j];
      }
    }
    from->Response(meta, answer);
  });
  ps::RegisterExitCallback([server] { delete server; });
}

std::vector<std::int64_t> rows_in(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::vector<std::int64_t> rows(static_cast<std::size_t>(file.tellg()) / sizeof(std::int64_t));
  file.seekg(0).read(reinterpret_cast<char*>(rows.data()),
                     static_cast<std::streamsize>(rows.size() * sizeof(rows[0])));
  return rows;
}

void work(const Shape& shape, const std::vector<std::int64_t>& rows, double seconds) {
  ps::KVWorker<float> worker(0, 0);
  ps::SArray<ps::Key> keys(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    keys[i] = static_cast<ps::Key>(rows[i]) * shape.stride();
  }
  ps::SArray<float> gradients(rows.size() * shape.width, 1.0F), values(gradients.size());
  const auto round = [&] {
    worker.Wait(worker.ZPush(keys, gradients));
    worker.Wait(worker.ZPull(keys, &values));
  };
  using Clock = std::chrono::steady_clock;
  round();
  ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup);
  int rounds = 0;
  double taken = 0;
  for (const auto start = Clock::now(); taken < seconds; ++rounds) {
    round();
    taken = std::chrono::duration<double>(Clock::now() - start).count();
  }
  if (values[0] < static_cast<float>(rounds)) std::abort();  // what this worker has pushed
  std::printf("%.1f\n", 2.0 * static_cast<double>(rows.size()) * rounds / taken);
}

}  // namespace

int main(int argc, char** argv) {  // ROWS WIDTH SECONDS FILE..., a worker's rows in each
  if (argc < 4) return 2;
  const Shape shape{std::stoul(argv[1]), std::stoul(argv[2])};
  ps::Start(0);
  if (ps::IsServer()) serve(shape);
  // A server that gets a message before it has its handle aborts.
  ps::Postoffice::Get()->Barrier(0, ps::kScheduler + ps::kServerGroup + ps::kWorkerGroup);
  if (ps::IsWorker()) work(shape, rows_in(argv[4 + ps::MyRank()]), std::stod(argv[3]));
  ps::Finalize(0, true);
}
