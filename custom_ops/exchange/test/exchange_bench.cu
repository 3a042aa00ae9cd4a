// The rows of each of 8 shards that a batch of 1.05 million ids needs, out of 16.8 million: the sort, the
// cuts, and the arrays that are sent. Bytes are those of ids and results; what the sort moves counts against
// it.
#include "common/test/cuda_bench.cuh"
#include "exchange/exchange.h"

namespace largeout {
namespace {

constexpr int64_t kSets = 4, kShards = 8;

void Run(Bench* bench, BenchIds ids_kind, PlacementKind kind) {
  const int64_t rows = bench->quick() ? 20000 : 16777216, n = bench->quick() ? 4000 : 1048560;
  std::vector<int64_t> offsets;
  for (int64_t s = 0; s <= kShards; ++s) offsets.push_back(rows / kShards * s);
  // 7919 is prime, and no factor of the number of rows: a permutation.
  const PlacementView placement{kind, rows, kShards, 7919, 1, offsets.data(), nullptr, nullptr, 0};
  BenchArena memory((kSets * 8 + 8 + 8 + 4 + 200) * n + (int64_t{16} << 20));  // 200: what sorts an id
  const int64_t* ids[kSets];
  double distinct = 0;
  for (int64_t s = 0; s < kSets; ++s) {
    const std::vector<int64_t> host = MakeIds(ids_kind, n, rows, 10 + s);
    distinct += static_cast<double>(CountDistinct(host)) / kSets;
    ids[s] = BenchUpload(&memory, host);
  }
  int64_t *unique = memory.Take<int64_t>(n), *local = memory.Take<int64_t>(n);
  int32_t* inverse = memory.Take<int32_t>(n);
  const int64_t used = memory.used();
  ArenaScratch scratch(&memory);
  char name[96];
  std::snprintf(name, sizeof(name), "%.1fM rows on %d shards%s, %.2fM %s", rows * 1e-6,
                static_cast<int>(kShards), kind == PlacementKind::kModulo ? " by modulo" : ", permuted",
                n * 1e-6, kBenchIdsNames[static_cast<int>(ids_kind)]);
  const Times t = bench->Time([&](int i) {
    int64_t cuts[kShards + 2];
    PartitionFault fault;
    memory.Reset(used);
    ExchangeGpu device({nullptr, &scratch});
    BENCH_OK(device.Plan(placement, ids[i % kSets], n, true, cuts, &fault));
    BENCH_OK(device.Write(unique, local, inverse));
  });
  bench->Report(name, "partition", t, 12.0 * n + 16.0 * distinct);
}

}  // namespace
}  // namespace largeout

int main(int argc, char** argv) {
  using namespace largeout;
  if (!Bench::HasGpu()) return 77;
  Bench bench("exchange", argc, argv);
  for (const BenchIds ids : {BenchIds::kPowerLaw, BenchIds::kUniform, BenchIds::kPadding}) {
    for (const PlacementKind kind : {PlacementKind::kModulo, PlacementKind::kPermutation})
      Run(&bench, ids, kind);
  }
  return 0;
}
