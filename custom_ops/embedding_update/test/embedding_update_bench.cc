// One step of a [rows, dim] float32 table by the gradient of [4096, 8] ids (zipf 1.2, scattered over the rows, combiner
// sum): the gradient and then the row update, beside both in one pass. Medians, the two alternating.
//
//   embedding_update_bench [rows = 1000000] [dim = 64]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "common/huge_pages.h"
#include "common/test/check.h"
#include "embedding_update/embedding_update.h"

namespace largeout {
namespace {

constexpr int64_t kBags = 4096, kSize = 8, kIds = kBags * kSize;
constexpr int kBatches = 16, kRounds = 12;

std::vector<int64_t> Zipf(int64_t n, int64_t rows, Random* random) {
  std::vector<int64_t> ids(n);
  const double power = 1.0 - 1.2, top = std::pow(static_cast<double>(rows) + 1.0, power);
  for (int64_t& id : ids) {
    const double rank = std::pow(1.0 + random->Unit() * (top - 1.0), 1.0 / power);
    id = static_cast<int64_t>((static_cast<uint64_t>(rank) * 0x9e3779b97f4a7c15ull) % static_cast<uint64_t>(rows));
  }
  return ids;
}

double Median(std::vector<double> times) {
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

template <typename Body>
double Seconds(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::unique_ptr<float[]> Filled(int64_t n, float value) {
  std::unique_ptr<float[]> array(new float[n]);
  AdviseHugePages(array.get(), n * sizeof(float));
  std::fill_n(array.get(), n, value);
  return array;
}

void Run(int64_t rows, int64_t dim) {
  Random random(1);
  const auto table = Filled(rows * dim, 1.f), slot0 = Filled(rows * dim, 0.1f), slot1 = Filled(rows * dim, 0.1f);
  float* slots[] = {slot0.get(), slot1.get()};
  const std::vector<float> grad(kBags * dim, 0.01f), hyper = {0.01f, 0.f, 0.1f, 0.001f, 1e-7f};
  std::vector<float> sums(kIds * dim);
  std::vector<int64_t> unique(kIds);
  std::vector<int> thread_counts = {1};
  const int all = static_cast<int>(std::thread::hardware_concurrency());
  if (all > 1) thread_counts.push_back(all);
  for (int threads : thread_counts) {
    ThreadParallel parallel(threads);
    const CpuCall call{&parallel, nullptr};
    std::vector<std::vector<int64_t>> ids;
    for (int i = 0; i < kBatches; ++i) ids.push_back(Zipf(kIds, rows, &random));
    const auto bags = [&](int i) {
      return Bags<int64_t>{ids[i % kBatches].data(), kIds, nullptr, kSize, kBags, nullptr};
    };
    EmbeddingUpdateCpu device(call);
    device.PlanGrad(bags(0), Combiner::kSum, rows);
    std::printf("%d threads, table [%ld, %ld], %ld different rows of %ld ids\n", threads,
                static_cast<long>(rows), static_cast<long>(dim), static_cast<long>(device.num_unique()),
                static_cast<long>(kIds));
    for (UpdateRule rule : {UpdateRule::kSgd, UpdateRule::kAdagrad, UpdateRule::kLazyAdam}) {
      std::vector<double> two, one;
      for (int r = 0; r < kRounds * kBatches; ++r) {
        two.push_back(Seconds([&] {
          device.PlanGrad(bags(r), Combiner::kSum, rows);
          device.GradRows(grad.data(), dim, unique.data(), sums.data());
          BadIndex bad;
          RowUpdateCpu(call).Update(rule, table.get(), rows, dim, slots, unique.data(), device.num_unique(),
                                    sums.data(), hyper.data(), &bad);
        }));
        one.push_back(Seconds([&] {
          device.Update(bags(r + kBatches / 2), Combiner::kSum, grad.data(), rule, table.get(), rows, dim,
                        slots, hyper.data());
        }));
      }
      std::printf("  %-10s two passes %7.3f ms   one %7.3f ms\n", kUpdateRuleInfo[static_cast<int>(rule)].name,
                  Median(two) * 1e3, Median(one) * 1e3);
    }
  }
}

}  // namespace
}  // namespace largeout

int main(int argc, char** argv) {
  largeout::Run(argc > 1 ? std::atoll(argv[1]) : 1000000, argc > 2 ? std::atoll(argv[2]) : 64);
  return 0;
}
