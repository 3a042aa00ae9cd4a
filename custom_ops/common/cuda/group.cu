#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <iterator>
#include <utility>

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

// What cub's scan takes in the place of a pointer: element i is at(i), a value or a place to write to.
template <typename At>
struct ByIndex {
  using iterator_category = std::random_access_iterator_tag;
  using value_type = int32_t;
  using difference_type = int64_t;
  using reference = decltype(std::declval<At>()(int64_t{}));
  using pointer = void;

  __host__ __device__ ByIndex operator+(int64_t n) const { return {at, index + n}; }
  __host__ __device__ ByIndex& operator+=(int64_t n) { return index += n, *this; }
  __device__ reference operator[](int64_t n) const { return at(index + n); }
  __device__ reference operator*() const { return at(index); }

  At at;
  int64_t index;
};

template <typename Key>
struct SortedKeys {
  const Key* keys;  // [n]
  int64_t n;
  Key limit;

  // Whether a group begins at key i.
  __device__ int32_t operator()(int64_t i) const {
    return keys[i] < limit && (i == 0 || keys[i] != keys[i - 1]);
  }
  // Whether key i is the last one of the last group.
  __device__ bool Ends(int64_t i) const { return keys[i] < limit && (i == n - 1 || keys[i + 1] >= limit); }
};

// Takes the inclusive sums of the heads, which are the groups counted from 1, and writes all that a group has.
template <typename Key>
struct GroupWriter {
  struct Place {
    // `writer` is a copy: a scan holds its iterators by value.
    __device__ void operator=(int32_t group) const { writer.Write(i, group); }
    GroupWriter writer;
    int64_t i;
  };
  __device__ Place operator()(int64_t i) const { return {*this, i}; }

  __device__ void Write(int64_t i, int32_t of_key) const {
    group[i] = of_key;
    if (sorted(i) != 0) {
      unique[of_key - 1] = static_cast<int64_t>(sorted.keys[i]);
      starts[of_key - 1] = static_cast<int32_t>(i);
    }
    if (sorted.Ends(i)) {
      starts[of_key] = static_cast<int32_t>(i + 1);
      *counts = {of_key, i + 1};
    } else if (i == 0 && of_key == 0) {
      *counts = {0, 0};
    }
  }

  SortedKeys<Key> sorted;
  int32_t* group;
  int64_t* unique;
  int32_t* starts;
  GroupCounts* counts;
};

// One pass over the sorted keys. temp null: how many bytes of it are needed.
template <typename Key>
cudaError_t WriteGroups(const KeyGroups<Key>& g, void* temp, size_t* bytes, GpuStream stream) {
  const SortedKeys<Key> sorted{g.sorted, g.n, static_cast<Key>(g.limit)};
  const GroupWriter<Key> writer{sorted, g.group, g.unique, g.starts, g.counts};
  return cub::DeviceScan::InclusiveSum(temp, *bytes, ByIndex<SortedKeys<Key>>{sorted, 0},
                                       ByIndex<GroupWriter<Key>>{writer, 0}, static_cast<int>(g.n), stream);
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
  WriteGroups(*this, nullptr, &bytes, nullptr);
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
  size_t sort_bytes = static_cast<size_t>(g.sort_bytes), scan_bytes = static_cast<size_t>(g.scan_bytes);
  LARGEOUT_CUDA_RETURN(cub::DeviceRadixSort::SortPairs(g.sort_temp, sort_bytes, g.keys, g.sorted, g.positions,
                                                       g.order, static_cast<int>(g.n), 0,
                                                       BitsOf(static_cast<uint64_t>(g.limit)), stream));
  return static_cast<int>(WriteGroups(g, g.scan_temp, &scan_bytes, stream));
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
