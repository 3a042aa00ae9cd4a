#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include "common/cuda/group_cuda.h"
#include "common/cuda/launch.cuh"

namespace largeout {
namespace {

constexpr int kThreads = 256;

unsigned BlocksFor(int64_t n) { return static_cast<unsigned>((n + kThreads - 1) / kThreads); }

int BitsOf(uint64_t x) {
  int bits = 1;
  while (bits < 64 && (x >> bits) != 0) ++bits;
  return bits;
}

template <typename Id, typename Key>
__global__ void WriteKeys(const Id* ids, int64_t n, int64_t limit, Key* keys, int32_t* positions) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= n) return;
  const uint64_t id = static_cast<uint64_t>(ids[i]), end = static_cast<uint64_t>(limit);
  keys[i] = static_cast<Key>(id < end ? id : end);
  positions[i] = static_cast<int32_t>(i);
}

template <typename Key>
__global__ void MarkHeads(const Key* keys, int64_t n, int64_t limit, int32_t* heads) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= n) return;
  heads[i] = keys[i] < static_cast<Key>(limit) && (i == 0 || keys[i] != keys[i - 1]);
}

// group: the inclusive sum of the heads.
template <typename Key>
__global__ void WriteGroups(const Key* keys, const int32_t* group, int64_t n, int64_t limit, int64_t* unique,
                            int32_t* starts, GroupCounts* counts) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const Key end = static_cast<Key>(limit);
  if (i >= n || keys[i] >= end) return;
  const int32_t g = group[i] - 1;
  if (i == 0 || keys[i] != keys[i - 1]) {
    unique[g] = static_cast<int64_t>(keys[i]);
    starts[g] = static_cast<int32_t>(i);
  }
  if (i == n - 1 || keys[i + 1] >= end) {
    starts[g + 1] = static_cast<int32_t>(i + 1);
    counts->unique = g + 1, counts->valid = i + 1;
  }
}

}  // namespace

template <typename Key>
KeySort<Key>::KeySort(int64_t n, int64_t limit, Arena* arena) : n(n), limit(limit) {
  keys = arena->Take<Key>(n), sorted = arena->Take<Key>(n);
  positions = arena->Take<int32_t>(n), order = arena->Take<int32_t>(n);
  size_t bytes = 0;
  cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, sorted, positions, order, static_cast<int>(n), 0,
                                  BitsOf(static_cast<uint64_t>(limit)));
  sort_bytes = static_cast<int64_t>(bytes);
  sort_temp = arena->Take<char>(sort_bytes);
}

template <typename Key>
KeyGroups<Key>::KeyGroups(int64_t n, int64_t limit, Arena* arena) : KeySort<Key>(n, limit, arena) {
  group = arena->Take<int32_t>(n);
  starts = arena->Take<int32_t>(n + 1);
  unique = arena->Take<int64_t>(n);
  counts = arena->Take<GroupCounts>(1);
  size_t bytes = 0;
  cub::DeviceScan::InclusiveSum(nullptr, bytes, group, group, static_cast<int>(n));
  scan_bytes = static_cast<int64_t>(bytes);
  scan_temp = arena->Take<char>(scan_bytes);
}

template <typename Id, typename Key>
int KeysOfIdsCuda(const Id* ids, int64_t count, const KeySort<Key>& s, GpuStream stream) {
  return Launch(WriteKeys<Id, Key>, BlocksFor(count), kThreads, 0, stream, ids, count, s.limit, s.keys,
                s.positions);
}

template <typename Key>
int GroupKeysCuda(const KeyGroups<Key>& g, GpuStream stream) {
  const unsigned blocks = BlocksFor(g.n);
  size_t bytes = static_cast<size_t>(g.scan_bytes);
  LARGEOUT_CUDA_RETURN(cudaMemsetAsync(g.counts, 0, sizeof(GroupCounts), stream));
  size_t sort_bytes = static_cast<size_t>(g.sort_bytes);
  LARGEOUT_CUDA_RETURN(cub::DeviceRadixSort::SortPairs(g.sort_temp, sort_bytes, g.keys, g.sorted, g.positions,
                                                       g.order, static_cast<int>(g.n), 0,
                                                       BitsOf(static_cast<uint64_t>(g.limit)), stream));
  LARGEOUT_RETURN_IF_ERROR(
      Launch(MarkHeads<Key>, blocks, kThreads, 0, stream, g.sorted, g.n, g.limit, g.group));
  LARGEOUT_CUDA_RETURN(
      cub::DeviceScan::InclusiveSum(g.scan_temp, bytes, g.group, g.group, static_cast<int>(g.n), stream));
  return Launch(WriteGroups<Key>, blocks, kThreads, 0, stream, g.sorted, g.group, g.n, g.limit, g.unique,
                g.starts, g.counts);
}

WordSort::WordSort(int64_t n, uint64_t limit, int bit, Arena* arena) : bit(bit), end(bit + BitsOf(limit)) {
  words = arena->Take<uint64_t>(n), sorted = arena->Take<uint64_t>(n);
  size_t bytes = 0;
  cub::DeviceRadixSort::SortKeys(nullptr, bytes, words, sorted, static_cast<int>(n), bit, end);
  sort_bytes = static_cast<int64_t>(bytes);
  sort_temp = arena->Take<char>(sort_bytes);
}

int SortWordsCuda(const WordSort& s, int64_t count, GpuStream stream) {
  size_t bytes = static_cast<size_t>(s.sort_bytes);
  return static_cast<int>(cub::DeviceRadixSort::SortKeys(s.sort_temp, bytes, s.words, s.sorted,
                                                         static_cast<int>(count), s.bit, s.end, stream));
}

template struct KeySort<uint32_t>;
template struct KeySort<uint64_t>;
template struct KeyGroups<uint32_t>;
template struct KeyGroups<uint64_t>;
template int KeysOfIdsCuda(const int32_t*, int64_t, const KeySort<uint32_t>&, GpuStream);
template int KeysOfIdsCuda(const int64_t*, int64_t, const KeySort<uint32_t>&, GpuStream);
template int KeysOfIdsCuda(const int32_t*, int64_t, const KeySort<uint64_t>&, GpuStream);
template int KeysOfIdsCuda(const int64_t*, int64_t, const KeySort<uint64_t>&, GpuStream);
template int GroupKeysCuda<uint32_t>(const KeyGroups<uint32_t>&, GpuStream);
template int GroupKeysCuda<uint64_t>(const KeyGroups<uint64_t>&, GpuStream);

}  // namespace largeout
