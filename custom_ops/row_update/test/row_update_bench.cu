// Updates of 1.05 million of 1.68 million rows of 128: by every rule where the rows increase, as our
// gradients deliver them; and where they come in any order, each once or one of them 50 thousand times, which
// takes a sort and sums.
#include "common/test/cuda_bench.cuh"
#include "row_update/row_update.h"

namespace largeout {
namespace {

enum class Order { kIncreasing, kShuffled, kPadding };
constexpr const char* kOrderNames[] = {"increasing rows", "rows in any order", "rows, 50K of them one"};

// Every row with the chance of 5 in 8.
std::vector<int64_t> Rows(Order order, int64_t rows) {
  Random random(1);
  std::vector<int64_t> ids;
  for (int64_t row = 0; row < rows; ++row) {
    if (random.Unit() < 0.625) ids.push_back(row);
  }
  if (order == Order::kIncreasing) return ids;
  for (size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[random.Below(static_cast<int64_t>(i))]);
  for (size_t i = 0; order == Order::kPadding && i < ids.size(); i += 21) ids[i] = 0;
  return ids;
}

// T: the type of the table and of the gradients.
template <typename T>
void Run(Bench* bench, Order order) {
  const int64_t dim = 128, rows = bench->quick() ? 20000 : 1680000;
  const std::vector<int64_t> ids = Rows(order, rows);
  const int64_t n = static_cast<int64_t>(ids.size());
  const double distinct = static_cast<double>(CountDistinct(ids));
  // Table, gradients, two slots; of a call: groups of the indices, sums of the gradients.
  BenchArena memory(rows * dim * (2 * static_cast<int64_t>(sizeof(T)) + 12) + n * 200 + (int64_t{16} << 20));
  T* table = BenchFilled<T>(&memory, rows * dim, 1, 0.1f);
  T* values = BenchFilled<T>(&memory, n * dim, 2, 0.1f);
  float* slots[] = {memory.Take<float>(rows * dim), memory.Take<float>(rows * dim)};
  const int64_t* indices = BenchUpload(&memory, ids);
  const std::vector<float> plain = {0.1f, 0.f, 0.1f, 0.1f, 0.1f, 0.1f},
                           ftrl = {0.1f, 0.f, -0.5f, 0.1f, 0.1f, 0.1f};
  const float *plain_hyper = BenchUpload(&memory, plain), *ftrl_hyper = BenchUpload(&memory, ftrl);
  char name[128];
  std::snprintf(name, sizeof(name), "%.2fM x %d %s, %.2fM %s", rows * 1e-6, static_cast<int>(dim),
                BenchTypeName<T>(), n * 1e-6, kOrderNames[static_cast<int>(order)]);
  const int64_t used = memory.used();
  for (int r = 0; r < kUpdateRules; ++r) {
    const UpdateRule rule = static_cast<UpdateRule>(r);
    const bool usual =
        rule == UpdateRule::kSgd || rule == UpdateRule::kAdagrad || rule == UpdateRule::kLazyAdam;
    if (!usual && (order != Order::kIncreasing || sizeof(T) == 2)) continue;
    for (float* slot : slots) BENCH_OK(cudaMemset(slot, 0, rows * dim * sizeof(float)));
    const Times t = bench->Time([&](int) {
      memory.Reset(used);
      ArenaScratch scratch(&memory);
      BadIndex bad;
      BENCH_OK(RowUpdateGpu({nullptr, &scratch})
                   .Update(rule, table, rows, dim, slots, indices, n, values,
                           rule == UpdateRule::kFtrl ? ftrl_hyper : plain_hyper, &bad));
    });
    const UpdateRuleInfo& info = kUpdateRuleInfo[r];
    const double slot_bytes = info.slot_per_row ? 8.0 * distinct : 8.0 * info.slots * distinct * dim;
    bench->Report(name, info.name, t,
                  n * (dim * sizeof(T) + 8.0) + 2.0 * distinct * dim * sizeof(T) + slot_bytes);
  }
}

}  // namespace
}  // namespace largeout

int main(int argc, char** argv) {
  using namespace largeout;
  if (!Bench::HasGpu()) return 77;
  Bench bench("row_update", argc, argv);
  for (const Order order : {Order::kIncreasing, Order::kShuffled, Order::kPadding}) Run<float>(&bench, order);
  Run<bfloat16>(&bench, Order::kIncreasing);
  return 0;
}
