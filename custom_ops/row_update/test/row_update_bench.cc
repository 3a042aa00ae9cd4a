// Time of one update of `touched` random rows; as many as there are: of all, in order, as a dense weight is
// updated. Usage: row_update_bench [rows=2000000] [dim=64] [touched=8192]
// [threads=2]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "common/isa.h"
#include "common/parallel.h"
#include "common/test/check.h"
#include "row_update/row_update.h"

int main(int argc, char** argv) {
  using namespace largeout;
  const auto argument = [&](int i, int64_t fallback) { return argc > i ? std::atoll(argv[i]) : fallback; };
  const int64_t rows = argument(1, 2000000), dim = argument(2, 64), touched = argument(3, 8192);
  ThreadParallel parallel(static_cast<int>(argument(4, 2)));
  std::vector<float> table(rows * dim, 0.1f), first(rows * dim, 0.1f), second(rows * dim, 0.1f);
  std::vector<float> values(touched * dim);
  Random random(1);
  for (float& v : values) v = random.Normalish();
  float* slots[] = {first.data(), second.data()};
  const float hyper[] = {1e-3f, 0.f, 0.1f, 0.001f, 1e-7f, 0.f};
  const float ftrl[] = {1e-3f, 0.f, -0.5f, 0.001f, 1e-7f, 0.f};
  std::printf("%lld of %lld rows x %lld, %d threads, %s\n", static_cast<long long>(touched),
              static_cast<long long>(rows), static_cast<long long>(dim), parallel.threads(),
              IsaName(CurrentIsa()));
  for (const bool unique : {true, false}) {
    for (int rule = 0; rule < kUpdateRules; ++rule) {
      std::vector<double> milliseconds;
      for (int round = 0; round < 20; ++round) {
        std::vector<int64_t> ids(touched);
        for (int64_t& id : ids) id = random.Below(rows);
        if (touched >= rows) {
          for (int64_t i = 0; i < touched; ++i) ids[i] = i % rows;
        } else if (unique) {
          std::sort(ids.begin(), ids.end());
          ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
        }
        const auto start = std::chrono::steady_clock::now();
        BadIndex bad;
        RowUpdateCpu({&parallel, nullptr})
            .Update(static_cast<UpdateRule>(rule), table.data(), rows, dim, slots, ids.data(),
                    static_cast<int64_t>(ids.size()), values.data(), rule == kUpdateRules - 1 ? ftrl : hyper,
                    &bad);
        const auto stop = std::chrono::steady_clock::now();
        milliseconds.push_back(std::chrono::duration<double, std::milli>(stop - start).count());
      }
      std::sort(milliseconds.begin(), milliseconds.end());
      const double bytes = touched * dim * 4.0 *
                           (3 + 2 * (kUpdateRuleInfo[rule].slot_per_row ? 0 : kUpdateRuleInfo[rule].slots));
      std::printf("%-17s %-9s median %.3f ms, best %.3f ms, %.1f GB/s\n", kUpdateRuleInfo[rule].name,
                  unique ? "unique" : "unsorted", milliseconds[10], milliseconds[0],
                  bytes / milliseconds[10] * 1e-6);
    }
  }
  return 0;
}
