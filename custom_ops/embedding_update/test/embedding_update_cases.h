// Tests of EmbeddingUpdateCpu and EmbeddingUpdateGpu: they give what the gradient followed by the row update gives.
#ifndef LARGEOUT_EMBEDDING_UPDATE_EMBEDDING_UPDATE_CASES_H_
#define LARGEOUT_EMBEDDING_UPDATE_EMBEDDING_UPDATE_CASES_H_

#include <vector>

#include "embedding/test/embedding_cases.h"
#include "row_update/test/row_update_cases.h"

namespace largeout {

// A batch, its gradient, and the table and slots that it updates.
template <typename T, typename Id>
struct FusedProblem {
  FusedProblem(const EmbeddingCase& c, UpdateRule rule, float decay, uint64_t seed)
      : FusedProblem(c, rule, decay, Random(seed)) {}

  const UpdateRuleInfo& info() const { return kUpdateRuleInfo[static_cast<int>(rule)]; }

  EmbeddingCase c;
  UpdateRule rule;
  std::vector<float> hyper;
  std::vector<int64_t> rounding;
  UpdateState<T> start;
  std::vector<T> grad;
  Batch<Id> batch;

 private:
  FusedProblem(const EmbeddingCase& c, UpdateRule rule, float decay, Random random)
      : c(c),
        rule(rule),
        hyper(HyperOf(rule, decay)),
        rounding(c.dim % 2 == 0 ? std::vector<int64_t>() : RoundingOf<T>(static_cast<uint64_t>(c.bags))),
        start({Make<T>(c.rows * c.dim, &random, 0.f), {Slot(0, &random), Slot(1, &random)}}),
        grad(Make<T>(c.bags * c.dim, &random, 0.f)),
        batch(c.bags, c.size, c.rows, c.weighted, &random) {}

  std::vector<float> Slot(int k, Random* random) const {
    if (k >= info().slots) return {};
    return Make<float>(info().slot_per_row ? c.rows : c.rows * c.dim, random, 3.f);
  }
};

// The state after one step in one pass.
template <typename Device, typename T, typename Id>
UpdateState<T> InOnePass(const FusedProblem<T, Id>& p, int threads = 1) {
  const ArrayOf<Device, T> table(p.start.table), grad(p.grad);
  const ArrayOf<Device, float> slot0(p.start.slots[0]), slot1(p.start.slots[1]);
  const NumbersOn<Device> step(p.hyper, p.rounding);
  const BagsOnDevice<Device, Id> on_device(p.batch);
  float* slots[] = {slot0.get(), slot1.get()};
  TestCall<typename Device::Call> call(threads);
  CHECK_TRUE(Device(call.get())
                 .Update(on_device.bags, p.c.combiner, grad.get(), p.rule, table.get(), p.c.rows, p.c.dim,
                         slots, step.get()) == 0);
  return {table.Host(), {slot0.Host(), slot1.Host()}};
}

// The same by Gradient (a launcher for lookups) and then Updater (one for row updates).
template <typename Gradient, typename Updater, typename T, typename Id>
UpdateState<T> InTwoPasses(const FusedProblem<T, Id>& p) {
  const ArrayOf<Gradient, T> grad(p.grad);
  const BagsOnDevice<Gradient, Id> on_device(p.batch);
  TestCall<typename Gradient::Call> call;
  Gradient gradient(call.get());
  CHECK_TRUE(gradient.PlanGrad(on_device.bags, p.c.combiner, p.c.rows) == 0);
  const ArrayOf<Gradient, int64_t> unique(gradient.num_unique());
  const ArrayOf<Gradient, T> sums(gradient.num_unique() * p.c.dim);
  CHECK_TRUE(gradient.GradRows(grad.get(), p.c.dim, unique.get(), sums.get()) == 0);
  UpdateState<T> state = p.start;
  const BadIndex bad =
      Update<Updater>(p.rule, p.c.rows, p.c.dim, unique.Host(), sums.Host(), p.hyper, &state, 1, p.rounding);
  CHECK_TRUE(bad.position == -1);
  return state;
}

// Gradient, Updater: of the same device as Device.
template <typename Device, typename Gradient, typename Updater, typename T, typename Id>
void CheckOnePass(const EmbeddingCase& c, UpdateRule rule, float decay, uint64_t seed) {
  const FusedProblem<T, Id> p(c, rule, decay, seed);
  const UpdateState<T> want = InTwoPasses<Gradient, Updater>(p), got = InOnePass<Device>(p);
  if constexpr (std::is_same_v<typename Device::Call, CpuCall>) {
    CHECK_TRUE(got == want);
    for (int threads : {2, 4}) CHECK_TRUE(InOnePass<Device>(p, threads) == want);
  } else {
    CHECK_TRUE(InOnePass<Device>(p) == got);
    // The order of a sum is the same; multiply-adds may be fused otherwise, and a bfloat16 rounds to its neighbour.
    const double tolerance = sizeof(T) == 2 ? 8e-3 : 1e-5;
    for (size_t i = 0; i < want.table.size(); ++i)
      CHECK_CLOSE(ToFloat(got.table[i]), ToFloat(want.table[i]), tolerance);
    for (int k = 0; k < p.info().slots; ++k) {
      for (size_t i = 0; i < want.slots[k].size(); ++i) CHECK_CLOSE(got.slots[k][i], want.slots[k][i], tolerance);
    }
  }
}

template <typename Device, typename Gradient, typename Updater>
void CheckOnePassOfAllTypes(const EmbeddingCase& c, UpdateRule rule, float decay, uint64_t seed) {
  CheckOnePass<Device, Gradient, Updater, float, int64_t>(c, rule, decay, seed);
  CheckOnePass<Device, Gradient, Updater, bfloat16, int32_t>(c, rule, decay, seed);
}

template <typename Device, typename Gradient, typename Updater>
void EveryRuleInOnePass() {
  uint64_t seed = 0;
  for (int i = 0; i < kUpdateRules; ++i) {
    const UpdateRule rule = static_cast<UpdateRule>(i);
    for (int64_t dim : {1, 2, 4, 8, 17, 64, 304}) {
      ++seed;
      const bool weighted = seed % 2 == 0;
      const auto combiner = static_cast<Combiner>(seed % 3);
      if (kEmulated && seed % kOneOf != 0 && dim != 64) continue;
      CheckOnePassOfAllTypes<Device, Gradient, Updater>({21, 3, 50, dim, weighted, combiner}, rule, 0.f, seed);
      CheckOnePassOfAllTypes<Device, Gradient, Updater>({25, -1, 123, dim, weighted, combiner}, rule, 0.01f, seed);
      CheckOnePassOfAllTypes<Device, Gradient, Updater>({252, 1, 123, dim, false, Combiner::kSum}, rule, 0.f, seed);
    }
  }
}

template <typename Device, typename Gradient, typename Updater>
void EveryLevelInOnePass() {
  ForEachLevel<Device>([] {
    for (int64_t dim : {2, 17, 64}) {
      CheckOnePassOfAllTypes<Device, Gradient, Updater>({21, 3, 50, dim, true, Combiner::kMean}, UpdateRule::kLazyAdam,
                                                        0.01f, 1);
      CheckOnePassOfAllTypes<Device, Gradient, Updater>({252, 1, 123, dim, false, Combiner::kSum},
                                                        UpdateRule::kRowWiseAdagrad, 0.f, 2);
    }
  });
}

// As LargeBatchesAndHotRows of embedding_cases.h: rows that are split by columns on CPUs, in pieces on GPUs.
template <typename Device, typename Gradient, typename Updater>
void HotRowsInOnePass() {
  for (UpdateRule rule : {UpdateRule::kSgd, UpdateRule::kRowWiseAdagrad, UpdateRule::kLazyAdam}) {
    CheckOnePassOfAllTypes<Device, Gradient, Updater>({960, 3, 40, 64, false, Combiner::kSum}, rule, 0.f, 1);
    CheckOnePassOfAllTypes<Device, Gradient, Updater>({960, 3, 40, 17, true, Combiner::kMean}, rule, 0.01f, 2);
    if (kEmulated && rule != UpdateRule::kRowWiseAdagrad) continue;
    CheckOnePass<Device, Gradient, Updater, float, int64_t>({4096, 5, 3000, 64, false, Combiner::kSum}, rule, 0.f, 3);
    CheckOnePass<Device, Gradient, Updater, bfloat16, int32_t>({9000, -1, 3000, 33, true, Combiner::kSqrtn}, rule,
                                                               0.f, 4);
    CheckOnePass<Device, Gradient, Updater, float, int32_t>({100000, 1, 40, 4, false, Combiner::kSum}, rule, 0.f, 5);
  }
}

template <typename Device, typename Gradient, typename Updater>
void OnePassAmidOtherWork() {
  const FusedProblem<float, int64_t> p({960, 3, 40, 17, true, Combiner::kMean}, UpdateRule::kAdagrad, 0.01f,
                                       1);
  const FusedProblem<bfloat16, int32_t> other({252, 1, 123, 64, false, Combiner::kSum}, UpdateRule::kSgd, 0.f,
                                              2);
  CheckRepeats<Device>([&] { return InOnePass<Device>(p); }, [&] { InOnePass<Device>(other); });
}

template <typename Device, typename Gradient, typename Updater>
void NothingInOnePass() {
  for (UpdateRule rule : {UpdateRule::kSgd, UpdateRule::kRowWiseAdagrad, UpdateRule::kLazyAdam}) {
    CheckOnePassOfAllTypes<Device, Gradient, Updater>({0, 3, 5, 8, false, Combiner::kMean}, rule, 0.f, 1);
    CheckOnePassOfAllTypes<Device, Gradient, Updater>({0, -1, 5, 8, false, Combiner::kSqrtn}, rule, 0.f, 1);
    CheckOnePassOfAllTypes<Device, Gradient, Updater>({4, 0, 5, 8, false, Combiner::kMean}, rule, 0.f, 1);
    CheckOnePassOfAllTypes<Device, Gradient, Updater>({1, 1, 1, 8, false, Combiner::kSum}, rule, 0.f, 1);
    CheckOnePassOfAllTypes<Device, Gradient, Updater>({5, 2, 0, 8, false, Combiner::kMean}, rule, 0.f, 1);
    CheckOnePassOfAllTypes<Device, Gradient, Updater>({5, 2, 5, 0, true, Combiner::kMean}, rule, 0.f, 1);
  }
}

}  // namespace largeout

#define LARGEOUT_EMBEDDING_UPDATE_CASES(Device, Gradient, Updater)     \
  LARGEOUT_FUSED_CASE(EveryRuleInOnePass, Device, Gradient, Updater)   \
  LARGEOUT_FUSED_CASE(HotRowsInOnePass, Device, Gradient, Updater)     \
  LARGEOUT_FUSED_CASE(OnePassAmidOtherWork, Device, Gradient, Updater) \
  LARGEOUT_FUSED_CASE(NothingInOnePass, Device, Gradient, Updater)

#endif  // LARGEOUT_EMBEDDING_UPDATE_EMBEDDING_UPDATE_CASES_H_
