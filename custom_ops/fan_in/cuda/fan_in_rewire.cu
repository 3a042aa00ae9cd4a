// Random connections, pruning and regrowth.
#include "common/cuda/launch.cuh"
#include "fan_in/cuda/fan_in_sampling.cuh"
#include "fan_in/fan_in_rewire.h"

namespace largeout {
namespace fan_in_gpu {
namespace {

__device__ __forceinline__ int64_t Thread() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }

template <typename Id>
__global__ void __launch_bounds__(kThreads)
    CheckIndices(const Id* indices, int64_t n, int64_t count, int64_t inputs, unsigned long long* first) {
  for (int64_t i = Thread(); i < n; i += int64_t{gridDim.x} * kThreads) {
    if (!InRange(indices[i], inputs)) atomicMin(first, static_cast<unsigned long long>(i / count));
  }
}

// Without `indices` for classes that have no connections yet.
template <typename Id, typename Out>
__global__ void __launch_bounds__(kThreads)
    DrawRows(const Id* indices, int64_t fan_in, int64_t inputs, uint64_t key, int64_t first_class,
             int64_t rows, int64_t count, Out* out, DrawMemory memory) {
  if (Thread() >= memory.threads) return;
  InputSetCuda taken(memory, Thread(), inputs);
  for (int64_t row = Thread(); row < rows; row += memory.threads) {
    for (int64_t k = 0; k < fan_in; ++k) taken.Add(static_cast<int64_t>(indices[row * fan_in + k]));
    taken.Draw(FanInStream(key, first_class + row), count,
               [&](int64_t n, int32_t input) { out[row * count + n] = static_cast<Out>(input); });
    taken.Clear();
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    KeyCounts(const T* weights, int64_t n, uint64_t key, uint64_t first, uint64_t prefix, int shift,
              unsigned long long* counts) {
  constexpr int kDigits = 1 << kFanInDigitBits;
  __shared__ unsigned own[kDigits];
  for (int d = threadIdx.x; d < kDigits; d += kThreads) own[d] = 0;
  __syncthreads();
  for (int64_t i = Thread(); i < n; i += int64_t{gridDim.x} * kThreads) {
    const uint64_t whole =
        FanInPruneKey(__float_as_uint(GpuToFloat(weights[i])), key, first + static_cast<uint64_t>(i));
    if (whole >> (shift + kFanInDigitBits) == prefix) atomicAdd(&own[whole >> shift & (kDigits - 1)], 1u);
  }
  __syncthreads();
  for (int d = threadIdx.x; d < kDigits; d += kThreads) {
    if (own[d] != 0) atomicAdd(&counts[d], static_cast<unsigned long long>(own[d]));
  }
}

// One class after the other, with memory of the thread's own.
template <typename T, typename Id>
class Rewiring {
 public:
  __device__ Rewiring(const FanInRewiring<T, Id>& r, const DrawMemory& memory, int64_t thread)
      : r_(r),
        slots_(memory.slots),
        taken_(memory, thread, r.inputs),
        keys_{memory.keys + thread, memory.threads},
        grown_{memory.grown + thread, memory.threads} {}

  // The number of connections that changed.
  __device__ int64_t Class(int64_t i) {
    const int64_t row = r_.first_row + i, at = row * r_.fan_in;
    if (r_.count == 0) return 0;
    const int64_t threshold = Threshold(at);
    int64_t wanted = 0;
    for (int64_t k = 0; k < r_.fan_in; ++k) wanted += Pruned(k, threshold);
    if (wanted == 0) return 0;
    taken_.Clear();
    for (int64_t k = 0; k < r_.fan_in; ++k) taken_.Add(static_cast<int64_t>(r_.indices[at + k]));
    const int64_t grown = GrowCandidates(i, wanted);
    if (r_.inputs - taken_.size() < wanted - grown) {  // takes what is kept and what was grown alone
      taken_.Clear();
      for (int64_t k = 0; k < r_.fan_in; ++k) {
        if (!Pruned(k, threshold)) taken_.Add(static_cast<int64_t>(r_.indices[at + k]));
      }
      for (int64_t n = 0; n < grown; ++n) taken_.Add(grown_[n]);
    }
    taken_.Draw(FanInStream(r_.key, r_.first_class + row), wanted - grown,
                [&](int64_t n, int32_t input) { grown_[grown + n] = input; });
    for (int64_t k = 0, n = 0; k < r_.fan_in; ++k) {
      if (!Pruned(k, threshold)) continue;
      r_.indices[at + k] = static_cast<Id>(grown_[n++]);
      GpuFromFloat(0.f, &r_.weights[at + k]);
      for (int s = 0; s < r_.num_slots; ++s) slots_[s][at + k] = 0.f;
    }
    return wanted;
  }

 private:
  __device__ bool Pruned(int64_t k, int64_t threshold) const {
    return static_cast<int64_t>(keys_[k]) <= threshold;
  }

  // Computes the keys. The key of rank `count` is found bit by bit.
  __device__ int64_t Threshold(int64_t at) {
    const uint64_t first = static_cast<uint64_t>(r_.first_class) * r_.fan_in + at;
    for (int64_t k = 0; k < r_.fan_in; ++k) {
      keys_[k] = FanInPruneKey(__float_as_uint(GpuToFloat(r_.weights[at + k])), r_.key,
                               first + static_cast<uint64_t>(k));
    }
    if (r_.count < 0) return r_.threshold;
    uint64_t found = 0;  // keys below it are less than `count`
    for (int bit = 62; bit >= 0; --bit) {
      const uint64_t higher = found | uint64_t{1} << bit;
      int64_t below = 0;
      for (int64_t k = 0; k < r_.fan_in; ++k) below += keys_[k] < higher;
      if (below < r_.count) found = higher;
    }
    return static_cast<int64_t>(found);
  }

  // Candidates by falling |score|, of equal ones the first, NaN last.
  __device__ int64_t GrowCandidates(int64_t i, int64_t wanted) {
    const int32_t* candidates = r_.candidates + i * r_.num_candidates;
    const float* scores = r_.scores + i * r_.num_candidates;
    int64_t grown = 0;
    uint64_t last = ~uint64_t{0};
    for (int64_t n = 0; n < r_.num_candidates && grown < wanted; ++n) {
      uint64_t best = 0;
      for (int64_t m = 0; m < r_.num_candidates; ++m) {
        const float size = fabsf(scores[m]);
        const uint64_t order = (size == size ? uint64_t{__float_as_uint(size)} + 1 : 0) << 32 |
                               (0xffffffffu - static_cast<uint32_t>(m));
        if (order < last && order > best) best = order;
      }
      last = best;
      const int32_t candidate = candidates[0xffffffffu - static_cast<uint32_t>(best)];
      if (taken_.Add(candidate)) grown_[grown++] = candidate;
    }
    return grown;
  }

  const FanInRewiring<T, Id> r_;
  float* const* slots_;
  InputSetCuda taken_;
  Places<uint64_t> keys_;
  Places<int32_t> grown_;
};

template <typename T, typename Id>
__global__ void __launch_bounds__(kThreads)
    RewireRows(FanInRewiring<T, Id> r, DrawMemory memory, unsigned long long* changes) {
  if (Thread() >= memory.threads) return;
  Rewiring<T, Id> rewiring(r, memory, Thread());
  int64_t own = 0;
  for (int64_t i = Thread(); i < r.rows; i += memory.threads) own += rewiring.Class(i);
  if (own != 0) atomicAdd(changes, static_cast<unsigned long long>(own));
}

template <typename Id>
__global__ void __launch_bounds__(kThreads)
    CountInputs(const Id* indices, int64_t n, int64_t fan_in, int64_t inputs, unsigned long long* degrees,
                unsigned long long* first) {
  for (int64_t i = Thread(); i < n; i += int64_t{gridDim.x} * kThreads) {
    if (InRange(indices[i], inputs)) {
      atomicAdd(&degrees[static_cast<uint32_t>(indices[i])], 1ull);
    } else {
      atomicMin(first, static_cast<unsigned long long>(i / fan_in));
    }
  }
}

unsigned Strided(int64_t n) { return GridStrideBlocks(Blocks(n, kThreads), 4096); }

template <typename Id>
int Check(const Id* indices, int64_t rows, int64_t count, int64_t inputs, unsigned long long* first,
          GpuStream stream) {
  if (rows * count == 0) return 0;
  return Launch(CheckIndices<Id>, Strided(rows * count), kThreads, 0, stream, indices, rows * count, count,
                inputs, first);
}

}  // namespace
}  // namespace fan_in_gpu

using namespace fan_in_gpu;

template <>
template <typename Id>
int FanInRewireGpu::Connections(int64_t rows, int64_t fan_in, int64_t inputs, uint64_t key,
                                int64_t first_class, Id* indices) {
  if (rows * fan_in == 0) return 0;
  Arena arena(call_.scratch);
  const DrawMemory memory(rows, 0, fan_in, inputs, 0, &arena);
  LARGEOUT_RETURN_IF_ERROR(arena.error());
  return Launch(DrawRows<Id, Id>, Blocks(memory.threads, kThreads), kThreads, 0, call_.stream, nullptr, 0,
                inputs, key, first_class, rows, fan_in, indices, memory);
}

template <>
template <typename Id>
int FanInRewireGpu::Candidates(const Id* indices, int64_t fan_in, int64_t inputs, uint64_t key,
                               int64_t first_class, int64_t first_row, int64_t rows, int64_t count,
                               int32_t* candidates, int64_t* bad) {
  Arena arena(call_.scratch);
  const DrawMemory memory(rows, fan_in, count, inputs, 0, &arena);
  const Id* own = indices + first_row * fan_in;
  LARGEOUT_RETURN_IF_ERROR(arena.error());
  LARGEOUT_RETURN_IF_ERROR(ClearVerdict(memory.verdict, call_.stream));
  LARGEOUT_RETURN_IF_ERROR(Check(own, rows, fan_in, inputs, &memory.verdict->row, call_.stream));
  LARGEOUT_RETURN_IF_ERROR(ReadVerdict(memory.verdict, call_.stream, bad));
  if (*bad >= 0) *bad += first_row;
  if (*bad >= 0 || rows * count == 0) return 0;
  return Launch(DrawRows<Id, int32_t>, Blocks(memory.threads, kThreads), kThreads, 0, call_.stream, own,
                fan_in, inputs, key, first_class + first_row, rows, count, candidates, memory);
}

template <>
template <typename T>
int FanInRewireGpu::KeyCounts(const T* weights, int64_t rows, int64_t fan_in, uint64_t key,
                              int64_t first_class, uint64_t prefix, int digit, int64_t* counts) {
  LARGEOUT_CUDA_RETURN(cudaMemsetAsync(counts, 0, sizeof(int64_t) << kFanInDigitBits, call_.stream));
  const int64_t n = rows * fan_in;
  if (n == 0) return 0;
  return Launch(fan_in_gpu::KeyCounts<T>, Strided(n), kThreads, 0, call_.stream, weights, n, key,
                static_cast<uint64_t>(first_class) * fan_in, prefix,
                kFanInDigitBits * (kFanInKeyDigits - 1 - digit),
                reinterpret_cast<unsigned long long*>(counts));
}

template <>
template <typename T, typename Id>
int FanInRewireGpu::Rewire(const FanInRewiring<T, Id>& r, int64_t* changes, int64_t* bad,
                           bool* bad_candidate) {
  Arena arena(call_.scratch);
  const DrawMemory memory(r.rows, r.fan_in, 2 * r.fan_in, r.inputs, r.num_slots, &arena);
  int64_t unknown = -1;
  LARGEOUT_RETURN_IF_ERROR(arena.error());
  LARGEOUT_RETURN_IF_ERROR(ClearVerdict(memory.verdict, call_.stream));
  LARGEOUT_RETURN_IF_ERROR(Check(r.indices + r.first_row * r.fan_in, r.rows, r.fan_in, r.inputs,
                                 &memory.verdict->row, call_.stream));
  LARGEOUT_RETURN_IF_ERROR(
      Check(r.candidates, r.rows, r.num_candidates, r.inputs, &memory.verdict->candidate, call_.stream));
  LARGEOUT_RETURN_IF_ERROR(ReadVerdict(memory.verdict, call_.stream, bad, &unknown));
  *bad_candidate = *bad < 0 && unknown >= 0;
  *bad = *bad >= 0 ? *bad + r.first_row : unknown;
  if (*bad >= 0) return 0;
  LARGEOUT_CUDA_RETURN(cudaMemsetAsync(changes, 0, sizeof(int64_t), call_.stream));
  if (r.rows * r.fan_in == 0) return 0;
  LARGEOUT_RETURN_IF_ERROR(
      CopyToDeviceCuda(r.slots, r.num_slots * sizeof(float*), memory.slots, call_.stream));
  return Launch(RewireRows<T, Id>, Blocks(memory.threads, kThreads), kThreads, 0, call_.stream, r, memory,
                reinterpret_cast<unsigned long long*>(changes));
}

template <>
template <typename Id>
int FanInRewireGpu::Degrees(const Id* indices, int64_t rows, int64_t fan_in, int64_t inputs, int64_t* degrees,
                            int64_t* bad) {
  Verdict* verdict = call_.scratch->Take<Verdict>(1);
  if (verdict == nullptr) return kNoMemory;
  LARGEOUT_RETURN_IF_ERROR(ClearVerdict(verdict, call_.stream));
  LARGEOUT_CUDA_RETURN(cudaMemsetAsync(degrees, 0, inputs * sizeof(int64_t), call_.stream));
  const int64_t n = rows * fan_in;
  if (n > 0) {
    LARGEOUT_RETURN_IF_ERROR(Launch(CountInputs<Id>, Strided(n), kThreads, 0, call_.stream, indices, n,
                                    fan_in, inputs, reinterpret_cast<unsigned long long*>(degrees),
                                    &verdict->row));
  }
  return ReadVerdict(verdict, call_.stream, bad);
}

#define LARGEOUT_OF_INDICES(Id)                                                                             \
  template int FanInRewireGpu::Connections<Id>(int64_t, int64_t, int64_t, uint64_t, int64_t, Id*);          \
  template int FanInRewireGpu::Candidates<Id>(const Id*, int64_t, int64_t, uint64_t, int64_t, int64_t,      \
                                              int64_t, int64_t, int32_t*, int64_t*);                        \
  template int FanInRewireGpu::Degrees<Id>(const Id*, int64_t, int64_t, int64_t, int64_t*, int64_t*);       \
  template int FanInRewireGpu::Rewire<float, Id>(const FanInRewiring<float, Id>&, int64_t*, int64_t*,       \
                                                 bool*);                                                    \
  template int FanInRewireGpu::Rewire<bfloat16, Id>(const FanInRewiring<bfloat16, Id>&, int64_t*, int64_t*, \
                                                    bool*);
LARGEOUT_OF_INDICES(uint16_t)
LARGEOUT_OF_INDICES(uint32_t)
#undef LARGEOUT_OF_INDICES
template int FanInRewireGpu::KeyCounts<float>(const float*, int64_t, int64_t, uint64_t, int64_t, uint64_t,
                                              int, int64_t*);
template int FanInRewireGpu::KeyCounts<bfloat16>(const bfloat16*, int64_t, int64_t, uint64_t, int64_t,
                                                 uint64_t, int, int64_t*);

}  // namespace largeout
