// Runs a target on files once, without libFuzzer: its corpus is a test of every build.
//
// usage: fuzz_<target> FILE_OR_FOLDER...
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "target.hpp"

namespace {

void replay(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  fuzz::require(stream.is_open(), "what is to be run can be read");
  const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
  std::printf("%s: %zu bytes\n", file.c_str(), bytes.size());
  std::fflush(stdout);
  fuzz::run(fuzz::Input(std::as_bytes(std::span(bytes.data(), bytes.size()))));
}

}  // namespace

int main(int count, char** arguments) {
  int files = 0;
  for (const char* argument : std::span(arguments, static_cast<std::size_t>(count)).subspan(1)) {
    if (!std::filesystem::is_directory(argument)) {
      replay(argument);
      ++files;
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(argument)) {
      replay(entry.path());
      ++files;
    }
  }
  return files > 0 ? 0 : 1;  // a corpus that is not there proves nothing
}
