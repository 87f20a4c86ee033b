// SPDX-License-Identifier: MIT
// Stands in for libFuzzer where the compiler has none: runs the files of the folders given once,
// and then -runs=N inputs of random bytes.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int count, char** arguments) {
  long runs = 0;
  long done = 0;
  const auto run_file = [&](const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    ++done;
  };
  for (int k = 1; k < count; ++k) {
    const std::string_view argument = arguments[k];
    if (argument.starts_with("-runs=")) {
      runs = std::atol(arguments[k] + 6);
    } else if (argument.starts_with("-")) {
      continue;
    } else if (std::filesystem::is_directory(argument)) {
      for (const auto& entry : std::filesystem::directory_iterator(argument))
        run_file(entry.path());
    } else {
      run_file(argument);
    }
  }
  std::mt19937 generator(1);
  std::vector<std::uint8_t> bytes;
  for (; runs > 0; --runs, ++done) {
    bytes.resize(generator() % 256);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(generator());
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  std::fprintf(stderr, "Done %ld runs\n", done);
}
