// A program of a user, one rank: finds headers and both libraries where they were installed.
#include <cstdio>
#include <dstorm/dstorm.hpp>
#include <memory>
#include <vol/vol.hpp>

int main() {
  const auto out = dstorm::Graph::halton().out(0, 12);
  std::printf("rank 0 of 12 sends to %zu ranks\n", out.size());
  return out.empty() ? 1 : 0;
}
