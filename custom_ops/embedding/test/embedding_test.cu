// The CUDA kernels of embedding_cuda.h against float64 and against themselves: every run gives the same bits.
#include <cstdio>
#include <cstring>
#include <vector>

#include "common/test/cuda_testing.cuh"
#include "embedding/cuda/embedding_cuda.h"
#include "embedding/test/embedding_reference.h"

namespace largeout {
namespace {

struct Case {
  int64_t bags, size, rows, dim;
  bool weighted;
  Combiner combiner;
};

template <typename T>
bool Same(const std::vector<T>& x, const std::vector<T>& y) {
  return x.size() == y.size() && (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(T)) == 0);
}

template <typename T, typename Id>
struct Result {
  std::vector<T> out, rows;
  std::vector<int64_t> unique;
  std::vector<float> weights;

  Result(const std::vector<T>& host_table, const Case& c, const Batch<Id>& batch, const std::vector<T>& host_grad) {
    const OnGpu<T> table(host_table), grad(host_grad), out_gpu(c.bags * c.dim);
    const OnGpu<Id> ids(batch.ids);
    const OnGpu<int64_t> splits(batch.splits), checks(2);
    const OnGpu<float> weights_gpu(batch.weights), weights_grad(batch.size());
    Bags<Id> bags = batch.bags();
    bags.ids = ids.get();
    if (bags.row_splits != nullptr) bags.row_splits = splits.get();
    if (bags.weights != nullptr) bags.weights = weights_gpu.get();

    BadBags bad;
    CUDA_OK(CheckBagsCuda(bags, c.rows, checks.get(), nullptr, &bad));
    CHECK_TRUE(bad.split == -1);
    CHECK_TRUE(bad.id == FirstBadId(batch.ids.data(), batch.size(), c.rows));

    CUDA_OK(EmbeddingLookupCuda(table.get(), c.rows, c.dim, bags, c.combiner, out_gpu.get(), nullptr));
    out = out_gpu.Host();
    const OnGpu<char> workspace(EmbeddingGradWorkspaceCuda(bags, c.combiner, c.rows));
    EmbeddingGradPlanCuda plan;
    CUDA_OK(PlanEmbeddingGradCuda(bags, c.combiner, c.rows, workspace.get(), nullptr, &plan));
    const OnGpu<char> scratch(EmbeddingGradScratchCuda(plan, c.dim));
    const OnGpu<int64_t> unique_gpu(plan.num_unique);
    const OnGpu<T> rows_gpu(plan.num_unique * c.dim);
    CUDA_OK(EmbeddingGradRowsCuda(plan, grad.get(), c.dim, scratch.get(), unique_gpu.get(), rows_gpu.get(), nullptr));
    unique = unique_gpu.Host(), rows = rows_gpu.Host();
    CUDA_OK(EmbeddingWeightsGradCuda(table.get(), c.rows, c.dim, bags, c.combiner, grad.get(), weights_grad.get(), nullptr));
    weights = weights_grad.Host();
  }
  bool operator==(const Result& o) const {
    return Same(out, o.out) && Same(rows, o.rows) && unique == o.unique && Same(weights, o.weights);
  }
};

template <typename T, typename Id>
void Check(const Case& c, uint64_t seed) {
  Random random(seed);
  const std::vector<T> table = RandomValues<T>(c.rows * c.dim, &random);
  const std::vector<T> grad = RandomValues<T>(c.bags * c.dim, &random);
  const Batch<Id> batch(c.bags, c.size, c.rows, c.weighted, &random);
  const Result<T, Id> got(table, c, batch, grad);
  CHECK_TRUE((got == Result<T, Id>(table, c, batch, grad)));

  const EmbeddingTruth truth = Truth(table, c.rows, c.dim, batch.bags(), c.combiner, grad);
  const auto close = [](T got, double want, double bound) {
    const double stored = sizeof(T) == 2 ? std::fabs(want) / 256 : 0.0;
    const double error = std::fabs(ToFloat(got) - want), allowed = 9e-6 * bound + stored * 1.01;
    if (!(error <= allowed)) std::printf("got %.9g, expected %.9g, bound %.9g\n", ToFloat(got), want, bound);
    return error <= allowed;
  };
  for (size_t i = 0; i < got.out.size(); ++i) CHECK_TRUE(close(got.out[i], truth.out[i], truth.out_bounds[i]));
  for (size_t i = 0; i < got.weights.size(); ++i) CHECK_CLOSE(got.weights[i], truth.weights[i], 2e-5);
  CHECK_TRUE(got.unique.size() == truth.rows.size());
  size_t u = 0;
  for (const auto& [id, row] : truth.rows) {
    if (u >= got.unique.size()) break;
    CHECK_TRUE(got.unique[u] == id);
    for (int64_t k = 0; k < c.dim; ++k) CHECK_TRUE(close(got.rows[u * c.dim + k], row[k], truth.bounds.at(id)[k]));
    ++u;
  }
}

void CheckTypes(const Case& c, uint64_t seed) {
  Check<float, int32_t>(c, seed);
  Check<float, int64_t>(c, seed);
  Check<bfloat16, int32_t>(c, seed);
  Check<bfloat16, int64_t>(c, seed);
}

}  // namespace

LARGEOUT_TEST(EqualsFloat64) {
  uint64_t seed = 0;
  for (int64_t dim : {1, 3, 4, 17, 64, 100, 128, 304, 507, 640}) {
    for (Combiner combiner : {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn}) {
      CheckTypes({21, 3, 50, dim, seed % 2 == 0, combiner}, ++seed);
      CheckTypes({25, -1, 123, dim, seed % 2 == 1, combiner}, ++seed);
    }
    CheckTypes({252, 1, 123, dim, false, Combiner::kSum}, ++seed);
    CheckTypes({252, 1, 123, dim, true, Combiner::kSum}, ++seed);
  }
}

// Hot rows in pieces: about 480, and more than 128 * 256 occurrences.
LARGEOUT_TEST(HotRows) {
  CheckTypes({960, 3, 40, 64, false, Combiner::kSum}, 1);
  CheckTypes({960, 3, 40, 17, true, Combiner::kMean}, 2);
  Check<float, int64_t>({100000, 3, 40, 4, false, Combiner::kSum}, 3);
}

LARGEOUT_TEST(EmptyThings) {
  CheckTypes({0, 3, 5, 8, false, Combiner::kMean}, 1);
  CheckTypes({0, -1, 5, 8, false, Combiner::kSqrtn}, 1);
  CheckTypes({4, 0, 5, 8, false, Combiner::kMean}, 1);
  CheckTypes({1, 1, 1, 8, false, Combiner::kSum}, 1);
  CheckTypes({5, 2, 0, 8, false, Combiner::kMean}, 1);  // an empty table: every id is out of range
}

LARGEOUT_TEST(FindsBadSplits) {
  for (const auto& [splits, position] : std::vector<std::pair<std::vector<int64_t>, int64_t>>{
           {{0, 2, 2, 5}, -1}, {{1, 2, 5}, 0}, {{0, 3, 2, 5}, 2}, {{0, 6, 5}, 1}, {{0, 2, 4}, 2}}) {
    const OnGpu<int64_t> splits_gpu(splits), checks(2);
    const OnGpu<int32_t> ids(std::vector<int32_t>(5, 0));
    const Bags<int32_t> bags{ids.get(), 5, splits_gpu.get(), 0, static_cast<int64_t>(splits.size()) - 1, nullptr};
    BadBags bad;
    CUDA_OK(CheckBagsCuda(bags, -1, checks.get(), nullptr, &bad));
    CHECK_TRUE(bad.split == position && bad.id == -1);
  }
}

}  // namespace largeout

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped: no GPU\n");
    return 77;
  }
  return largeout::TestMain();
}
