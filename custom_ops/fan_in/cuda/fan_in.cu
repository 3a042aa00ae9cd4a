// The layout of a batch, plain logits, and the report of bad indices.
#include "common/cuda/late_report.cuh"
#include "common/cuda/launch.cuh"
#include "fan_in/cuda/fan_in_row.cuh"

namespace largeout {
namespace fan_in_gpu {
namespace {

constexpr int kTile = 32;  // inputs, or classes, that are turned together

template <typename X>
__global__ void __launch_bounds__(kThreads) LayOut(FanInBatch batch, const X* x, X* blocks) {
  __shared__ X tile[kTile][33];
  const int lane = Lane(), width = batch.width;
  const int64_t first = int64_t{blockIdx.x} * kTile, columns = min(int64_t{kTile}, batch.inputs - first);
  for (int64_t block = blockIdx.y; block < batch.blocks; block += gridDim.y) {
    const int64_t example = block * width, lanes = min(int64_t{width}, batch.size - example);
    for (int e = Warp(); e < width; e += kWarps) {
      tile[lane][e] = e < lanes && lane < columns ? x[(example + e) * batch.inputs + first + lane] : X();
    }
    __syncthreads();
    X* out = blocks + (block * batch.inputs + first) * width;
    for (int i = threadIdx.x; i < columns * width; i += kThreads) out[i] = tile[i / width][i % width];
    __syncthreads();
  }
}

template <typename X>
__global__ void __launch_bounds__(kThreads) LayBack(FanInBatch batch, const float* blocks, X* x) {
  __shared__ float tile[kTile][33];
  const int lane = Lane(), width = batch.width;
  const int64_t first = int64_t{blockIdx.x} * kTile, columns = min(int64_t{kTile}, batch.inputs - first);
  for (int64_t block = blockIdx.y; block < batch.blocks; block += gridDim.y) {
    const int64_t example = block * width, lanes = min(int64_t{width}, batch.size - example);
    const float* from = blocks + (block * batch.inputs + first) * width;
    for (int i = threadIdx.x; i < columns * width; i += kThreads) tile[i / width][i % width] = from[i];
    __syncthreads();
    for (int e = Warp(); e < lanes; e += kWarps) {
      if (lane < columns) GpuFromFloat(tile[lane][e], &x[(example + e) * batch.inputs + first + lane]);
    }
    __syncthreads();
  }
}

template <typename T, typename Id>
__global__ void __launch_bounds__(kThreads)
    Logits(FanInLayer<T, Id> layer, FanInBatch batch, InputBlocks blocks, float* logits, Verdict* verdict) {
  __shared__ float tile[kTile][33];
  __shared__ Connection stage[kWarps][32];
  const int lane = Lane(), width = batch.width;
  const Vec4Lanes vec4(width);
  const int64_t first = int64_t{blockIdx.x} * kTile, rows = min(int64_t{kTile}, layer.classes - first);
  for (int64_t block = blockIdx.y; block < batch.blocks; block += gridDim.y) {
    const int64_t example = block * width, lanes = min(int64_t{width}, batch.size - example);
    const InputBlocks inputs = blocks + block * batch.inputs * width;
    RowStart<T, Id> next = StartRow(layer, first + Warp(), layer.classes);
    for (int r = Warp(); r < rows; r += kWarps) {
      const RowStart<T, Id> start = next;
      next = StartRow(layer, first + r + kWarps, first + rows);
      float z = 0.f;
      if (!RowLogit(layer, first + r, start, inputs, vec4, stage[Warp()], &z))
        Found(&verdict->row, first + r);
      tile[r][lane] = z;
    }
    __syncthreads();
    for (int e = Warp(); e < lanes; e += kWarps) {
      if (lane < rows) logits[(example + e) * layer.classes + first + lane] = tile[lane][e];
    }
    __syncthreads();
  }
}

__global__ void PostVerdict(const Verdict* verdict, int64_t limit, LateFinding* slot) {
  const int64_t row = static_cast<int64_t>(verdict->row);
  if (row >= 0) Post(slot, 0, row, 0, limit);
}

}  // namespace

int EndWithVerdict(const Verdict* verdict, int64_t limit, GpuStream stream, LateReport* late, int64_t* row) {
  if (late == nullptr) return ReadVerdict(verdict, stream, row);
  *row = -1;
  LateFinding* slot;
  LARGEOUT_RETURN_IF_ERROR(late->Open(&slot));
  return Launch(PostVerdict, 1, 1, 0, stream, verdict, limit, slot);
}

}  // namespace fan_in_gpu

using namespace fan_in_gpu;

template <>
template <typename X>
int FanInGpu::LayOut(const X* inputs) {
  X* blocks = call_.scratch->Take<X>(batch_.floats());
  if (blocks == nullptr) return kNoMemory;
  blocks_ = nullptr, narrow_blocks_ = nullptr;
  if constexpr (std::is_same_v<X, bfloat16>) {
    narrow_blocks_ = blocks;
  } else {
    blocks_ = blocks;
  }
  if (batch_.floats() == 0) return 0;
  return Launch(fan_in_gpu::LayOut<X>, Grid(Blocks(batch_.inputs, kTile), batch_), kThreads, 0, call_.stream,
                batch_, inputs, blocks);
}

template <>
template <typename X>
int FanInGpu::LayBack(X* d_inputs) {
  if (batch_.floats() == 0) return 0;
  return Launch(fan_in_gpu::LayBack<X>, Grid(Blocks(batch_.inputs, kTile), batch_), kThreads, 0, call_.stream,
                batch_, d_blocks_, d_inputs);
}

template <>
template <typename T, typename Id>
int FanInGpu::Logits(const FanInLayer<T, Id>& layer, float* logits, int64_t* bad) {
  if (FoundBefore(call_.late, bad)) return 0;
  *bad = -1;
  if (batch_.size == 0 || layer.classes == 0) return 0;
  Verdict* verdict = call_.scratch->Take<Verdict>(1);
  if (verdict == nullptr) return kNoMemory;
  LARGEOUT_RETURN_IF_ERROR(ClearVerdict(verdict, call_.stream));
  LARGEOUT_RETURN_IF_ERROR(Launch(fan_in_gpu::Logits<T, Id>, Grid(Blocks(layer.classes, kTile), batch_),
                                  kThreads, 0, call_.stream, layer, batch_,
                                  InputBlocks(blocks_, narrow_blocks_), logits, verdict));
  return EndWithVerdict(verdict, layer.inputs, call_.stream, call_.late, bad);
}

#define LARGEOUT_LAYOUT(X)                    \
  template int FanInGpu::LayOut<X>(const X*); \
  template int FanInGpu::LayBack<X>(X*);
LARGEOUT_LAYOUT(float)
LARGEOUT_LAYOUT(bfloat16)
#undef LARGEOUT_LAYOUT

#define LARGEOUT_LOGITS(T, Id) \
  template int FanInGpu::Logits<T, Id>(const FanInLayer<T, Id>&, float*, int64_t*);
LARGEOUT_LOGITS(float, uint16_t)
LARGEOUT_LOGITS(float, uint32_t)
LARGEOUT_LOGITS(bfloat16, uint16_t)
LARGEOUT_LOGITS(bfloat16, uint32_t)
#undef LARGEOUT_LOGITS

}  // namespace largeout
