// Lookup and gradient on FBGEMM's published shape: 10 tables of 1.68 million rows x 128 float32 (one table of
// ten times the rows, as FBGEMM lays them out), 1.05 million ids of a power law in bags of 8, summed. Smaller
// on a smaller GPU. The update of the rows: row_update/test/row_update_step_bench.cu.
#include <unordered_set>

#include "common/cuda/launch.cuh"
#include "common/test/cuda_bench.cuh"
#include "embedding/cuda/embedding_cuda.h"

int main(int argc, char** argv) {
  using namespace largeout;
  if (!Bench::HasGpu()) return 77;
  Bench bench("embedding", argc, argv);
  const int64_t dim = 128, bag_size = 8, sets = 4;
  int64_t rows = bench.quick() ? 20000 : 16800000, ids = bench.quick() ? 4000 : 1050000 / 8 * 8;
  while (rows * dim * 4.0 + 6.0 * ids * dim * 4 > 0.8 * bench.free_bytes()) rows /= 2, ids = ids / 16 * 8;
  char name[64];
  std::snprintf(name, sizeof(name), "%.1fM x %d, %.2fM ids", rows * 1e-6, static_cast<int>(dim), ids * 1e-6);
  const int64_t bags_count = ids / bag_size;

  BenchArena memory(static_cast<int64_t>(rows * dim * 4.0 + 6.0 * ids * dim * 4));
  float* table = memory.Take<float>(rows * dim);
  float* out = memory.Take<float>(bags_count * dim);
  float* grad = memory.Take<float>(bags_count * dim);
  BENCH_OK(Launch(BenchFill, 8192, 256, 0, nullptr, table, rows * dim, 1, 0.1f));
  BENCH_OK(Launch(BenchFill, 8192, 256, 0, nullptr, grad, bags_count * dim, 2, 0.1f));
  std::vector<Bags<int64_t>> bags;
  double unique = 0;
  for (int64_t s = 0; s < sets; ++s) {
    const std::vector<int64_t> host = PowerLawIds(ids, rows, 1.05, 10 + s);
    unique += static_cast<double>(std::unordered_set<int64_t>(host.begin(), host.end()).size()) / sets;
    int64_t* device = memory.Take<int64_t>(ids);
    BENCH_OK(cudaMemcpy(device, host.data(), ids * sizeof(int64_t), cudaMemcpyHostToDevice));
    bags.push_back({device, ids, nullptr, bag_size, bags_count, nullptr});
  }
  std::printf("embedding: %.0f of %ld ids are distinct\n", unique, static_cast<long>(ids));

  const double row_bytes = dim * 4.0, out_bytes = bags_count * row_bytes, id_bytes = ids * 8.0;
  const Times lookup = bench.Time([&](int i) {
    BENCH_OK(EmbeddingLookupCuda(table, rows, dim, bags[i % sets], Combiner::kSum, out, nullptr));
  });
  // Rows that occur often come from the cache: bytes per distinct row are what memory must move, bytes per id
  // what FBGEMM's percentages count.
  bench.Report(name, "lookup", lookup, unique * row_bytes + out_bytes + id_bytes);
  bench.Report(name, "lookup, bytes per id", lookup, ids * row_bytes + out_bytes + id_bytes);

  const int64_t base = memory.used();
  const Times gradient = bench.Time([&](int i) {
    memory.Reset(base);
    const Bags<int64_t>& b = bags[i % sets];
    void* workspace = memory.Take<char>(EmbeddingGradWorkspaceCuda(b, Combiner::kSum, rows));
    EmbeddingGradPlanCuda plan;
    BENCH_OK(PlanEmbeddingGradCuda(b, Combiner::kSum, rows, workspace, nullptr, &plan));
    int64_t* unique_ids = memory.Take<int64_t>(plan.num_unique);
    float* row_grads = memory.Take<float>(plan.num_unique * dim);
    void* scratch = memory.Take<char>(std::max<int64_t>(1, EmbeddingGradScratchCuda(plan, dim)));
    BENCH_OK(EmbeddingGradRowsCuda(plan, grad, dim, scratch, unique_ids, row_grads, nullptr));
  });
  bench.Report(name, "gradient of the rows", gradient, unique * row_bytes + out_bytes + 2 * id_bytes);
  return 0;
}
