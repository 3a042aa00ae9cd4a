// Lookup, and the gradient of the rows: power-law and uniform ids in bags and alone, float32 and bfloat16.
// The update of the rows: row_update/test/row_update_step_bench.cu.
#include "embedding/test/embedding_bench.cuh"

namespace largeout {
namespace {

template <typename T>
void Run(Bench* bench, BenchIds kind, int64_t bag) {
  EmbeddingProblem<T> problem(*bench, kind, bag, 0);
  const Times lookup = bench->Time([&](int i) { problem.Lookup(i); });
  bench->Report(problem.name, "lookup", lookup, problem.lookup_bytes());
  const Times gradient = bench->Time([&](int i) { problem.Gradient(i); });
  bench->Report(problem.name, "gradient of the rows", gradient, problem.lookup_bytes() + problem.id_bytes());
}

}  // namespace
}  // namespace largeout

int main(int argc, char** argv) {
  using namespace largeout;
  if (!Bench::HasGpu()) return 77;
  Bench bench("embedding", argc, argv);
  Run<float>(&bench, BenchIds::kPowerLaw, 8);
  Run<float>(&bench, BenchIds::kUniform, 8);
  Run<float>(&bench, BenchIds::kTables, 1);
  Run<float>(&bench, BenchIds::kPadding, 8);
  Run<bfloat16>(&bench, BenchIds::kPowerLaw, 8);
  Run<bfloat16>(&bench, BenchIds::kUniform, 8);
  return 0;
}
