// Positions, the radix sort that embedding's gradient uses too, and the outputs: three passes over the ids
// beside the sort. Checks, counts and cuts reach the host in one copy.
#include <vector>

#include "common/cuda/group_cuda.h"
#include "common/cuda/launch.cuh"
#include "exchange/exchange.h"
#include "exchange/exchange_position.h"

namespace largeout {
namespace {

constexpr int kThreads = 256;

unsigned BlocksFor(int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

// The numbers that the host reads: these, then cuts [shards + 2].
struct Report {
  unsigned long long bad_hot, bad_id, bad_position;  // the first one; all ones: none
  int64_t unique, valid;
};

template <typename Key>
struct PlanMemory {
  Report* report;
  int64_t* cuts;
  int64_t* offsets;
  KeyGroups<Key> groups;

  PlanMemory(const PlacementView& placement, int64_t n, Arena* arena)
      : report(reinterpret_cast<Report*>(arena->Take<char>(ReportBytes(placement.shards)))),
        cuts(report == nullptr ? nullptr : reinterpret_cast<int64_t*>(report + 1)),
        offsets(arena->Take<int64_t>(placement.shards + 1)),
        groups(n, placement.offsets[placement.shards], arena) {}
  static int64_t ReportBytes(int64_t shards) {
    return static_cast<int64_t>(sizeof(Report)) + (shards + 2) * static_cast<int64_t>(sizeof(int64_t));
  }
};

// The first index of values [n] with values[index] >= value (kOrEqual) or > value.
template <bool kOrEqual>
__device__ int64_t FirstFrom(const int64_t* values, int64_t n, int64_t value) {
  int64_t low = 0, high = n;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (kOrEqual ? values[middle] < value : values[middle] <= value) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

__global__ void CheckHot(const int64_t* hot, int64_t num_hot, int64_t rows, Report* report) {
  const int64_t k = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (k >= num_hot) return;
  if (hot[k] <= (k == 0 ? -1 : hot[k - 1]) || hot[k] >= rows) {
    atomicMin(&report->bad_hot, static_cast<unsigned long long>(k));
  }
}

// Ids out of range, and those whose position is, become `limit`: they take no part.
template <typename Id, typename Key>
__global__ void WriteKeys(ColdPosition cold, const int64_t* hot, int64_t num_hot, const Id* ids, int64_t n,
                          int64_t rows, int64_t limit, bool check_ids, Key* keys, int32_t* positions,
                          Report* report) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= n) return;
  const int64_t id = ids[i];
  int64_t position = limit;
  if (static_cast<uint64_t>(id) < static_cast<uint64_t>(rows)) {
    position = cold(id);
    if (static_cast<uint64_t>(position) >= static_cast<uint64_t>(limit)) {
      position = limit;
      atomicMin(&report->bad_position, static_cast<unsigned long long>(i));
    }
    if (num_hot > 0) {
      const int64_t k = FirstFrom<true>(hot, num_hot, id);
      if (k < num_hot && hot[k] == id) position = k;
    }
  } else if (check_ids) {
    atomicMin(&report->bad_id, static_cast<unsigned long long>(i));
  }
  keys[i] = static_cast<Key>(position);
  positions[i] = static_cast<int32_t>(i);
}

// One thread a cut; cut 0 is 0.
__global__ void WriteCuts(const int64_t* unique, const GroupCounts* counts, const int64_t* offsets,
                          int64_t shards, Report* report, int64_t* cuts) {
  const int64_t c = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (c > shards + 1) return;
  if (c == 0) report->unique = counts->unique, report->valid = counts->valid;
  cuts[c] = c == 0 ? 0 : FirstFrom<true>(unique, counts->unique, offsets[c - 1]);
}

__global__ void WriteOutputs(PartitionPlanCuda plan, int64_t* unique, int64_t* local, int32_t* inverse) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= plan.n) return;
  inverse[plan.order[i]] = i < plan.num_valid ? plan.group[i] - 1 : -1;
  if (i >= plan.unique_count) return;
  const int64_t position = plan.unique[i];
  const int64_t shard = FirstFrom<false>(plan.offsets, plan.shards + 1, position) - 1;  // -1: hot
  unique[i] = position;
  local[i] = position - (shard < 0 ? 0 : plan.offsets[shard]);
}

template <typename Key, typename Id>
int PlanBy(const PlacementView& placement, const Id* ids, int64_t n, bool check_ids, const GpuCall& call,
           int64_t* cuts, PartitionFault* fault, PartitionPlanCuda* plan) {
  const GpuStream stream = call.stream;
  const int64_t shards = placement.shards, limit = placement.offsets[shards];
  Arena arena(call.scratch);
  const PlanMemory<Key> m(placement, n, &arena);
  LARGEOUT_RETURN_IF_ERROR(arena.error());
  LARGEOUT_CUDA_RETURN(cudaMemsetAsync(m.report, 0xff, sizeof(Report), stream));
  LARGEOUT_CUDA_RETURN(cudaMemcpyAsync(m.offsets, placement.offsets, (shards + 1) * sizeof(int64_t),
                                       cudaMemcpyHostToDevice, stream));
  LARGEOUT_CUDA_RETURN(cudaMemsetAsync(m.groups.counts, 0, sizeof(GroupCounts), stream));
  if (placement.num_hot > 0) {
    LARGEOUT_RETURN_IF_ERROR(Launch(CheckHot, BlocksFor(placement.num_hot), kThreads, 0, stream,
                                    placement.hot, placement.num_hot, placement.rows, m.report));
  }
  if (n > 0) {
    PlacementView on_device = placement;
    on_device.offsets = m.offsets;
    LARGEOUT_RETURN_IF_ERROR(Launch(WriteKeys<Id, Key>, BlocksFor(n), kThreads, 0, stream,
                                    ColdPosition(on_device), placement.hot, placement.num_hot, ids, n,
                                    placement.rows, limit, check_ids, m.groups.keys, m.groups.positions,
                                    m.report));
    LARGEOUT_RETURN_IF_ERROR(GroupKeysCuda(m.groups, stream));
  }
  LARGEOUT_RETURN_IF_ERROR(Launch(WriteCuts, BlocksFor(shards + 2), kThreads, 0, stream, m.groups.unique,
                                  m.groups.counts, m.offsets, shards, m.report, m.cuts));
  std::vector<char> host(PlanMemory<Key>::ReportBytes(shards));
  LARGEOUT_RETURN_IF_ERROR(CopyToHostCuda(m.report, static_cast<int64_t>(host.size()), host.data(), stream));
  const Report* report = reinterpret_cast<const Report*>(host.data());
  const int64_t* host_cuts = reinterpret_cast<const int64_t*>(report + 1);
  for (int64_t c = 0; c < shards + 2; ++c) cuts[c] = host_cuts[c];
  fault->hot = static_cast<int64_t>(report->bad_hot);
  fault->id = static_cast<int64_t>(report->bad_id);
  fault->position = static_cast<int64_t>(report->bad_position);
  *plan = {n,         report->unique,  report->valid,  shards,
           m.offsets, m.groups.unique, m.groups.order, m.groups.group};
  return 0;
}

}  // namespace

template <>
template <typename Id>
int ExchangeGpu::Plan(const PlacementView& placement, const Id* ids, int64_t n, bool check_ids, int64_t* cuts,
                      PartitionFault* fault) {
  PartitionFault found;
  LARGEOUT_RETURN_IF_ERROR(ShortKeys(placement.offsets[placement.shards])
                               ? PlanBy<uint32_t>(placement, ids, n, check_ids, call_, cuts, &found, &plan_)
                               : PlanBy<uint64_t>(placement, ids, n, check_ids, call_, cuts, &found, &plan_));
  *fault = {};
  if (found.hot >= 0) {
    fault->hot = found.hot;
    return CopyToHostCuda(placement.hot + found.hot, sizeof(fault->row), &fault->row, call_.stream);
  }
  if (found.id < 0 && found.position < 0) return 0;
  const int64_t at = found.id >= 0 ? found.id : found.position;
  (found.id >= 0 ? fault->id : fault->position) = at;
  Id id;
  LARGEOUT_RETURN_IF_ERROR(CopyToHostCuda(ids + at, sizeof(id), &id, call_.stream));
  fault->row = id;
  if (found.id >= 0) return 0;
  return CopyToHostCuda(placement.position_of + id, sizeof(fault->value), &fault->value, call_.stream);
}

template <>
int ExchangeGpu::Write(int64_t* unique, int64_t* local, int32_t* inverse) {
  if (plan_.n == 0) return 0;
  return Launch(WriteOutputs, BlocksFor(plan_.n), kThreads, 0, call_.stream, plan_, unique, local, inverse);
}

template int ExchangeGpu::Plan<int32_t>(const PlacementView&, const int32_t*, int64_t, bool, int64_t*,
                                        PartitionFault*);
template int ExchangeGpu::Plan<int64_t>(const PlacementView&, const int64_t*, int64_t, bool, int64_t*,
                                        PartitionFault*);

}  // namespace largeout
