// The largest logits: a warp goes through a range of classes and keeps, a lane an example, the best k in a
// heap; then a thread block an example merges the ranges. A block of examples at a time: what its ranges keep
// is all the memory it takes.
#include "common/arena.h"
#include "common/cuda/launch.cuh"
#include "fan_in/cuda/fan_in_row.cuh"

namespace largeout {
namespace fan_in_gpu {
namespace {

constexpr int64_t kMostRanges = 2048, kLeastRows = 64;

// A score and its row in one number: larger is better. NaN is below all, -0 equals 0, of equal scores the
// smaller row is better. 0 is no score at all.
using Key = unsigned long long;

__device__ __forceinline__ Key KeyOf(float score, int64_t row) {
  uint32_t ordered = 0;
  if (score == score) {
    const int32_t bits = __float_as_int(score + 0.f);
    ordered = static_cast<uint32_t>(bits < 0 ? -(bits & 0x7fffffff) : bits) ^ 0x80000000u;
  }
  return static_cast<Key>(ordered) << 32 | (0xffffffffu - static_cast<uint32_t>(row));
}
__device__ __forceinline__ float ScoreOf(Key key) {
  const uint32_t ordered = static_cast<uint32_t>(key >> 32);
  if (ordered == 0) return __int_as_float(0x7fc00000);
  const int32_t bits = static_cast<int32_t>(ordered ^ 0x80000000u);
  return __uint_as_float(bits < 0 ? static_cast<uint32_t>(-bits) | 0x80000000u : static_cast<uint32_t>(bits));
}
__device__ __forceinline__ int64_t RowOf(Key key) {
  return static_cast<int64_t>(0xffffffffu - static_cast<uint32_t>(key));
}

struct Best {
  Best(int64_t classes, int64_t k, const FanInBatch& batch, Arena* arena)
      : rows(std::max(kLeastRows, (classes + kMostRanges - 1) / kMostRanges)),
        ranges((classes + rows - 1) / rows),
        keep(std::min(k, rows)) {
    keys = arena->Take<Key>(ranges * keep * batch.width);
    taken = arena->Take<int32_t>(batch.width * ranges);
  }
  int64_t rows, ranges;  // of a range; how many
  int64_t keep;
  Key* keys;       // [ranges, keep, width], descending
  int32_t* taken;  // [width, ranges] how many the merge has taken
};

// A heap of one lane with its worst key on top; the places of a lane are `stride` apart.
struct Heap {
  Key* keys;
  int64_t stride;
  __device__ Key& At(int64_t i) const { return keys[i * stride]; }
  // Lets x sink from the top of `size` keys.
  __device__ void Sink(Key x, int64_t size) const {
    int64_t at = 0;
    for (;;) {
      int64_t child = 2 * at + 1;
      if (child >= size) break;
      if (child + 1 < size && At(child + 1) < At(child)) ++child;
      if (At(child) >= x) break;
      At(at) = At(child);
      at = child;
    }
    At(at) = x;
  }
  // Lets x rise from place `at`.
  __device__ void Rise(Key x, int64_t at) const {
    while (at > 0 && At((at - 1) / 2) > x) {
      At(at) = At((at - 1) / 2);
      at = (at - 1) / 2;
    }
    At(at) = x;
  }
};

template <typename T, typename Id>
__global__ void __launch_bounds__(kThreads)
    BestOfRanges(FanInLayer<T, Id> layer, FanInBatch batch, InputBlocks inputs, Best best, Verdict* verdict) {
  __shared__ Connection stage[kWarps][32];
  const int lane = Lane(), width = batch.width;
  const Vec4Lanes vec4(width);
  const int64_t range = int64_t{blockIdx.x} * kWarps + Warp();
  if (range >= best.ranges) return;
  const int64_t begin = range * best.rows, end = min(begin + best.rows, layer.classes);
  const Heap heap{best.keys + range * best.keep * width + lane, width};
  int64_t count = 0;
  Key worst = 0;
  RowStart<T, Id> next = StartRow(layer, begin, end);
  for (int64_t row = begin; row < end; ++row) {
    const RowStart<T, Id> start = next;
    next = StartRow(layer, row + 1, end);
    float z;
    if (!RowLogit(layer, row, start, inputs, vec4, stage[Warp()], &z)) {
      Found(&verdict->row, row);
      continue;
    }
    if (lane >= width) continue;
    const Key key = KeyOf(z, row);
    if (count < best.keep) {
      heap.Rise(key, count++);
      worst = heap.At(0);
    } else if (key > worst) {
      heap.Sink(key, best.keep);
      worst = heap.At(0);
    }
  }
  if (lane >= width) return;
  for (int64_t left = count - 1; left > 0; --left) {
    const Key last = heap.At(left);
    heap.At(left) = heap.At(0);
    heap.Sink(last, left);
  }
  for (; count < best.keep; ++count) heap.At(count) = 0;
}

template <typename Out>
__global__ void __launch_bounds__(kThreads)
    Merge(Best best, int64_t width, int64_t example, int64_t k, float* scores, Out* rows) {
  __shared__ Key of_warps[kWarps];
  __shared__ Key winner;
  const int64_t lane = blockIdx.x;
  int32_t* taken = best.taken + lane * best.ranges;
  const auto head = [&](int64_t range) {
    return taken[range] < best.keep ? best.keys[(range * best.keep + taken[range]) * width + lane] : Key{0};
  };
  Key mine = 0;
  int64_t mine_range = -1;
  const auto look = [&] {
    mine = 0;
    for (int64_t range = threadIdx.x; range < best.ranges; range += kThreads) {
      const Key key = head(range);
      if (key > mine) mine = key, mine_range = range;
    }
  };
  for (int64_t range = threadIdx.x; range < best.ranges; range += kThreads) taken[range] = 0;
  look();
  for (int64_t i = 0; i < k; ++i) {
    Key high = mine;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      const Key other = __shfl_xor_sync(kAll, high, distance);
      high = other > high ? other : high;
    }
    if (Lane() == 0) of_warps[Warp()] = high;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int w = 1; w < kWarps; ++w) high = of_warps[w] > high ? of_warps[w] : high;
      winner = high;
      scores[(example + lane) * k + i] = ScoreOf(high);
      rows[(example + lane) * k + i] = static_cast<Out>(RowOf(high));
    }
    __syncthreads();
    if (mine != 0 && mine == winner) {
      ++taken[mine_range];
      look();
    }
  }
}

}  // namespace
}  // namespace fan_in_gpu

using namespace fan_in_gpu;

template <>
template <typename T, typename Id, typename Out>
int FanInGpu::TopK(const FanInLayer<T, Id>& layer, int64_t k, float* scores, Out* rows, int64_t* bad) {
  *bad = -1;
  if (batch_.size == 0 || k == 0) return 0;
  Arena arena(call_.scratch);
  Verdict* verdict = arena.Take<Verdict>(1);
  const Best best(layer.classes, k, batch_, &arena);
  LARGEOUT_RETURN_IF_ERROR(arena.error());
  LARGEOUT_RETURN_IF_ERROR(ClearVerdict(verdict, call_.stream));
  for (int64_t block = 0; block < batch_.blocks; ++block) {
    const int64_t example = block * batch_.width,
                  lanes = std::min<int64_t>(batch_.width, batch_.size - example);
    const InputBlocks inputs = InputBlocks(blocks_, narrow_blocks_) + block * batch_.inputs * batch_.width;
    LARGEOUT_RETURN_IF_ERROR(Launch(BestOfRanges<T, Id>, Blocks(best.ranges, kWarps), kThreads, 0,
                                    call_.stream, layer, batch_, inputs, best, verdict));
    LARGEOUT_RETURN_IF_ERROR(Launch(Merge<Out>, static_cast<unsigned>(lanes), kThreads, 0, call_.stream, best,
                                    batch_.width, example, k, scores, rows));
  }
  return ReadVerdict(verdict, call_.stream, bad);
}

#define LARGEOUT_TOPK(T, Id)                                                                       \
  template int FanInGpu::TopK<T, Id, int32_t>(const FanInLayer<T, Id>&, int64_t, float*, int32_t*, \
                                              int64_t*);                                           \
  template int FanInGpu::TopK<T, Id, int64_t>(const FanInLayer<T, Id>&, int64_t, float*, int64_t*, int64_t*);
LARGEOUT_TOPK(float, uint16_t)
LARGEOUT_TOPK(float, uint32_t)
LARGEOUT_TOPK(bfloat16, uint16_t)
LARGEOUT_TOPK(bfloat16, uint32_t)
#undef LARGEOUT_TOPK

}  // namespace largeout
