// Private to fan_in_backward.cu: the gradient of the inputs from the gradients of a chunk of logits, without
// atomics.
//
// The connections of a chunk are sorted by input. A group of 8 lanes (4 in blocks of 16 examples) goes
// through a piece of them, which is as long as any other: what an input has in it is summed in registers, and
// added to the input's gradient, which no other group touches, or, where the input began in an earlier piece,
// kept as the head of this one. The heads are added last, in the order of the pieces. What is added to what
// hangs on the connections alone, not on which classes have a gradient.
//
// Bounds, for each connection: two passes of a radix sort over 8 bytes (three beyond 65,536 inputs); for
// each block of examples those 8 bytes, and one run of 64 or 128 bytes of gradients, from the L2 cache
// (beyond 65,536 inputs the weight, too: a sector of 32 bytes); 2 flops for each example.
#ifndef LARGEOUT_FAN_IN_FAN_IN_INPUT_GRADIENT_CUH_
#define LARGEOUT_FAN_IN_FAN_IN_INPUT_GRADIENT_CUH_

#include "common/cuda/group_cuda.h"
#include "fan_in/cuda/fan_in_gradients.cuh"

namespace largeout {
namespace fan_in_gpu {

constexpr int kPiece = FanInTuning::kPiece;  // connections
static_assert(kPiece % 8 == 0, "a group of 8 lanes goes through a piece");

// Memory of the gradient of the inputs, for chunks of up to `rows` classes.
struct InputSums {
  InputSums(int64_t rows, int64_t fan_in, const FanInBatch& batch, Arena* arena)
      : kind(batch.inputs, fan_in),
        sort(rows * fan_in, std::max<int64_t>(1, batch.inputs) - 1, kind.Bit(), arena),
        floats(batch.floats()) {
    sums = arena->Take<float>(floats);
    heads = arena->Take<float>(Pieces(rows * fan_in) * batch.padded());
  }
  static int64_t Pieces(int64_t connections) { return (connections + kPiece - 1) / kPiece; }

  PackedKeys kind;
  WordSort sort;
  int64_t floats;
  float* sums;   // [blocks, inputs, width]
  float* heads;  // [blocks, pieces, width]
};

// The sorted connections of a chunk, as kernels read them.
struct SortedConnections {
  PackedKeys kind;
  const uint64_t* words;  // [count]
  int64_t count, pieces;

  // The input of a piece's first connection, where it began in an earlier piece; else `Inputs()`.
  __device__ __forceinline__ uint32_t HeadOf(int64_t piece) const {
    if (piece <= 0 || piece >= pieces) return kind.Inputs();
    const uint32_t first = kind.Input(words[piece * kPiece]);
    return first == kind.Input(words[piece * kPiece - 1]) ? first : kind.Inputs();
  }
};

// A connection, as it is read by one lane of a group.
struct SortedConnection {
  uint32_t input;  // `inputs`: none
  uint32_t row;    // of the chunk; kNoRow: it has no gradient
  float weight;
};

// The sum of an input's gradient by one group of lanes, which is stored where it belongs in the end.
class InputSum {
 public:
  // sums: [inputs, width]; head: where the sum of `head_input`, the first one, goes.
  __device__ InputSum(const Vec4Lanes& vec4, float* sums, float4* head, uint32_t head_input, uint32_t none)
      : vec4_(vec4), sums_(sums), none_(none), input_(head_input), to_(head) {}

  __device__ __forceinline__ void Add(uint32_t input, float weight, const float4& g) {
    if (input != input_ && input != none_) {
      Leave();
      input_ = input;
      to_ = &vec4_.Row(sums_, input);
      before_ = *to_;
      sum_ = make_float4(0.f, 0.f, 0.f, 0.f);
    }
    Vec4Lanes::AddProduct(weight, g, &sum_);
  }
  __device__ __forceinline__ void Leave() const {
    if (input_ == none_) return;
    *to_ = make_float4(before_.x + sum_.x, before_.y + sum_.y, before_.z + sum_.z, before_.w + sum_.w);
  }

 private:
  const Vec4Lanes& vec4_;
  float* const sums_;
  const uint32_t none_;
  uint32_t input_;
  float4* to_;
  float4 sum_ = make_float4(0.f, 0.f, 0.f, 0.f);
  float4 before_ = make_float4(0.f, 0.f, 0.f, 0.f);  // what earlier chunks have of the input
};

// A group a piece, along y blocks of examples. weights: those of the chunk, for words without. A class in a
// word has a gradient for some block of examples.
template <bool kWhole, typename T>
__global__ void __launch_bounds__(kThreads, 3)
    SumPieces(SortedConnections sorted, const T* weights, FanInBatch batch, GradientChunk chunk,
              float* all_sums, float* all_heads) {
  const int width = batch.width;
  const Vec4Lanes vec4(width);
  const int piece = static_cast<int>(vec4.Group()), begin = piece * kPiece,
            end = min(begin + kPiece, static_cast<int>(sorted.count));
  const uint32_t head = sorted.HeadOf(piece), none = sorted.kind.Inputs();
  for (int64_t block = blockIdx.y; block < batch.blocks; block += gridDim.y) {
    const float* gradients = chunk.values + block * chunk.rows * width;
    const uint8_t* state = chunk.state + block * chunk.rows;
    float* heads = all_heads + block * sorted.pieces * width;
    InputSum sum(vec4, all_sums + block * batch.inputs * width,
                 &vec4.Row(heads, static_cast<uint32_t>(piece)), head, none);
    for (int i = begin + vec4.Part(); i < begin + kPiece; i += vec4.Lanes()) {
      SortedConnection own{none, kNoRow, 0.f};
      if (i < end) {
        const uint64_t word = sorted.words[i];
        const uint32_t row = sorted.kind.Row<kWhole>(word);
        own.input = sorted.kind.Input(word);
        if (row != kNoRow && (batch.blocks == 1 || state[row] == kHasGradient))
          own.row = row, own.weight = sorted.kind.Weight<kWhole>(word, weights);
      }
      if (!__any_sync(kAll, i < end)) break;
      float4 g[Vec4Lanes::kLoads];
#pragma unroll
      for (int k = 0; k < Vec4Lanes::kLoads; ++k) {
        g[k] = make_float4(0.f, 0.f, 0.f, 0.f);
        const uint32_t row = vec4.OfLoad(own.row, k);
        if (k < vec4.Lanes() && row != kNoRow) g[k] = vec4.Row(gradients, row);
      }
#pragma unroll
      for (int k = 0; k < Vec4Lanes::kLoads; ++k) {
        const uint32_t input = vec4.OfLoad(own.input, k);
        const float weight = vec4.OfLoad(own.weight, k);
        if (k < vec4.Lanes()) sum.Add(input, weight, g[k]);
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
  if (input == sorted.kind.Inputs() || sorted.HeadOf(first - 1) == input) return;
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

// A thread a connection.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    WriteWords(Indices indices, const T* weights, uint32_t fan_in, int64_t blocks, GradientChunk chunk,
               PackedKeys kind, uint64_t* words) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= chunk.rows * fan_in) return;
  const uint32_t row = static_cast<uint32_t>(i) / fan_in, k = static_cast<uint32_t>(i) % fan_in;
  bool found = false;
  for (int64_t block = 0; !found && block < blocks; ++block)
    found = chunk.state[block * chunk.rows + row] == kHasGradient;
  words[i] = found ? kind.Of(indices[i], row, k, GpuToFloat(weights[i])) : kind.Without(indices[i]);
}

// The words of a chunk's connections, for AddToInputs.
template <typename T, typename Id>
int WordsOfConnections(const FanInLayer<T, Id>& layer, const FanInBatch& batch, const GradientChunk& chunk,
                       const InputSums& to, GpuStream stream) {
  const int64_t count = chunk.rows * layer.fan_in, first = chunk.first * layer.fan_in;
  if (count == 0) return 0;
  return Launch(WriteWords<T>, Blocks(count, kThreads), kThreads, 0, stream, Indices(layer.indices + first),
                layer.weights + first, static_cast<uint32_t>(layer.fan_in), batch.blocks, chunk, to.kind,
                to.sort.words);
}

// Adds what the chunk's classes have to the gradient of the inputs. weights: those of the chunk, as they
// were.
template <typename T>
int AddToInputs(const T* weights, int64_t fan_in, const FanInBatch& batch, const GradientChunk& chunk,
                const InputSums& to, GpuStream stream) {
  const int64_t count = chunk.rows * fan_in;
  if (count == 0) return 0;
  LARGEOUT_RETURN_IF_ERROR(SortWordsCuda(to.sort, count, stream));
  const SortedConnections sorted{to.kind, to.sort.sorted, count, InputSums::Pieces(count)};
  const dim3 grid = Grid(Blocks(sorted.pieces, kWarps), batch),
             groups = Grid(Blocks(sorted.pieces, Vec4Lanes::GroupsOf(kThreads, batch.width)), batch);
  const auto kernel = to.kind.Whole() ? SumPieces<true, T> : SumPieces<false, T>;
  LARGEOUT_RETURN_IF_ERROR(
      Launch(kernel, groups, kThreads, 0, stream, sorted, weights, batch, chunk, to.sums, to.heads));
  return Launch(AddHeads, grid, kThreads, 0, stream, sorted, batch, to.heads, to.sums);
}

}  // namespace fan_in_gpu
}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_INPUT_GRADIENT_CUH_
