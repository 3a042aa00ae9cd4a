// Private to fan_in_backward.cu: the gradient of the inputs from the gradients of a chunk of logits, without
// atomics.
//
// The connections of a chunk are sorted by input. A warp goes through a piece of them, which is as long as
// any other: what an input has in it is summed in registers, and added to the input's gradient, which no
// other warp touches, or, where the input began in an earlier piece, kept as the head of this one. The heads
// are added last, in the order of the pieces. What is added to what hangs on the connections alone, not on
// which classes have a gradient.
//
// Bounds, for each connection: two passes of a radix sort over 8 bytes (three from 65,536 inputs on); for
// each block of examples its place, its weight (a sector of 32 bytes, from the L2 cache) and one run of 64 or
// 128 bytes of gradients, from the L2 cache; 2 flops for each example.
#ifndef LARGEOUT_FAN_IN_FAN_IN_INPUT_GRADIENT_CUH_
#define LARGEOUT_FAN_IN_FAN_IN_INPUT_GRADIENT_CUH_

#include "common/cuda/group_cuda.h"
#include "fan_in/cuda/fan_in_gradients.cuh"

namespace largeout {
namespace fan_in_gpu {

constexpr int64_t kPiece = kInEmulation ? 64 : 128;  // connections: a multiple of 32
constexpr int kInFlight = 8;                         // runs of gradients that a warp waits for at once

// What the gradient of the inputs needs for chunks of up to `rows` classes.
struct InputSums {
  InputSums(int64_t rows, int64_t fan_in, const FanInBatch& batch, Arena* arena)
      : sort(rows * fan_in, batch.inputs, arena), floats(batch.floats()) {
    sums = arena->Take<float>(floats);
    heads = arena->Take<float>(Pieces(rows * fan_in) * batch.padded());
  }
  static int64_t Pieces(int64_t connections) { return (connections + kPiece - 1) / kPiece; }

  KeySort<uint32_t> sort;  // keys: inputs; positions: among the chunk's connections
  int64_t floats;
  float* sums;   // [blocks, inputs, width]
  float* heads;  // [blocks, pieces, width]
};

// The sorted connections of a chunk, as kernels read them.
struct SortedConnections {
  const uint32_t* input;  // [count] ascending; `inputs`: out of range
  const int32_t* at;
  int64_t count, pieces;
  uint32_t inputs;

  // The input of a piece's first connection, where it began in an earlier piece; else `inputs`.
  __device__ __forceinline__ uint32_t HeadOf(int64_t piece) const {
    if (piece <= 0 || piece >= pieces) return inputs;
    const uint32_t first = input[piece * kPiece];
    return first == input[piece * kPiece - 1] ? first : inputs;
  }
};

// A warp a piece, along y blocks of examples. weights: those of the chunk.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    SumPieces(SortedConnections sorted, const T* weights, uint32_t fan_in, FanInBatch batch,
              GradientChunk chunk, float* all_sums, float* all_heads) {
  const int lane = Lane(), width = batch.width;
  const int64_t piece = int64_t{blockIdx.x} * kWarps + Warp(), begin = piece * kPiece;
  if (piece >= sorted.pieces || sorted.input[begin] == sorted.inputs) return;
  const int64_t end = min(begin + kPiece, sorted.count);
  const uint32_t head = sorted.HeadOf(piece);
  for (int64_t block = blockIdx.y; block < batch.blocks; block += gridDim.y) {
    const float* gradients = chunk.values + block * chunk.rows * width + (lane & (width - 1));
    const uint8_t* state = chunk.state + block * chunk.rows;
    float* sums = all_sums + block * batch.inputs * width + lane;
    float* heads = all_heads + (block * sorted.pieces + piece) * width + lane;
    uint32_t current = head;  // the input whose sum this is
    float sum = 0.f;
    const auto leave = [&] {
      if (lane >= width || current == sorted.inputs) return;
      *(current == head ? heads : sums + int64_t{current} * width) = sum;
    };
    for (int64_t base = begin; base < end; base += 32) {
      // One connection of each lane.
      const bool has = base + lane < end;
      const uint32_t input = has ? sorted.input[base + lane] : sorted.inputs;
      uint32_t row = 0;
      float weight = 0.f;
      bool used = false;
      if (input != sorted.inputs) {
        const uint32_t at = static_cast<uint32_t>(sorted.at[base + lane]);
        row = at / fan_in;
        used = state[row] == kHasGradient;
        if (used) weight = GpuToFloat(weights[at]);
      }
      unsigned left = __ballot_sync(kAll, used);
      while (left != 0) {
        int from[kInFlight];
        float g[kInFlight];
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          from[i] = left != 0 ? __ffs(left) - 1 : -1;
          left &= left - 1;
          const uint32_t of_row = __shfl_sync(kAll, row, from[i] & 31);
          if (from[i] >= 0) g[i] = gradients[int64_t{of_row} * width];
        }
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          const uint32_t of_input = __shfl_sync(kAll, input, from[i] & 31);
          const float w = __shfl_sync(kAll, weight, from[i] & 31);
          if (from[i] < 0) continue;
          if (of_input != current) {
            leave();
            current = of_input;
            sum = lane < width ? sums[int64_t{current} * width] : 0.f;
          }
          sum = fmaf(w, g[i], sum);
        }
      }
    }
    leave();
  }
}

// Adds the heads of pieces to the gradients of their inputs: a warp those of one input.
__global__ void __launch_bounds__(kThreads)
    AddHeads(SortedConnections sorted, FanInBatch batch, const float* all_heads, float* all_sums) {
  const int lane = Lane(), width = batch.width;
  const int64_t first = int64_t{blockIdx.x} * kWarps + Warp();
  const uint32_t input = sorted.HeadOf(first);
  if (input == sorted.inputs || sorted.HeadOf(first - 1) == input) return;
  for (int64_t block = blockIdx.y; block < batch.blocks; block += gridDim.y) {
    float* to = all_sums + (block * batch.inputs + input) * width + lane;
    float sum = lane < width ? *to : 0.f;
    for (int64_t piece = first;; piece += 32) {
      const unsigned same = __ballot_sync(kAll, sorted.HeadOf(piece + lane) == input);
      const int count = same == kAll ? 32 : __ffs(~same) - 1;
      const float* heads = all_heads + (block * sorted.pieces + piece) * width + lane;
#pragma unroll 8
      for (int i = 0; i < count; ++i) sum += lane < width ? heads[int64_t{i} * width] : 0.f;
      if (count < 32) break;
    }
    if (lane < width) *to = sum;
  }
}

// Adds what the chunk's classes have to the gradient of the inputs. weights: those of the chunk, as they
// were.
template <typename T, typename Id>
int AddToInputs(const FanInLayer<T, Id>& layer, const T* weights, const FanInBatch& batch,
                const GradientChunk& chunk, const InputSums& to, GpuStream stream) {
  const int64_t count = chunk.rows * layer.fan_in;
  if (count == 0) return 0;
  const uint32_t fan_in = static_cast<uint32_t>(layer.fan_in), inputs = static_cast<uint32_t>(batch.inputs);
  LARGEOUT_RETURN_IF_ERROR(KeysOfIdsCuda(layer.indices + chunk.first * layer.fan_in, count, to.sort, stream));
  LARGEOUT_RETURN_IF_ERROR(SortKeysCuda(to.sort, count, stream));
  const SortedConnections sorted{to.sort.sorted, to.sort.order, count, InputSums::Pieces(count), inputs};
  const dim3 grid = Grid(Blocks(sorted.pieces, kWarps), batch);
  LARGEOUT_RETURN_IF_ERROR(Launch(SumPieces<T>, grid, kThreads, 0, stream, sorted, weights, fan_in, batch,
                                  chunk, to.sums, to.heads));
  return Launch(AddHeads, grid, kThreads, 0, stream, sorted, batch, to.heads, to.sums);
}

}  // namespace fan_in_gpu
}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_INPUT_GRADIENT_CUH_
