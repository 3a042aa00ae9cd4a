// A whole embedding step (embedding/test/embedding_bench.cuh says on what): lookup, then gradient and update
// of the touched rows, and both of these in one pass.
#include "embedding/test/embedding_bench.cuh"
#include "row_update/cuda/row_update_sums.h"

namespace largeout {
namespace {

struct Rule {
  UpdateRule rule;
  const char* name;
  int slots;
};
constexpr Rule kRules[] = {{UpdateRule::kSgd, "SGD", 0},
                           {UpdateRule::kAdagrad, "Adagrad", 1},
                           {UpdateRule::kLazyAdam, "LazyAdam", 2}};

template <typename T>
void Run(Bench* bench, BenchIds kind, int64_t bag, bool steps) {
  EmbeddingProblem<T> problem(*bench, kind, bag, 2);
  const float host_hyper[8] = {1e-3f, 0.f, 0.1f, 1e-3f, 1e-7f};
  float* hyper;
  BENCH_OK(cudaMalloc(&hyper, sizeof(host_hyper)));
  BENCH_OK(cudaMemcpy(hyper, host_hyper, sizeof(host_hyper), cudaMemcpyHostToDevice));
  const auto backward = [&](int i, UpdateRule rule) {
    const auto found = problem.Gradient(i);
    BadIndex bad;
    BENCH_OK(RowUpdateGpu({nullptr, problem.scratch()})
                 .Update(rule, problem.table, problem.rows(), EmbeddingProblem<T>::kDim, problem.slot,
                         found.rows, found.count, found.values, hyper, &bad));
  };
  const auto fused = [&](int i, UpdateRule rule) {
    const GpuCall call = problem.Call();
    EmbeddingGradPlanCuda plan;
    BENCH_OK(
        PlanEmbeddingGradCuda(problem.bags[i % problem.kSets], Combiner::kSum, problem.rows(), call, &plan));
    BENCH_OK(SumAndStepCuda(plan, problem.grad, /*round=*/true, rule, problem.table,
                            EmbeddingProblem<T>::kDim, problem.slot, hyper, nullptr, call));
  };
  for (const Rule& rule : kRules) {
    // Backward at the least: the gradient of the output read, rows and slots read and written. What a step
    // writes and reads beyond that, as gradients of rows, counts against it.
    const double bytes = problem.out_bytes() + problem.id_bytes() + 2 * problem.row_bytes() +
                         2 * rule.slots * problem.slot_bytes();
    bench->Report(problem.name, std::string("backward + ") + rule.name,
                  bench->Time([&](int i) { backward(i, rule.rule); }), bytes);
    bench->Report(problem.name, std::string("fused backward + ") + rule.name,
                  bench->Time([&](int i) { fused(i, rule.rule); }), bytes);
    if (!steps) continue;
    const Times step = bench->Time([&](int i) {
      problem.Lookup(i);
      backward(i, rule.rule);
    });
    bench->Report(problem.name, std::string("step with ") + rule.name, step, problem.lookup_bytes() + bytes);
  }
  BENCH_OK(cudaFree(hyper));
}

}  // namespace
}  // namespace largeout

int main(int argc, char** argv) {
  using namespace largeout;
  if (!Bench::HasGpu()) return 77;
  Bench bench("row_update", argc, argv);
  Run<float>(&bench, BenchIds::kPowerLaw, 8, true);
  Run<float>(&bench, BenchIds::kUniform, 8, true);
  Run<float>(&bench, BenchIds::kTables, 1, true);
  Run<float>(&bench, BenchIds::kPadding, 8, false);
  Run<bfloat16>(&bench, BenchIds::kPowerLaw, 8, false);
  return 0;
}
