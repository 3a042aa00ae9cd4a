// The CPU kernels of embedding.h against float64, at every instruction-set level, and the same bits for 1 and 4 threads.
#include "embedding/embedding.h"

#include <cstring>
#include <vector>

#include "common/isa.h"
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

  Result(const std::vector<T>& table, const Case& c, const Bags<Id>& bags, const std::vector<T>& grad, Parallel* parallel) {
    out.resize(c.bags * c.dim);
    EmbeddingLookup(table.data(), c.rows, c.dim, bags, c.combiner, out.data(), parallel);
    EmbeddingGradPlan plan;
    PlanEmbeddingGrad(bags, c.combiner, c.rows, parallel, &plan);
    unique.resize(plan.num_unique);
    rows.resize(plan.num_unique * c.dim);
    EmbeddingGradRows(plan, grad.data(), c.dim, unique.data(), rows.data(), parallel);
    weights.resize(bags.num_ids);
    EmbeddingWeightsGrad(table.data(), c.rows, c.dim, bags, c.combiner, grad.data(), weights.data(), parallel);
  }
  bool operator==(const Result& o) const {
    return Same(out, o.out) && Same(rows, o.rows) && unique == o.unique && Same(weights, o.weights);
  }
};

template <typename T, typename Id>
void Check(const Case& c, uint64_t seed) {
  static ThreadParallel four(4);
  SerialParallel one;
  Random random(seed);
  const std::vector<T> table = RandomValues<T>(c.rows * c.dim, &random);
  const std::vector<T> grad = RandomValues<T>(c.bags * c.dim, &random);
  const Batch<Id> batch(c.bags, c.size, c.rows, c.weighted, &random);
  const Result<T, Id> got(table, c, batch.bags(), grad, &one);
  CHECK_TRUE((got == Result<T, Id>(table, c, batch.bags(), grad, &four)));

  const EmbeddingTruth truth = Truth(table, c.rows, c.dim, batch.bags(), c.combiner, grad);
  const auto close = [](T got, double want, double bound) {
    const double stored = sizeof(T) == 2 ? std::fabs(want) / 256 : 0.0;  // rounding to bfloat16, 8 bits of fraction
    // Up to 300 equal terms are added, which all round the same way: n / 2 units of 2^-24 at the worst.
    const double error = std::fabs(ToFloat(got) - want), allowed = 9e-6 * bound + stored * 1.01;
    if (!(error <= allowed)) std::printf("got %.9g, expected %.9g, bound %.9g\n", ToFloat(got), want, bound);
    return error <= allowed;
  };
  for (size_t i = 0; i < got.out.size(); ++i) CHECK_TRUE(close(got.out[i], truth.out[i], truth.out_bounds[i]));
  for (size_t i = 0; i < got.weights.size(); ++i) CHECK_CLOSE(got.weights[i], truth.weights[i], 2e-5);
  // Rows whose only terms have a factor of 0 are listed with zeros; the batches here have none.
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

LARGEOUT_TEST(EqualsFloat64AtEveryLevel) {
  for (Isa level : {Isa::kGeneric, Isa::kV3, Isa::kV4}) {
    if (SetIsa(level) != level) continue;
    uint64_t seed = 0;
    for (int64_t dim : {1, 3, 4, 17, 32, 48, 64, 100, 128, 129, 304, 507}) {
      for (Combiner combiner : {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn}) {
        for (bool weighted : {false, true}) {
          CheckTypes({21, 3, 50, dim, weighted, combiner}, ++seed);
          CheckTypes({25, -1, 123, dim, weighted, combiner}, ++seed);
        }
      }
      CheckTypes({252, 1, 123, dim, false, Combiner::kSum}, ++seed);
      CheckTypes({252, 1, 123, dim, true, Combiner::kSum}, ++seed);
    }
  }
  SetIsa(Isa::kV4);
}

// Large enough for several chunks of the sort and for hot rows that are split by columns.
LARGEOUT_TEST(LargeBatches) {
  Check<float, int64_t>({4096, 5, 3000, 64, false, Combiner::kSum}, 1);
  Check<float, int32_t>({4096, 5, 3000, 20, true, Combiner::kMean}, 2);
  Check<bfloat16, int64_t>({9000, -1, 3000, 33, true, Combiner::kSqrtn}, 3);
}

LARGEOUT_TEST(EmptyThings) {
  CheckTypes({0, 3, 5, 8, false, Combiner::kMean}, 1);     // no bags
  CheckTypes({0, 1, 5, 8, false, Combiner::kSum}, 1);
  CheckTypes({0, -1, 5, 8, false, Combiner::kSqrtn}, 1);
  CheckTypes({4, 0, 5, 8, false, Combiner::kMean}, 1);     // bags of nothing
  CheckTypes({1, 1, 1, 8, false, Combiner::kSum}, 1);      // one row
  CheckTypes({5, 2, 0, 8, false, Combiner::kMean}, 1);     // an empty table: every id is out of range
}

LARGEOUT_TEST(WeightsThatCancelGiveZeros) {
  SerialParallel one;
  const float table[] = {1.f, 2.f, 3.f, 4.f}, weights[] = {1.f, -1.f}, grad[] = {1.f, 1.f};
  const int32_t ids[] = {0, 1};
  float out[2], weights_grad[2];
  const Bags<int32_t> bags{ids, 2, nullptr, 2, 1, weights};
  EmbeddingLookup(table, 2, 2, bags, Combiner::kMean, out, &one);
  EmbeddingWeightsGrad(table, 2, 2, bags, Combiner::kMean, grad, weights_grad, &one);
  CHECK_TRUE(out[0] == 0.f && out[1] == 0.f && weights_grad[0] == 0.f && weights_grad[1] == 0.f);
}

LARGEOUT_TEST(RowsAreCopiedBitForBit) {
  SerialParallel one;
  const float table[] = {-0.f, 1.f, NAN, INFINITY};
  const int64_t ids[] = {1, 0, 7};
  float out[6];
  EmbeddingLookup(table, 2, 2, Bags<int64_t>{ids, 3, nullptr, 1, 3, nullptr}, Combiner::kSum, out, &one);
  CHECK_TRUE(std::memcmp(out, table + 2, 8) == 0 && std::memcmp(out + 2, table, 8) == 0);
  CHECK_TRUE(out[4] == 0.f && out[5] == 0.f);
}

LARGEOUT_TEST(FindsTheFirstBadId) {
  std::vector<int64_t> ids(10000, 6);
  CHECK_TRUE(FirstBadId(ids.data(), 10000, 7) == -1);
  CHECK_TRUE(FirstBadId(ids.data(), 10000, 6) == 0);
  ids[9999] = -1;
  CHECK_TRUE(FirstBadId(ids.data(), 10000, 7) == 9999);
  ids[5000] = int64_t{1} << 40;
  CHECK_TRUE(FirstBadId(ids.data(), 10000, 7) == 5000);
  CHECK_TRUE(FirstBadId(ids.data(), 0, 7) == -1);
}

LARGEOUT_TEST(FindsTheFirstBadSplit) {
  const auto bad = [](std::vector<int64_t> splits, int64_t n) {
    return FirstBadSplit(splits.data(), static_cast<int64_t>(splits.size()), n);
  };
  CHECK_TRUE(bad({0, 2, 2, 5}, 5) == -1 && bad({0}, 0) == -1);
  CHECK_TRUE(bad({1, 2, 5}, 5) == 0 && bad({-1, 5}, 5) == 0);
  CHECK_TRUE(bad({0, 3, 2, 5}, 5) == 2);
  CHECK_TRUE(bad({0, 6, 5}, 5) == 1);
  CHECK_TRUE(bad({0, 2, 4}, 5) == 2 && bad({0}, 3) == 0);
}

}  // namespace largeout
