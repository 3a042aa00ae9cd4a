#include "common/cuda/late_report.cuh"
#include "common/cuda/launch.cuh"
#include "common/test/cuda_testing.cuh"

namespace largeout {
namespace {

__global__ void PostOne(LateFinding* slot, int64_t value) { Post(slot, 1, 2, value, 4); }

void PostFrom(LateReport* report, int64_t value) {
  LateFinding* slot;
  CUDA_OK(report->Open(&slot));
  CUDA_OK(Launch(PostOne, 1, 1, 0, nullptr, slot, value));
  CUDA_OK(cudaDeviceSynchronize());
}

LARGEOUT_TEST(AFindingIsTakenOnce) {
  LateReport report;
  LateFinding found;
  CHECK_TRUE(!report.Take(&found));
  PostFrom(&report, 3);
  PostFrom(&report, 30);  // the first one stays
  CHECK_TRUE(report.Take(&found) && found.rule == 1 && found.position == 2 && found.value == 3 && found.limit == 4);
  CHECK_TRUE(!report.Take(&found));
  PostFrom(&report, 5);
  CHECK_TRUE(report.Take(&found) && found.value == 5);
}

LARGEOUT_TEST(ReportsAreApartAndNewOnesAreEmpty) {
  LateFinding found;
  for (int i = 0; i < 100; ++i) {
    LateReport one, other;
    PostFrom(&one, i);
    LateFinding* slot;
    CUDA_OK(other.Open(&slot));
    CHECK_TRUE(!other.Take(&found));
    if (i % 2 == 0) CHECK_TRUE(one.Take(&found) && found.value == i);  // else it goes with the report
  }
}

}  // namespace
}  // namespace largeout
