// A whole embedding step on FBGEMM's published shape (see embedding/test/embedding_bench.cu): lookup, then
// gradient and update of the touched rows, by SGD and by LazyAdam. FBGEMM on an H100: forward 0.345, backward
// + SGD 0.614, + Adam 1.005 ms; its production figures are 65% (forward) and 26.5% (backward) of peak
// bandwidth.
#include <unordered_set>

#include "common/cuda/launch.cuh"
#include "common/test/cuda_bench.cuh"
#include "embedding/cuda/embedding_cuda.h"
#include "row_update/cuda/row_update_cuda.h"

int main(int argc, char** argv) {
  using namespace largeout;
  if (!Bench::HasGpu()) return 77;
  Bench bench("row_update", argc, argv);
  const int64_t dim = 128, bag_size = 8, sets = 4;
  int64_t rows = bench.quick() ? 20000 : 16800000, ids = bench.quick() ? 4000 : 1050000 / 8 * 8;
  const auto need = [&] {
    return 3.0 * rows * dim * 4 + 4.0 * ids * dim * 4 + 1e8;
  };  // table, two slots, gradients
  while (need() > 0.85 * bench.free_bytes()) rows /= 2, ids = ids / 16 * 8;
  char name[64];
  std::snprintf(name, sizeof(name), "%.1fM x %d, %.2fM ids", rows * 1e-6, static_cast<int>(dim), ids * 1e-6);
  const int64_t bags_count = ids / bag_size;

  BenchArena memory(static_cast<int64_t>(need()));
  float* table = memory.Take<float>(rows * dim);
  float* slots[] = {memory.Take<float>(rows * dim), memory.Take<float>(rows * dim)};
  float* out = memory.Take<float>(bags_count * dim);
  float* grad = memory.Take<float>(bags_count * dim);
  float* hyper = memory.Take<float>(8);
  BENCH_OK(Launch(BenchFill, 8192, 256, 0, nullptr, table, rows * dim, 1, 0.1f));
  BENCH_OK(Launch(BenchFill, 8192, 256, 0, nullptr, grad, bags_count * dim, 2, 0.1f));
  for (float* slot : slots) BENCH_OK(cudaMemset(slot, 0, rows * dim * sizeof(float)));
  const float host_hyper[8] = {1e-3f, 0.f, 0.1f, 1e-3f, 1e-7f};
  BENCH_OK(cudaMemcpy(hyper, host_hyper, sizeof(host_hyper), cudaMemcpyHostToDevice));
  std::vector<Bags<int64_t>> bags;
  double unique = 0;
  for (int64_t s = 0; s < sets; ++s) {
    const std::vector<int64_t> host = PowerLawIds(ids, rows, 1.05, 10 + s);
    unique += static_cast<double>(std::unordered_set<int64_t>(host.begin(), host.end()).size()) / sets;
    int64_t* device = memory.Take<int64_t>(ids);
    BENCH_OK(cudaMemcpy(device, host.data(), ids * sizeof(int64_t), cudaMemcpyHostToDevice));
    bags.push_back({device, ids, nullptr, bag_size, bags_count, nullptr});
  }

  const double row_bytes = dim * 4.0, out_bytes = bags_count * row_bytes, id_bytes = ids * 8.0;
  const int64_t base = memory.used();
  const auto backward = [&](int i, UpdateRule rule) {
    memory.Reset(base);
    const Bags<int64_t>& b = bags[i % sets];
    void* workspace = memory.Take<char>(EmbeddingGradWorkspaceCuda(b, Combiner::kSum, rows));
    EmbeddingGradPlanCuda plan;
    BENCH_OK(PlanEmbeddingGradCuda(b, Combiner::kSum, rows, workspace, nullptr, &plan));
    int64_t* unique_ids = memory.Take<int64_t>(plan.num_unique);
    float* row_grads = memory.Take<float>(plan.num_unique * dim);
    void* scratch = memory.Take<char>(std::max<int64_t>(1, EmbeddingGradScratchCuda(plan, dim)));
    BENCH_OK(EmbeddingGradRowsCuda(plan, grad, dim, scratch, unique_ids, row_grads, nullptr));
    int error = 0;
    const size_t update_bytes = RowUpdateWorkspaceCuda(plan.num_unique, sizeof(int64_t), &error);
    BENCH_OK(error);
    void* update_workspace = memory.Take<char>(static_cast<int64_t>(update_bytes) + 1);
    BadIndex bad;
    BENCH_OK(RowUpdateCuda(rule, table, rows, dim, slots, unique_ids, plan.num_unique, row_grads, hyper,
                           update_workspace, update_bytes, nullptr, &bad));
  };
  const auto lookup = [&](int i) {
    BENCH_OK(EmbeddingLookupCuda(table, rows, dim, bags[i % sets], Combiner::kSum, out, nullptr));
  };
  // Backward at the least: the gradient of the output read, rows (and slots) read and written. Ours also
  // writes the row gradients and reads them back, since clipping and loss scaling happen between gradient and
  // update.
  const double sgd_bytes = out_bytes + id_bytes + 2 * unique * row_bytes;
  const double adam_bytes = out_bytes + id_bytes + 6 * unique * row_bytes;
  const double lookup_bytes = unique * row_bytes + out_bytes + id_bytes;
  bench.Report(name, "lookup", bench.Time(lookup), lookup_bytes);
  bench.Report(name, "backward + SGD", bench.Time([&](int i) { backward(i, UpdateRule::kSgd); }), sgd_bytes);
  bench.Report(name, "backward + LazyAdam", bench.Time([&](int i) { backward(i, UpdateRule::kLazyAdam); }),
               adam_bytes);
  const Times step = bench.Time([&](int i) {
    lookup(i);
    backward(i, UpdateRule::kLazyAdam);
  });
  bench.Report(name, "step with LazyAdam", step, lookup_bytes + adam_bytes);
  return 0;
}
