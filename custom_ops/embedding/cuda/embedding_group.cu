// The plan of the table's gradient: ids sorted and grouped, and the factor of every position.
#include "common/cuda/launch.cuh"
#include "embedding/cuda/embedding_plan.h"
#include "embedding/cuda/embedding_tile.cuh"

namespace largeout {
namespace {

constexpr int kBagLanes = 8;

template <typename Key>
struct PlanMemory {
  KeyGroups<Key> groups;
  int32_t* bag;
  float* factor;

  template <typename Id>
  PlanMemory(const Bags<Id>& bags, Combiner combiner, int64_t rows, Arena* arena)
      : groups(bags.num_ids, rows, arena) {
    const bool scaled = combiner != Combiner::kSum || bags.weights != nullptr;
    bag = bags.row_splits != nullptr ? arena->Take<int32_t>(bags.num_ids) : nullptr;
    factor = scaled ? arena->Take<float>(bags.num_ids) : nullptr;
  }
};

// kBagLanes lanes a bag: the bag and the factor of each of its positions. Either may be null.
template <typename Id>
__global__ void WriteBags(Bags<Id> bags, Combiner combiner, int64_t rows, int32_t* bag_of, float* factor) {
  const int64_t thread = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const int64_t bag = thread / kBagLanes, lane = thread % kBagLanes;
  const bool exists = bag < bags.num_bags;  // all lanes stay: they shuffle
  const auto [begin, end] = exists ? PositionsOf(bags, bag) : Positions{0, 0};
  float divisor = 0.f;
  if (factor != nullptr && combiner != Combiner::kSum) {
    for (int64_t p = begin + lane; p < end; p += kBagLanes) {
      const float weight = bags.weights != nullptr ? bags.weights[p] : 1.f;
      const bool valid = static_cast<uint64_t>(bags.ids[p]) < static_cast<uint64_t>(rows);
      if (valid) divisor += combiner == Combiner::kMean ? weight : weight * weight;
    }
  }
#pragma unroll
  for (int distance = kBagLanes / 2; distance > 0; distance /= 2) {
    divisor += __shfl_xor_sync(0xffffffffu, divisor, distance);
  }
  if (combiner == Combiner::kSqrtn) divisor = sqrtf(divisor);
  if (combiner == Combiner::kSum) divisor = 1.f;
  for (int64_t p = begin + lane; p < end; p += kBagLanes) {
    if (bag_of != nullptr) bag_of[p] = static_cast<int32_t>(bag);
    if (factor != nullptr) {
      factor[p] = divisor == 0.f ? 0.f : (bags.weights != nullptr ? bags.weights[p] : 1.f) / divisor;
    }
  }
}

template <typename Key, typename Id>
int Plan(const Bags<Id>& bags, Combiner combiner, int64_t rows, const GpuCall& call,
         EmbeddingGradPlanCuda* plan) {
  const int64_t n = bags.num_ids;
  const GpuStream stream = call.stream;
  Arena arena(call.scratch);
  const PlanMemory<Key> m(bags, combiner, rows, &arena);
  LARGEOUT_RETURN_IF_ERROR(arena.error());
  LARGEOUT_RETURN_IF_ERROR(KeysOfIdsCuda(bags.ids, m.groups.n, m.groups, stream));
  if (m.bag != nullptr) {  // where row_splits are bad, a position may be in no bag
    LARGEOUT_CUDA_RETURN(cudaMemsetAsync(m.bag, 0, n * sizeof(int32_t), stream));
    if (m.factor != nullptr) LARGEOUT_CUDA_RETURN(cudaMemsetAsync(m.factor, 0, n * sizeof(float), stream));
  }
  if (m.bag != nullptr || m.factor != nullptr) {
    LARGEOUT_RETURN_IF_ERROR(Launch(WriteBags<Id>, BlocksFor(bags.num_bags * kBagLanes), kThreads, 0, stream,
                                    bags, combiner, rows, m.bag, m.factor));
  }
  LARGEOUT_RETURN_IF_ERROR(GroupKeysCuda(m.groups, stream));
  plan->most_unique = std::min(n, rows), plan->most_valid = n;
  plan->counts = m.groups.counts;
  plan->bag_size = bags.row_splits != nullptr ? 1 : std::max<int64_t>(1, bags.bag_size);
  plan->unique = m.groups.unique, plan->starts = m.groups.starts, plan->order = m.groups.order;
  plan->group = m.groups.group;
  plan->bag = m.bag, plan->factor = m.factor;
  return 0;
}

}  // namespace

template <typename Id>
int PlanEmbeddingGradCuda(const Bags<Id>& bags, Combiner combiner, int64_t rows, const GpuCall& call,
                          EmbeddingGradPlanCuda* plan) {
  *plan = EmbeddingGradPlanCuda();
  if (bags.num_ids == 0) return 0;
  return ShortKeys(rows) ? Plan<uint32_t>(bags, combiner, rows, call, plan)
                         : Plan<uint64_t>(bags, combiner, rows, call, plan);
}

template <>
template <typename Id>
int EmbeddingGpu::PlanGrad(const Bags<Id>& bags, Combiner combiner, int64_t rows) {
  LARGEOUT_RETURN_IF_ERROR(PlanEmbeddingGradCuda(bags, combiner, rows, call_, &plan_));
  if (plan_.counts == nullptr) return 0;
  GroupCounts counts;
  LARGEOUT_RETURN_IF_ERROR(CopyToHostCuda(plan_.counts, sizeof(counts), &counts, call_.stream));
  plan_.most_unique = counts.unique, plan_.most_valid = counts.valid;
  return 0;
}

template <>
int64_t EmbeddingGpu::num_unique() const {
  return plan_.most_unique;
}

#define LARGEOUT_INSTANTIATE(Id)                                                             \
  template int PlanEmbeddingGradCuda<Id>(const Bags<Id>&, Combiner, int64_t, const GpuCall&, \
                                         EmbeddingGradPlanCuda*);                            \
  template int EmbeddingGpu::PlanGrad<Id>(const Bags<Id>&, Combiner, int64_t);
LARGEOUT_INSTANTIATE(int32_t)
LARGEOUT_INSTANTIATE(int64_t)
#undef LARGEOUT_INSTANTIATE

}  // namespace largeout
