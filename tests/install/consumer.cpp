// A program of a user, one rank: finds headers and the libraries where they were installed.
#include <array>
#include <cstdint>
#include <cstdio>
#include <dstorm/dstorm.hpp>
#include <learn/learn.hpp>
#include <memory>
#include <vol/vol.hpp>

int main() {
  const auto out = dstorm::Graph::halton().out(0, 12);
  std::printf("rank 0 of 12 sends to %zu ranks\n", out.size());
  learn::Csr<float>{.starts = std::array<std::int64_t, 1>{0}}.check();
  return out.empty() ? 1 : 0;
}
