// Tests of EmbeddingCpu and EmbeddingGpu against float64: at every instruction-set level, and the same bits
// for 1 and 4 threads and for two runs.
#ifndef LARGEOUT_EMBEDDING_EMBEDDING_CASES_H_
#define LARGEOUT_EMBEDDING_EMBEDDING_CASES_H_

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "common/isa.h"
#include "common/test/test_call.h"
#include "embedding/test/embedding_reference.h"

namespace largeout {

struct EmbeddingCase {
  int64_t bags, size, rows, dim;
  bool weighted;
  Combiner combiner;
};

template <typename T>
bool Same(const std::vector<T>& x, const std::vector<T>& y) {
  return x.size() == y.size() && (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(T)) == 0);
}

// The arrays of a batch in the memory of the device.
template <typename Device, typename Id>
struct BagsOnDevice {
  explicit BagsOnDevice(const Batch<Id>& batch)
      : ids(batch.ids), splits(batch.splits), weights(batch.weights), bags(batch.bags()) {
    bags.ids = ids.get();
    if (bags.row_splits != nullptr) bags.row_splits = splits.get();
    if (bags.weights != nullptr) bags.weights = weights.get();
  }
  const ArrayOf<Device, Id> ids;
  const ArrayOf<Device, int64_t> splits;
  const ArrayOf<Device, float> weights;
  Bags<Id> bags;
};

// Lookup and both gradients.
template <typename T>
struct EmbeddingResult {
  std::vector<T> out, rows;
  std::vector<int64_t> unique;
  std::vector<float> weights;

  bool operator==(const EmbeddingResult& o) const {
    return Same(out, o.out) && Same(rows, o.rows) && unique == o.unique && Same(weights, o.weights);
  }
};

// The array of all rows has the bits of the rows that the ids touch, and zeros elsewhere.
template <typename Device, typename T, typename Id>
void CheckGradOfAllRows(const Bags<Id>& bags, Combiner combiner, int64_t num_rows, int64_t dim,
                        const std::vector<T>& host_grad, const std::vector<T>& rows,
                        const std::vector<int64_t>& unique, int threads) {
  std::vector<T> want(num_rows * dim);
  for (size_t u = 0; u < unique.size(); ++u) {
    std::copy_n(rows.data() + u * dim, dim, want.data() + unique[u] * dim);
  }
  Random random(1);
  const ArrayOf<Device, T> grad(host_grad), got(RandomValues<T>(num_rows * dim, &random));
  TestCall<typename Device::Call> call(threads);
  CHECK_TRUE(Device(call.get()).GradOfAllRows(bags, combiner, num_rows, grad.get(), dim, got.get()) == 0);
  CHECK_TRUE(Same(got.Host(), want));
}

template <typename Device, typename T, typename Id>
EmbeddingResult<T> RunEmbedding(const std::vector<T>& host_table, int64_t num_rows, int64_t dim,
                                Combiner combiner, const Batch<Id>& batch, const std::vector<T>& host_grad,
                                int threads = 1) {
  const ArrayOf<Device, T> table(host_table), grad(host_grad), out(batch.num_bags * dim);
  const BagsOnDevice<Device, Id> on_device(batch);
  const Bags<Id>& bags = on_device.bags;
  TestCall<typename Device::Call> call(threads);
  Device device(call.get());

  BadBags bad;
  CHECK_TRUE(device.Check(bags, num_rows, &bad) == 0);
  CHECK_TRUE(bad.split == -1);
  CHECK_TRUE(bad.id == FirstBadId(batch.ids.data(), batch.size(), num_rows));
  CHECK_TRUE(bad.id == -1 || bad.value == batch.ids[bad.id]);

  CHECK_TRUE(device.Lookup(table.get(), num_rows, dim, bags, combiner, out.get()) == 0);
  CHECK_TRUE(device.PlanGrad(bags, combiner, num_rows) == 0);
  const ArrayOf<Device, int64_t> unique(device.num_unique());
  const ArrayOf<Device, T> rows(device.num_unique() * dim);
  CHECK_TRUE(device.GradRows(grad.get(), dim, unique.get(), rows.get()) == 0);
  CheckGradOfAllRows<Device>(bags, combiner, num_rows, dim, host_grad, rows.Host(), unique.Host(), threads);
  const ArrayOf<Device, float> weights(batch.size());
  CHECK_TRUE(device.WeightsGrad(table.get(), num_rows, dim, bags, combiner, grad.get(), weights.get()) == 0);
  return {out.Host(), rows.Host(), unique.Host(), weights.Host()};
}

template <typename Device, typename T, typename Id>
void CheckEmbedding(const EmbeddingCase& c, uint64_t seed) {
  Random random(seed);
  const std::vector<T> table = RandomValues<T>(c.rows * c.dim, &random);
  const std::vector<T> grad = RandomValues<T>(c.bags * c.dim, &random);
  const Batch<Id> batch(c.bags, c.size, c.rows, c.weighted, &random);
  const auto run = [&](int threads) {
    return RunEmbedding<Device>(table, c.rows, c.dim, c.combiner, batch, grad, threads);
  };
  const EmbeddingResult<T> got = run(1);
  CHECK_TRUE(got == run(4));

  const EmbeddingTruth truth = Truth(table, c.rows, c.dim, batch.bags(), c.combiner, grad);
  const auto close = [](T got, double want, double bound) {
    const double stored =
        sizeof(T) == 2 ? std::fabs(want) / 256 : 0.0;  // rounding to bfloat16, 8 bits of fraction
    // Up to 300 equal terms are added, which all round the same way: n / 2 units of 2^-24 at the worst.
    const double error = std::fabs(ToFloat(got) - want), allowed = 9e-6 * bound + stored * 1.01;
    if (!(error <= allowed)) std::printf("got %.9g, expected %.9g, bound %.9g\n", ToFloat(got), want, bound);
    return error <= allowed;
  };
  for (size_t i = 0; i < got.out.size(); ++i)
    CHECK_TRUE(close(got.out[i], truth.out[i], truth.out_bounds[i]));
  for (size_t i = 0; i < got.weights.size(); ++i) CHECK_CLOSE(got.weights[i], truth.weights[i], 2e-5);
  // Rows whose only terms have a factor of 0 are listed with zeros; the batches here have none.
  CHECK_TRUE(got.unique.size() == truth.rows.size());
  size_t u = 0;
  for (const auto& [id, row] : truth.rows) {
    if (u >= got.unique.size()) break;
    CHECK_TRUE(got.unique[u] == id);
    for (int64_t k = 0; k < c.dim; ++k)
      CHECK_TRUE(close(got.rows[u * c.dim + k], row[k], truth.bounds.at(id)[k]));
    ++u;
  }
}

template <typename Device>
void CheckTypes(const EmbeddingCase& c, uint64_t seed) {
  CheckEmbedding<Device, float, int32_t>(c, seed);
  CheckEmbedding<Device, float, int64_t>(c, seed);
  CheckEmbedding<Device, bfloat16, int32_t>(c, seed);
  CheckEmbedding<Device, bfloat16, int64_t>(c, seed);
}

template <typename Device>
void EqualsFloat64() {
  for (Isa level : {Isa::kGeneric, Isa::kV3, Isa::kV4}) {
    if (!std::is_same_v<typename Device::Call, CpuCall> && level != Isa::kV4) continue;
    if (SetIsa(level) != level && std::is_same_v<typename Device::Call, CpuCall>) continue;
    uint64_t seed = 0;
    for (int64_t dim : SizesFor<Device>({1, 2, 3, 4, 8, 17, 32, 48, 64, 100, 128, 129, 304, 507},
                                        {1, 3, 4, 17, 64, 100, 128, 304, 507, 640})) {
      for (Combiner combiner : {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn}) {
        for (bool weighted : {false, true}) {
          CheckTypes<Device>({21, 3, 50, dim, weighted, combiner}, ++seed);
          CheckTypes<Device>({25, -1, 123, dim, weighted, combiner}, ++seed);
        }
      }
      CheckTypes<Device>({252, 1, 123, dim, false, Combiner::kSum}, ++seed);
      CheckTypes<Device>({252, 1, 123, dim, true, Combiner::kSum}, ++seed);
    }
  }
  SetIsa(BestIsa());
}

// Large enough for several chunks of the sort and for hot rows that are split by columns, on CPUs; for hot
// rows in pieces on GPUs: about 480, and more than 128 * 256 occurrences.
template <typename Device>
void LargeBatchesAndHotRows() {
  CheckEmbedding<Device, float, int64_t>({4096, 5, 3000, 64, false, Combiner::kSum}, 1);
  CheckEmbedding<Device, float, int32_t>({4096, 5, 3000, 20, true, Combiner::kMean}, 2);
  CheckEmbedding<Device, bfloat16, int64_t>({9000, -1, 3000, 33, true, Combiner::kSqrtn}, 3);
  CheckTypes<Device>({960, 3, 40, 64, false, Combiner::kSum}, 1);
  CheckTypes<Device>({960, 3, 40, 17, true, Combiner::kMean}, 2);
  CheckEmbedding<Device, float, int64_t>({100000, 3, 40, 4, false, Combiner::kSum}, 3);
}

// Rows of as many occurrences as GPUs sum whole, and of some more, side by side. Sums of whole numbers are
// exact.
template <typename Device>
void RowsAroundTheSizeOfPieces() {
  constexpr int64_t kDim = 5;
  Random random(4);
  std::vector<int64_t> ids;
  int64_t rows = 0;
  for (int round = 0; round < 3; ++round) {
    for (const int count :
         {129, 129, 1, 129, 127, 128, 130, 191, 192, 193, 255, 256, 257, 2, 385, 129, 63, 129})
      ids.insert(ids.end(), count, rows++);
  }
  const int64_t n = static_cast<int64_t>(ids.size());
  std::vector<float> grad(n * kDim), want(rows * kDim);
  for (float& x : grad) x = static_cast<float>(random.Below(9)) - 4.f;
  for (int64_t i = 0; i < n * kDim; ++i) want[ids[i / kDim] * kDim + i % kDim] += grad[i];
  const auto got = RunEmbedding<Device>(std::vector<float>(rows * kDim), rows, kDim, Combiner::kSum,
                                        Batch<int64_t>(ids, 1), grad);
  CHECK_TRUE(got.rows == want);
}

template <typename Device>
void EmptyThings() {
  CheckTypes<Device>({0, 3, 5, 8, false, Combiner::kMean}, 1);  // no bags
  CheckTypes<Device>({0, 1, 5, 8, false, Combiner::kSum}, 1);
  CheckTypes<Device>({0, -1, 5, 8, false, Combiner::kSqrtn}, 1);
  CheckTypes<Device>({4, 0, 5, 8, false, Combiner::kMean}, 1);  // bags of nothing
  CheckTypes<Device>({1, 1, 1, 8, false, Combiner::kSum}, 1);   // one row
  CheckTypes<Device>({5, 2, 0, 8, false, Combiner::kMean}, 1);  // an empty table: every id is out of range
  CheckTypes<Device>({5, 2, 5, 0, true, Combiner::kMean}, 1);   // rows of nothing
}

template <typename Device>
void WeightsThatCancelGiveZeros() {
  Batch<int32_t> batch({0, 1}, 2, {1.f, -1.f});
  const EmbeddingResult<float> got =
      RunEmbedding<Device>(std::vector<float>{1.f, 2.f, 3.f, 4.f}, 2, 2, Combiner::kMean, batch, {1.f, 1.f});
  CHECK_TRUE(got.out == std::vector<float>({0.f, 0.f}) && got.weights == std::vector<float>({0.f, 0.f}));
}

template <typename Device>
void RowsAreCopiedBitForBit() {
  const std::vector<float> table = {-0.f, 1.f, NAN, INFINITY}, grad(6, 1.f);
  const EmbeddingResult<float> got =
      RunEmbedding<Device>(table, 2, 2, Combiner::kSum, Batch<int64_t>({1, 0, 7}, 1), grad);
  CHECK_TRUE(std::memcmp(&got.out[0], &table[2], 8) == 0 && std::memcmp(&got.out[2], &table[0], 8) == 0);
  CHECK_TRUE(got.out[4] == 0.f && got.out[5] == 0.f);
}

template <typename Device>
void FindsBadSplits() {
  for (const auto& [values, position] : std::vector<std::pair<std::vector<int64_t>, int64_t>>{
           {{0, 2, 2, 5}, -1}, {{1, 2, 5}, 0}, {{0, 3, 2, 5}, 2}, {{0, 6, 5}, 1}, {{0, 2, 4}, 2}}) {
    const ArrayOf<Device, int64_t> splits(values);
    const ArrayOf<Device, int32_t> ids(std::vector<int32_t>(5, 0));
    const Bags<int32_t> bags{ids.get(), 5, splits.get(), 0, static_cast<int64_t>(values.size()) - 1, nullptr};
    TestCall<typename Device::Call> call;
    BadBags bad;
    CHECK_TRUE(Device(call.get()).Check(bags, -1, &bad) == 0);
    CHECK_TRUE(bad.split == position && bad.id == -1 && (position < 0 || bad.value == values[position]));
  }
}

}  // namespace largeout

#define LARGEOUT_EMBEDDING_CASES(Device)            \
  LARGEOUT_CASE(EqualsFloat64, Device)              \
  LARGEOUT_CASE(LargeBatchesAndHotRows, Device)     \
  LARGEOUT_CASE(RowsAroundTheSizeOfPieces, Device)  \
  LARGEOUT_CASE(EmptyThings, Device)                \
  LARGEOUT_CASE(WeightsThatCancelGiveZeros, Device) \
  LARGEOUT_CASE(RowsAreCopiedBitForBit, Device)     \
  LARGEOUT_CASE(FindsBadSplits, Device)

#endif  // LARGEOUT_EMBEDDING_EMBEDDING_CASES_H_
