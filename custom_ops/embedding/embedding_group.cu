// The plan of the table's gradient: ids sorted and grouped, and the factor of every position.
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include "embedding/embedding_cuda.h"
#include "embedding/embedding_tile.cuh"

namespace largeout {
namespace {

constexpr int kBagLanes = 8;

struct Counts {
  int64_t unique, valid;
};

template <typename Key>
struct PlanMemory {
  Counts* counts;
  Key *keys, *sorted_keys;
  int32_t *positions, *order, *heads, *bag, *starts;
  int64_t* unique;
  float* factor;
  char* temp;
  size_t temp_bytes = 0;
  int64_t bytes;

  template <typename Id>
  PlanMemory(const Bags<Id>& bags, bool scaled, int end_bit, void* workspace) {
    Arena arena(workspace);
    const int64_t n = bags.num_ids;
    counts = arena.Take<Counts>(1);
    keys = arena.Take<Key>(n), sorted_keys = arena.Take<Key>(n);
    positions = arena.Take<int32_t>(n), order = arena.Take<int32_t>(n), heads = arena.Take<int32_t>(n);
    bag = bags.row_splits != nullptr ? arena.Take<int32_t>(n) : nullptr;
    starts = arena.Take<int32_t>(n + 1);
    unique = arena.Take<int64_t>(n);
    factor = scaled ? arena.Take<float>(n) : nullptr;
    size_t sort = 0, scan = 0;
    cub::DeviceRadixSort::SortPairs(nullptr, sort, keys, sorted_keys, positions, order, static_cast<int>(n), 0, end_bit);
    cub::DeviceScan::InclusiveSum(nullptr, scan, heads, heads, static_cast<int>(n));
    temp_bytes = std::max(sort, scan);
    temp = arena.Take<char>(static_cast<int64_t>(temp_bytes));
    bytes = arena.bytes();
  }
};

int BitsOf(uint64_t x) {
  int bits = 1;
  while (bits < 64 && (x >> bits) != 0) ++bits;
  return bits;
}

// Ids out of range become `rows`: they come last.
template <typename Id, typename Key>
__global__ void WriteKeys(const Id* ids, int64_t n, int64_t rows, Key* keys, int32_t* positions) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= n) return;
  const uint64_t id = static_cast<uint64_t>(ids[i]), limit = static_cast<uint64_t>(rows);
  keys[i] = static_cast<Key>(id < limit ? id : limit);
  positions[i] = static_cast<int32_t>(i);
}

// kBagLanes lanes a bag: the bag and the factor of each of its positions. Either may be null.
template <typename Id>
__global__ void WriteBags(Bags<Id> bags, Combiner combiner, int64_t rows, int32_t* bag_of, float* factor) {
  const int64_t thread = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const int64_t bag = thread / kBagLanes, lane = thread % kBagLanes;
  const bool exists = bag < bags.num_bags;  // all lanes stay: they shuffle
  const int64_t begin = exists ? bags.begin(bag) : 0, end = exists ? bags.begin(bag + 1) : 0;
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

template <typename Key>
__global__ void MarkHeads(const Key* keys, int64_t n, int64_t rows, int32_t* heads) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= n) return;
  heads[i] = keys[i] < static_cast<Key>(rows) && (i == 0 || keys[i] != keys[i - 1]);
}

// groups: the inclusive sum of the heads.
template <typename Key>
__global__ void WriteGroups(const Key* keys, const int32_t* groups, int64_t n, int64_t rows, int64_t* unique,
                            int32_t* starts, Counts* counts) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const Key limit = static_cast<Key>(rows);
  if (i >= n || keys[i] >= limit) return;
  const int32_t group = groups[i] - 1;
  if (i == 0 || keys[i] != keys[i - 1]) {
    unique[group] = static_cast<int64_t>(keys[i]);
    starts[group] = static_cast<int32_t>(i);
  }
  if (i == n - 1 || keys[i + 1] >= limit) {
    starts[group + 1] = static_cast<int32_t>(i + 1);
    counts->unique = group + 1, counts->valid = i + 1;
  }
}

template <typename Id>
bool Scaled(const Bags<Id>& bags, Combiner combiner) {
  return combiner != Combiner::kSum || bags.weights != nullptr;
}

template <typename Key, typename Id>
int Plan(const Bags<Id>& bags, Combiner combiner, int64_t rows, void* workspace, GpuStream stream,
         EmbeddingGradPlanCuda* plan) {
  const int64_t n = bags.num_ids;
  const int end_bit = BitsOf(static_cast<uint64_t>(rows));
  PlanMemory<Key> m(bags, Scaled(bags, combiner), end_bit, workspace);
  LARGEOUT_CUDA_RETURN(cudaMemsetAsync(m.counts, 0, sizeof(Counts), stream));
  WriteKeys<Id, Key><<<BlocksFor(n), kThreads, 0, stream>>>(bags.ids, n, rows, m.keys, m.positions);
  if (m.bag != nullptr || m.factor != nullptr) {
    WriteBags<Id><<<BlocksFor(bags.num_bags * kBagLanes), kThreads, 0, stream>>>(bags, combiner, rows, m.bag, m.factor);
  }
  LARGEOUT_CUDA_RETURN(cub::DeviceRadixSort::SortPairs(m.temp, m.temp_bytes, m.keys, m.sorted_keys, m.positions, m.order,
                                                       static_cast<int>(n), 0, end_bit, stream));
  MarkHeads<Key><<<BlocksFor(n), kThreads, 0, stream>>>(m.sorted_keys, n, rows, m.heads);
  LARGEOUT_CUDA_RETURN(
      cub::DeviceScan::InclusiveSum(m.temp, m.temp_bytes, m.heads, m.heads, static_cast<int>(n), stream));
  WriteGroups<Key><<<BlocksFor(n), kThreads, 0, stream>>>(m.sorted_keys, m.heads, n, rows, m.unique, m.starts, m.counts);
  LARGEOUT_CUDA_RETURN(cudaGetLastError());
  Counts counts;
  const int error = CopyToHostCuda(m.counts, sizeof(counts), &counts, stream);
  if (error != 0) return error;
  plan->num_unique = counts.unique, plan->num_valid = counts.valid;
  plan->bag_size = bags.row_splits != nullptr ? 1 : std::max<int64_t>(1, bags.bag_size);
  plan->unique = m.unique, plan->starts = m.starts, plan->order = m.order;
  plan->bag = m.bag, plan->factor = m.factor;
  return 0;
}

bool ShortKeys(int64_t rows) { return rows < 0xffffffffll; }

}  // namespace

template <typename Id>
int64_t EmbeddingGradWorkspaceCuda(const Bags<Id>& bags, Combiner combiner, int64_t rows) {
  const bool scaled = Scaled(bags, combiner);
  const int end_bit = BitsOf(static_cast<uint64_t>(rows));
  return ShortKeys(rows) ? PlanMemory<uint32_t>(bags, scaled, end_bit, nullptr).bytes
                         : PlanMemory<uint64_t>(bags, scaled, end_bit, nullptr).bytes;
}

template <typename Id>
int PlanEmbeddingGradCuda(const Bags<Id>& bags, Combiner combiner, int64_t rows, void* workspace, GpuStream stream,
                          EmbeddingGradPlanCuda* plan) {
  *plan = EmbeddingGradPlanCuda();
  if (bags.num_ids == 0) return 0;
  return ShortKeys(rows) ? Plan<uint32_t>(bags, combiner, rows, workspace, stream, plan)
                         : Plan<uint64_t>(bags, combiner, rows, workspace, stream, plan);
}

#define LARGEOUT_INSTANTIATE(Id)                                                                          \
  template int64_t EmbeddingGradWorkspaceCuda<Id>(const Bags<Id>&, Combiner, int64_t);                    \
  template int PlanEmbeddingGradCuda<Id>(const Bags<Id>&, Combiner, int64_t, void*, GpuStream, EmbeddingGradPlanCuda*);
LARGEOUT_INSTANTIATE(int32_t)
LARGEOUT_INSTANTIATE(int64_t)
#undef LARGEOUT_INSTANTIATE

}  // namespace largeout
