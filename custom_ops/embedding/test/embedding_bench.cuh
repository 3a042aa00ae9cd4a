// The problem of embedding_bench.cu and row_update_step_bench.cu: 16.8 million rows x 128, 1.05 million ids,
// alone or in bags of 8 that are summed. It is the size of NVIDIA's benchmark of FBGEMM (ten tables of
// 1,677,721 rows; one of ten times the rows here, as FBGEMM lays them out). Smaller on a smaller GPU.
#ifndef LARGEOUT_EMBEDDING_EMBEDDING_BENCH_CUH_
#define LARGEOUT_EMBEDDING_EMBEDDING_BENCH_CUH_

#include "common/test/cuda_bench.cuh"
#include "embedding/cuda/embedding_plan.h"

namespace largeout {

// slots: float32 arrays as large as the table that an optimizer keeps.
template <typename T>
class EmbeddingProblem {
 public:
  static constexpr int64_t kDim = 128, kSets = 4;

  EmbeddingProblem(const Bench& bench, BenchIds kind, int64_t bag, int slots)
      : rows_(bench.quick() ? 20000 : 16777210),
        ids_(bench.quick() ? 4000 : 1048560),
        bag_(bag),
        memory_(Fit(bench, slots)) {
    table = BenchFilled<T>(&memory_, rows_ * kDim, 1, 0.1f);
    for (int i = 0; i < slots; ++i) {
      slot[i] = memory_.Take<float>(rows_ * kDim);
      BENCH_OK(cudaMemset(slot[i], 0, rows_ * kDim * sizeof(float)));
    }
    out = memory_.Take<T>(bags_count() * kDim);
    grad = BenchFilled<T>(&memory_, bags_count() * kDim, 2, 0.1f);
    for (int64_t s = 0; s < kSets; ++s) {
      const std::vector<int64_t> host = MakeIds(kind, ids_, rows_, 10 + s);
      distinct += static_cast<double>(CountDistinct(host)) / kSets;
      bags.push_back({BenchUpload(&memory_, host), ids_, nullptr, bag_, bags_count(), nullptr});
    }
    base_ = memory_.used();
    char text[160];
    const bool tables = kind == BenchIds::kTables;
    std::snprintf(text, sizeof(text), "%s%.*fM x %d %s, %.2fM %s, ", tables ? "10 x " : "", tables ? 2 : 1,
                  rows_ * (tables ? 1e-7 : 1e-6), static_cast<int>(kDim), BenchTypeName<T>(), ids_ * 1e-6,
                  kBenchIdsNames[static_cast<int>(kind)]);
    name = text + (bag_ > 1 ? "bags of " + std::to_string(bag_) : std::string("no bags"));
    std::printf("%s: %.0f of %ld ids are distinct\n", name.c_str(), distinct, static_cast<long>(ids_));
  }

  void Lookup(int i) {
    BENCH_OK(
        EmbeddingGpu({nullptr, &scratch_}).Lookup(table, rows_, kDim, bags[i % kSets], Combiner::kSum, out));
  }

  struct RowGradients {
    int64_t count;
    int64_t* rows;
    T* values;
  };
  // The memory of the last call is used again.
  GpuCall Call() {
    memory_.Reset(base_);
    return {nullptr, &scratch_};
  }
  RowGradients Gradient(int i) {
    EmbeddingGpu device(Call());
    BENCH_OK(device.PlanGrad(bags[i % kSets], Combiner::kSum, rows_));
    const int64_t unique = device.num_unique();
    const RowGradients found{unique, memory_.Take<int64_t>(unique), memory_.Take<T>(unique * kDim)};
    BENCH_OK(device.GradRows(grad, kDim, found.rows, found.values));
    return found;
  }

  int64_t rows() const { return rows_; }
  Scratch* scratch() { return &scratch_; }
  // At the least: a distinct row is read or written once, also where ids repeat.
  double row_bytes() const { return distinct * kDim * sizeof(T); }
  double slot_bytes() const { return distinct * kDim * sizeof(float); }
  double out_bytes() const { return static_cast<double>(bags_count()) * kDim * sizeof(T); }
  double id_bytes() const { return ids_ * 8.0; }
  double lookup_bytes() const { return row_bytes() + out_bytes() + id_bytes(); }

  std::string name;
  T *table, *out, *grad;
  float* slot[2] = {};
  std::vector<Bags<int64_t>> bags;
  double distinct = 0;

 private:
  int64_t bags_count() const { return ids_ / bag_; }

  // Table and slots; outputs, their gradients and those of rows; ids and what sorts them. Sets rows_ and
  // ids_.
  int64_t Fit(const Bench& bench, int slots) {
    const auto need = [&] {
      return rows_ * kDim * (sizeof(T) + slots * 4.0) + ids_ * (kDim * 4.0 * sizeof(T) + 200.0) + 1e8;
    };
    while (need() > 0.9 * bench.free_bytes()) rows_ /= 2, ids_ = ids_ / 160 * 80;
    return static_cast<int64_t>(need());
  }

  int64_t rows_, ids_, bag_, base_ = 0;
  BenchArena memory_;
  ArenaScratch scratch_{&memory_};
};

}  // namespace largeout

#endif  // LARGEOUT_EMBEDDING_EMBEDDING_BENCH_CUH_
