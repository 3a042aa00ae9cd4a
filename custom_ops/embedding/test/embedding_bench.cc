// Lookup and gradient of [4096, 8] ids (zipf 1.2, shuffled over the rows) on a [rows, 64] float32 table, combiner sum.
// Prints nanoseconds a row and GB/s beside the copy bandwidth measured in the same run.
//
//   embedding_bench [rows = 1000000] [dim = 64]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "common/test/check.h"
#include "common/huge_pages.h"
#include "common/isa.h"
#include "embedding/embedding.h"

namespace largeout {
namespace {

constexpr int64_t kBags = 4096, kSize = 8, kIds = kBags * kSize;
constexpr int kBatches = 16, kRounds = 12;

// Best of the rounds, in seconds, of body(round).
template <typename Body>
double Best(int rounds, const Body& body) {
  double best = 1e30;
  for (int r = 0; r < rounds; ++r) {
    const auto start = std::chrono::steady_clock::now();
    body(r);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

// Median over the batches: each has rows that the caches don't hold.
template <typename Body>
double Median(const Body& body) {
  std::vector<double> times;
  for (int r = 0; r < kRounds * kBatches; ++r) times.push_back(Best(1, [&](int) { body(r % kBatches); }));
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

std::vector<int64_t> Zipf(int64_t n, int64_t rows, Random* random) {
  // Inversion of the continuous power law over [1, rows + 1); a fixed odd multiplier scatters the ranks over the table.
  std::vector<int64_t> ids(n);
  const double power = 1.0 - 1.2, top = std::pow(static_cast<double>(rows) + 1.0, power);
  for (int64_t& id : ids) {
    const double rank = std::pow(1.0 + random->Unit() * (top - 1.0), 1.0 / power);
    id = static_cast<int64_t>((static_cast<uint64_t>(rank) * 0x9e3779b97f4a7c15ull) % static_cast<uint64_t>(rows));
  }
  return ids;
}

void Run(int64_t rows, int64_t dim) {
  Random random(1);
  std::unique_ptr<float[]> table(new float[rows * dim]);
  AdviseHugePages(table.get(), rows * dim * sizeof(float));  // as ShardedTable does
  for (int64_t i = 0; i < rows * dim; ++i) table[i] = static_cast<float>(i % 1000);
  std::vector<std::vector<int64_t>> batches;
  for (int i = 0; i < kBatches; ++i) batches.push_back(Zipf(kIds, rows, &random));
  std::vector<float> out(kBags * dim), grad(kBags * dim, 0.5f), sums(kIds * dim);
  std::vector<int64_t> unique(kIds);
  const auto bags = [&](int i) { return Bags<int64_t>{batches[i].data(), kIds, nullptr, kSize, kBags, nullptr}; };

  std::vector<int> thread_counts = {1};
  const int all = static_cast<int>(std::thread::hardware_concurrency());
  if (all > 1) thread_counts.push_back(all);
  std::printf("table [%ld, %ld] float32, ids [%ld, %ld], %s\n", static_cast<long>(rows), static_cast<long>(dim),
              static_cast<long>(kBags), static_cast<long>(kSize), IsaName(CurrentIsa()));
  for (int threads : thread_counts) {
    ThreadParallel parallel(threads);
    constexpr int64_t kCopy = int64_t{64} << 20;
    std::vector<char> from(kCopy, 1), to(kCopy);
    const double copy = 2.0 * kCopy / 1e9 / Best(8, [&](int) {
      parallel.For(kCopy / 4096, 4096, [&](int64_t b, int64_t e) { std::memcpy(&to[b * 4096], &from[b * 4096], (e - b) * 4096); });
    });
    std::vector<EmbeddingCpu> devices(kBatches, EmbeddingCpu({&parallel, nullptr}));
    const double lookup = Median(
        [&](int i) { devices[i].Lookup(table.get(), rows, dim, bags(i), Combiner::kSum, out.data()); });
    const double plan = Median([&](int i) { devices[i].PlanGrad(bags(i), Combiner::kSum, rows); });
    const double sum =
        Median([&](int i) { devices[i].GradRows(grad.data(), dim, unique.data(), sums.data()); });
    const double u = static_cast<double>(devices[0].num_unique());
    const double lookup_bytes = (u + kBags) * dim * 4, grad_bytes = (kBags + u) * dim * 4;
    std::printf("%d threads, copy %.1f GB/s, %.0f unique rows\n", threads, copy, u);
    std::printf("  lookup      %7.3f ms  %6.1f ns/row  %6.1f GB/s\n", lookup * 1e3, lookup * 1e9 / kIds, lookup_bytes / lookup / 1e9);
    std::printf("  group ids   %7.3f ms  %6.1f ns/id\n", plan * 1e3, plan * 1e9 / kIds);
    std::printf("  sum rows    %7.3f ms  %6.1f ns/row  %6.1f GB/s\n", sum * 1e3, sum * 1e9 / kIds, grad_bytes / sum / 1e9);
  }
}

}  // namespace
}  // namespace largeout

int main(int argc, char** argv) {
  largeout::Run(argc > 1 ? std::atoll(argv[1]) : 1000000, argc > 2 ? std::atoll(argv[2]) : 64);
  return 0;
}
