// The CUDA kernels of exchange_cuda.h against one id at a time.
#include <cstdio>
#include <vector>

#include "common/test/cuda_testing.cuh"
#include "exchange/cuda/exchange_cuda.h"
#include "exchange/test/exchange_reference.h"

namespace largeout {
namespace {

constexpr PlacementKind kKinds[] = {PlacementKind::kIdentity, PlacementKind::kModulo,
                                    PlacementKind::kPermutation, PlacementKind::kExplicit};

// Runs the plan, and the outputs where it found nothing bad.
template <typename Id>
PartitionPlanCuda Run(const OwnedPlacement& placement, const std::vector<Id>& host_ids, bool check,
                      Partition* p) {
  const OnGpu<Id> ids(host_ids);
  const OnGpu<int64_t> position_of(placement.position_of), hot(placement.hot);
  const int64_t n = static_cast<int64_t>(host_ids.size());
  PlacementView view = placement.view;
  view.position_of = position_of.get(), view.hot = hot.get();
  const OnGpu<char> workspace(PartitionWorkspaceCuda(view, n));
  PartitionPlanCuda plan;
  p->cuts.assign(view.shards + 2, -7);
  CUDA_OK(PlanPartitionCuda(view, ids.get(), n, check, workspace.get(), nullptr, p->cuts.data(), &plan));
  if (plan.bad_hot >= 0 || plan.bad_id >= 0 || plan.bad_position >= 0) return plan;
  const OnGpu<int64_t> unique(plan.num_unique), local(plan.num_unique);
  const OnGpu<int32_t> inverse(n);
  CUDA_OK(WritePartitionCuda(plan, unique.get(), local.get(), inverse.get(), nullptr));
  p->unique = unique.Host(), p->local = local.Host(), p->inverse = inverse.Host();
  return plan;
}

template <typename Id>
void Check(const OwnedPlacement& placement, int64_t n, Random* random) {
  const std::vector<Id> ids = RandomIds<Id>(n, placement.view.rows, random);
  Partition got;
  Run(placement, ids, false, &got);
  CHECK_TRUE(got == TruePartition(placement, ids));
  int64_t first = -1;
  for (int64_t i = n - 1; i >= 0; --i) {
    if (ids[i] < 0 || ids[i] >= placement.view.rows) first = i;
  }
  const PartitionPlanCuda checked = Run(placement, ids, true, &got);
  CHECK_TRUE(checked.bad_id == first && checked.bad_hot == -1 && checked.bad_position == -1);
}

}  // namespace

LARGEOUT_TEST(EqualsOneIdAtATime) {
  Random random(1);
  for (PlacementKind kind : kKinds) {
    for (int64_t rows : {1, 7, 123, 5000}) {
      for (int64_t shards : {1, 5, 8, 300}) {
        for (int64_t num_hot : {int64_t{0}, rows / 3, rows}) {
          const OwnedPlacement placement(kind, rows, shards, num_hot, &random);
          for (int64_t n : {0, 1, 252, 1000}) {
            Check<int32_t>(placement, n, &random);
            Check<int64_t>(placement, n, &random);
          }
        }
      }
    }
  }
}

LARGEOUT_TEST(ManyIds) {
  Random random(2);
  for (PlacementKind kind : kKinds)
    Check<int64_t>(OwnedPlacement(kind, 3000, 8, 100, &random), 50000, &random);
}

// Keys of 64 bits: room for more positions than 32 bits have.
LARGEOUT_TEST(ManyPositions) {
  Random random(3);
  OwnedPlacement placement(PlacementKind::kExplicit, 5000, 4, 0, &random);
  placement.offsets[3] = int64_t{1} << 33, placement.offsets[4] = int64_t{1} << 34;
  for (int64_t& position : placement.position_of) position += position % 2 << 33;
  Check<int64_t>(placement, 1000, &random);
}

LARGEOUT_TEST(NamesTheFirstBadValue) {
  Random random(4);
  Partition unused;
  std::vector<int32_t> ids(20000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i % 5000);
  OwnedPlacement placement(PlacementKind::kExplicit, 5000, 4, 0, &random);
  for (int64_t bad : {int64_t{-1}, int64_t{5000}, int64_t{1} << 40}) {
    placement.position_of[4321] = placement.position_of[4999] = bad;
    CHECK_TRUE(Run(placement, ids, true, &unused).bad_position == 4321);
  }
  OwnedPlacement hot(PlacementKind::kModulo, 5000, 4, 1000, &random);
  for (int64_t bad : {int64_t{-1}, int64_t{5000}, hot.hot[699]}) {
    hot.hot[700] = bad;
    CHECK_TRUE(Run(hot, ids, true, &unused).bad_hot == 700);
    CHECK_TRUE(Run(hot, std::vector<int32_t>(), true, &unused).bad_hot == 700);
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
