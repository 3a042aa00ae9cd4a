// Private to fan_in_backward.cu: the gradient of the inputs from the gradients of a chunk of logits, without
// atomics.
//
// The connections of a chunk are sorted by input. A group of 8 lanes (4 in blocks of 16 examples) goes
// through a piece of them, which is as long as any other: what an input has in it is summed in registers, and
// added to the input's gradient, which no other group touches, or, where the input began in an earlier piece,
// kept as the head of this one. The heads are added last, in the order of the pieces. What is added to what
// hangs on the connections alone, not on which classes have a gradient.
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

constexpr int kPiece = kInEmulation ? 32 : 64;  // connections: a multiple of 8

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

// A connection, as it is read by one lane of a group.
struct SortedConnection {
  uint32_t input;  // `inputs`: none
  uint32_t row;    // of the chunk; kNoRow: it has no gradient
  float weight;
};
constexpr uint32_t kNoRow = 0xffffffffu;

// What a group adds up for an input, in the place that it has in the end.
class InputSum {
 public:
  // sums: [inputs, width]; head: where the sum of `head_input`, the first one, goes.
  __device__ InputSum(const Quads& quads, float* sums, float4* head, uint32_t head_input, uint32_t none)
      : quads_(quads), sums_(sums), none_(none), input_(head_input), to_(head) {}

  __device__ __forceinline__ void Add(uint32_t input, float weight, const float4& g) {
    if (input != input_ && input != none_) {
      Leave();
      input_ = input;
      to_ = &quads_.Row(sums_, input);
      before_ = *to_;
      sum_ = make_float4(0.f, 0.f, 0.f, 0.f);
    }
    Quads::AddProduct(weight, g, &sum_);
  }
  __device__ __forceinline__ void Leave() const {
    if (input_ == none_) return;
    *to_ = make_float4(before_.x + sum_.x, before_.y + sum_.y, before_.z + sum_.z, before_.w + sum_.w);
  }

 private:
  const Quads& quads_;
  float* const sums_;
  const uint32_t none_;
  uint32_t input_;
  float4* to_;
  float4 sum_ = make_float4(0.f, 0.f, 0.f, 0.f);
  float4 before_ = make_float4(0.f, 0.f, 0.f, 0.f);  // what earlier chunks have of the input
};

// A group a piece, along y blocks of examples. weights: those of the chunk.
template <typename T>
__global__ void __launch_bounds__(kThreads, 3)
    SumPieces(SortedConnections sorted, const T* weights, uint32_t fan_in, FanInBatch batch,
              GradientChunk chunk, float* all_sums, float* all_heads) {
  const int width = batch.width;
  const Quads quads(width);
  const int piece = static_cast<int>(quads.Group()), begin = piece * kPiece,
            end = min(begin + kPiece, static_cast<int>(sorted.count));
  const uint32_t head = sorted.HeadOf(piece);
  for (int64_t block = blockIdx.y; block < batch.blocks; block += gridDim.y) {
    const float* gradients = chunk.values + block * chunk.rows * width;
    const uint8_t* state = chunk.state + block * chunk.rows;
    float* heads = all_heads + block * sorted.pieces * width;
    InputSum sum(quads, all_sums + block * batch.inputs * width,
                 &quads.Row(heads, static_cast<uint32_t>(piece)), head, sorted.inputs);
    for (int i = begin + quads.Part(); i < begin + kPiece; i += quads.Lanes()) {
      SortedConnection own{sorted.inputs, kNoRow, 0.f};
      if (i < end) own.input = sorted.input[i];
      if (!__any_sync(kAll, own.input != sorted.inputs)) break;
      if (own.input != sorted.inputs) {
        const uint32_t at = static_cast<uint32_t>(sorted.at[i]), row = at / fan_in;
        if (state[row] == kHasGradient) own.row = row, own.weight = GpuToFloat(weights[at]);
      }
      float4 g[Quads::kLoads];
#pragma unroll
      for (int k = 0; k < Quads::kLoads; ++k) {
        g[k] = make_float4(0.f, 0.f, 0.f, 0.f);
        const uint32_t row = quads.OfLoad(own.row, k);
        if (k < quads.Lanes() && row != kNoRow) g[k] = quads.Row(gradients, row);
      }
#pragma unroll
      for (int k = 0; k < Quads::kLoads; ++k) {
        const uint32_t input = quads.OfLoad(own.input, k);
        const float weight = quads.OfLoad(own.weight, k);
        if (k < quads.Lanes()) sum.Add(input, weight, g[k]);
      }
    }
    sum.Leave();
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
  const dim3 grid = Grid(Blocks(sorted.pieces, kWarps), batch),
             groups = Grid(Blocks(sorted.pieces, Quads::GroupsOf(kThreads, batch.width)), batch);
  LARGEOUT_RETURN_IF_ERROR(Launch(SumPieces<T>, groups, kThreads, 0, stream, sorted, weights, fan_in, batch,
                                  chunk, to.sums, to.heads));
  return Launch(AddHeads, grid, kThreads, 0, stream, sorted, batch, to.heads, to.sums);
}

}  // namespace fan_in_gpu
}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_INPUT_GRADIENT_CUH_
