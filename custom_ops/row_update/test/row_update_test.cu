#include "common/test/cuda_testing.cuh"
#include "common/test/on_stream.cuh"
#include "row_update/row_update.h"
#include "row_update/test/row_update_cases.h"

namespace largeout {

LARGEOUT_ROW_UPDATE_CASES(RowUpdateGpu)

template <typename T, typename G, typename Id>
void CompareWithCpu(UpdateRule rule, int64_t rows, int64_t dim, int64_t n, bool increasing) {
  const UpdateProblem<T, G, Id> p(rule, rows, dim, n, increasing, 0.01f);
  const UpdateState<T> got = RunUpdate<RowUpdateGpu>(p), want = RunUpdate<RowUpdateCpu>(p);
  // The GPU fuses multiply-adds; a bfloat16 may then round to its neighbour.
  for (size_t i = 0; i < want.table.size(); ++i)
    CHECK_CLOSE(ToFloat(got.table[i]), ToFloat(want.table[i]), sizeof(T) == 2 ? 8e-3 : 2e-5);
  for (int k = 0; k < kMaxSlots; ++k) {
    for (size_t i = 0; i < want.slots[k].size(); ++i) CHECK_CLOSE(got.slots[k][i], want.slots[k][i], 2e-5);
  }
}

LARGEOUT_TEST(EveryRuleEqualsTheCpu) {
  for (int i = 0; i < kUpdateRules; ++i) {
    const UpdateRule rule = static_cast<UpdateRule>(i);
    for (int64_t dim : {1, 3, 4, 17, 64, 128, 304}) {
      for (bool increasing : {false, true}) {
        CompareWithCpu<float, float, int64_t>(rule, 507, dim, 252, increasing);
        CompareWithCpu<float, bfloat16, int32_t>(rule, 123, dim, 252, increasing);
        CompareWithCpu<bfloat16, float, int32_t>(rule, 507, dim, 123, increasing);
        CompareWithCpu<bfloat16, bfloat16, int64_t>(rule, 507, dim, 123, increasing);
      }
    }
    CompareWithCpu<float, float, int32_t>(rule, 1, 64, 300, false);
  }
}

// More than 128 gradients of a row are summed by many blocks, beside rows that have few.
LARGEOUT_TEST(ARowThatOccursThousandsOfTimes) {
  for (int i = 0; i < kUpdateRules; ++i) {
    const UpdateRule rule = static_cast<UpdateRule>(i);
    for (int64_t dim : {1, 8, 17}) {
      UpdateProblem<float, float, int64_t> p(rule, 57, dim, 700, false, 0.01f);
      for (int64_t k = 0; k < 700; ++k) p.ids[k] = k % 10 == 0 ? p.ids[k] : 31;
      const UpdateState<float> got = RunUpdate<RowUpdateGpu>(p);
      CheckTruth<RowUpdateGpu>(p, got);
      CHECK_TRUE(RunUpdate<RowUpdateGpu>(p) == got);
      // Gradients in bfloat16: their sum is not rounded to one.
      UpdateProblem<float, bfloat16, int32_t> q(rule, 57, dim, 700, false, 0.f);
      for (int64_t k = 0; k < 700; ++k) q.ids[k] = k % 10 == 0 ? q.ids[k] : 56;
      CheckTruth<RowUpdateGpu>(q, RunUpdate<RowUpdateGpu>(q));
    }
  }
}

// 10^5 gradients of one row.
LARGEOUT_TEST(ARowThatOccursEverywhere) {
  UpdateProblem<float, float, int32_t> p(UpdateRule::kAdagrad, 9, 4, 100000, false, 0.f);
  for (int32_t& id : p.ids) id = 5;
  for (float& value : p.values) value /= 1000.f;
  const UpdateState<float> got = RunUpdate<RowUpdateGpu>(p);
  CheckTruth<RowUpdateGpu>(p, got);
  CHECK_TRUE(RunUpdate<RowUpdateGpu>(p) == got);
}

// As an op calls it in a graph: on another stream than the default one, and without waiting. A call's findings
// are told by the next one.
struct LateUpdate {
  BadIndex bad;
  UpdateState<float> state;
};
LateUpdate UpdateLate(OnStream* on, const UpdateProblem<float, float, int64_t>& p, bool increasing) {
  const OnGpu<float> table(p.start.table), values(p.values), hyper(p.hyper);
  const OnGpu<float> slot0(p.start.slots[0]), slot1(p.start.slots[1]);
  const OnGpu<int64_t> ids(p.ids);
  float* slots[] = {slot0.get(), slot1.get()};
  LateUpdate update;
  const int64_t waits = OnStream::Waits();
  CUDA_OK(RowUpdateGpu(on->call())
              .Update(p.rule, table.get(), p.rows, p.dim, slots, ids.get(), static_cast<int64_t>(p.ids.size()),
                      values.get(), hyper.get(), &update.bad, increasing));
  CHECK_TRUE(OnStream::Waits() == waits);
  on->Wait();
  update.state = {table.Host(), {slot0.Host(), slot1.Host()}};
  return update;
}

LARGEOUT_TEST(UpdatesThatWaitForNothing) {
  OnStream on;
  for (int i = 0; i < kUpdateRules; ++i) {
    const UpdateRule rule = static_cast<UpdateRule>(i);
    for (bool increasing : {false, true}) {
      const UpdateProblem<float, float, int64_t> p(rule, 57, 12, 300, increasing, 0.01f);
      for (bool promised : {false, true}) {
        if (promised && !increasing) continue;
        const LateUpdate update = UpdateLate(&on, p, promised);
        CHECK_TRUE(update.bad.position == -1);
        CheckTruth<RowUpdateGpu>(p, update.state);
      }
    }
  }
}

LARGEOUT_TEST(LateErrorsOfUpdates) {
  OnStream on;
  for (bool increasing : {false, true}) {
    const UpdateProblem<float, float, int64_t> good(UpdateRule::kLazyAdam, 57, 12, 300, increasing, 0.f);
    UpdateProblem<float, float, int64_t> p = good;
    p.ids.back() = 57;
    const LateUpdate first = UpdateLate(&on, p, increasing), second = UpdateLate(&on, good, increasing);
    CHECK_TRUE(first.bad.position == -1 && first.state == p.start);
    CHECK_TRUE(second.bad.late && !second.bad.out_of_order && second.bad.index == 57 && second.bad.rows == 57);
    CHECK_TRUE(second.bad.position == static_cast<int64_t>(p.ids.size()) - 1 && second.state == p.start);
    CHECK_TRUE(!UpdateLate(&on, good, increasing).bad.late);
  }
  // A promise that is broken.
  const UpdateProblem<float, float, int64_t> p(UpdateRule::kSgd, 57, 12, 300, false, 0.f);
  CHECK_TRUE(UpdateLate(&on, p, true).state == p.start);
  CHECK_TRUE(UpdateLate(&on, p, false).bad.out_of_order);
}

// Arrays that begin between 16-byte pieces are read and written value by value.
LARGEOUT_TEST(MisalignedUpdates) {
  for (bool increasing : {false, true}) {
    const UpdateProblem<float, float, int64_t> p(UpdateRule::kAdagrad, 57, 8, 100, increasing, 0.f);
    std::vector<float> longer(1, 0.f);
    longer.insert(longer.end(), p.values.begin(), p.values.end());
    const OnGpu<float> table(p.start.table), slot(p.start.slots[0]), values(longer), hyper(p.hyper);
    const OnGpu<int64_t> ids(p.ids);
    float* slots[] = {slot.get(), nullptr};
    TestCall<GpuCall> call;
    BadIndex bad;
    CUDA_OK(RowUpdateGpu(call.get())
                .Update(p.rule, table.get(), p.rows, p.dim, slots, ids.get(), static_cast<int64_t>(p.ids.size()),
                        values.get() + 1, hyper.get(), &bad));
    CheckTruth<RowUpdateGpu>(p, UpdateState<float>{table.Host(), {slot.Host(), p.start.slots[1]}});
  }
}

}  // namespace largeout
