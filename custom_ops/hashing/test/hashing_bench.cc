// Million values per second of CategoryHash. Usage: hashing_bench [n=1000000] [threads=2] [rounds=20]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "hashing/hashing.h"
#include "hashing/test/hashing_cases.h"

namespace largeout {
namespace {

void Measure(const char* name, const CategoryColumn& column, int64_t n, int64_t k, int threads, int rounds) {
  TestCall<CpuCall> call(threads);
  std::vector<uint64_t> seeds;
  for (int64_t j = 0; j < k; ++j) seeds.push_back(j);
  std::vector<int64_t> ids(n * k);
  const CategoryRules rules = {seeds.data(), k, (1 << 20) + 7, 0};
  double best = 1e9;
  for (int round = 0; round < rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    HashingCpu(call.get()).Categories(&column, 1, n, rules, ids.data());
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::printf("%-18s k = %d, %d threads: %7.1f M values/s\n", name, static_cast<int>(k), threads,
              n / best * 1e-6);
}

int Main(int argc, char** argv) {
  const auto argument = [&](int i, int64_t fallback) { return argc > i ? std::atoll(argv[i]) : fallback; };
  const int64_t n = argument(1, 1000000);
  const int threads = static_cast<int>(argument(2, 2)), rounds = static_cast<int>(argument(3, 20));
  Random random(1);
  for (const int64_t length : {8, 12, 16, 40, 200}) {
    std::vector<std::string> values(n, std::string(length, 'x'));
    for (std::string& value : values) value[random.Below(length)] = static_cast<char>(random.Below(256));
    char name[32];
    std::snprintf(name, sizeof(name), "%d bytes", static_cast<int>(length));
    for (const int64_t k : {1, 4}) {
      Measure(name, Column(values), n, k, 1, rounds);
      Measure(name, Column(values), n, k, threads, rounds);
    }
  }
  std::vector<int64_t> integers(n);
  for (int64_t& value : integers) value = random.Below(1000000000);
  Measure("int64 of 9 digits", Column(integers), n, 1, 1, rounds);
  Measure("int64 of 9 digits", Column(integers), n, 1, threads, rounds);
  return 0;
}

}  // namespace
}  // namespace largeout

int main(int argc, char** argv) { return largeout::Main(argc, argv); }
