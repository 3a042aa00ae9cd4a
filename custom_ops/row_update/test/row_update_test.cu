#include "common/test/cuda_testing.cuh"
#include "row_update/cuda/row_update_gpu.h"
#include "row_update/row_update_cpu.h"
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

}  // namespace largeout
