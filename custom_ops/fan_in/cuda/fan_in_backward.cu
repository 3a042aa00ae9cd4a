// The backward pass, chunk by chunk of the classes: the gradients of the logits; what they add to the
// gradient of the inputs; those of weights and bias, written or applied in place. Neither [batch, classes]
// nor a gradient [classes, fan_in] is ever held.
#include "common/cuda/launch.cuh"
#include "fan_in/cuda/fan_in_apply.cuh"
#include "fan_in/cuda/fan_in_fused_sums.cuh"
#include "fan_in/cuda/fan_in_input_gradient.cuh"

namespace largeout {
namespace fan_in_gpu {
namespace {

template <typename Apply>
int ApplyRows(Indices indices, int64_t count, bool checked, const FanInBatch& batch, InputBlocks blocks,
              const GradientChunk& chunk, const Apply& apply, Verdict* verdict, GpuStream stream) {
  return Launch(RowGradients<Apply>, Blocks(chunk.rows, kWarps), kThreads, 0, stream, indices, count, checked,
                batch, blocks, chunk, apply, verdict);
}

template <typename T, typename Id>
int ApplyStep(const FanInLayer<T, Id>& layer, const FanInBatch& batch, InputBlocks blocks,
              const GradientChunk& chunk, const FanInStep<T>& step, Verdict* verdict, GpuStream stream) {
  return WithApply(step, layer.fan_in, [&](const auto& apply) {
    if constexpr (std::is_same<std::decay_t<decltype(apply)>, Leave>::value) return 0;
    return ApplyRows(Indices(layer.indices + chunk.first * layer.fan_in), layer.fan_in, true, batch, blocks,
                     chunk, apply, verdict, stream);
  });
}

template <typename T, typename Id>
int ApplyFused(const FanInLayer<T, Id>& layer, const FanInBatch& batch, InputBlocks blocks,
               const GradientsOnGpu& gradients, const FanInStep<T>& step, const FusedKept<T>& kept,
               Verdict* verdict, GpuStream stream) {
  const int rows = FusedRowsOfWarp(kept.chunk.rows);
  return WithApply(step, layer.fan_in, [&](const auto& apply) {
    using Fused = FusedStep<std::decay_t<decltype(apply)>, T>;
    const auto kernel = batch.blocks == 1 ? FusedRows<true, Fused, T> : FusedRows<false, Fused, T>;
    return Launch(kernel, Blocks(kept.chunk.rows, int64_t{rows} * kWarps), kThreads, 0, stream,
                  Fused{FusedLayer<T>(layer), batch, blocks, gradients, apply, verdict}, kept, rows);
  });
}

template <typename T, typename Id>
int ApplyFusedWithSums(const FanInLayer<T, Id>& layer, const FanInBatch& batch, InputBlocks blocks,
                       const GradientsOnGpu& gradients, const FanInStep<T>& step, const RangeSums& sums,
                       int sum_bytes, Verdict* verdict, GpuStream stream) {
  const FusedRanges ranges(layer.classes);
  LARGEOUT_RETURN_IF_ERROR(WithApply(step, layer.fan_in, [&](const auto& apply) {
    using Fused = FusedStep<std::decay_t<decltype(apply)>, T>;
    return Launch(FusedSums<Fused>, static_cast<unsigned>(ranges.count), kSumThreads, sum_bytes, stream,
                  Fused{FusedLayer<T>(layer), batch, blocks, gradients, apply, verdict}, ranges, sums.sums);
  }));
  return Launch(AddRangeSums, GridStrideBlocks(Blocks(sums.floats, kThreads), 4096), kThreads, 0, stream,
                sums);
}

}  // namespace
}  // namespace fan_in_gpu

using namespace fan_in_gpu;

template <>
template <typename T, typename Id>
int FanInGpu::Backward(const FanInLayer<T, Id>& layer, const FanInGradients& gradients,
                       const FanInStep<T>& step, bool input_gradient, int64_t* bad) {
  *bad = -1;
  const InputBlocks inputs(blocks_, narrow_blocks_);
  GradientsOnGpu from;
  LARGEOUT_RETURN_IF_ERROR(ToGpu(gradients, call_, &from));
  Arena arena(call_.scratch);
  Verdict* verdict = arena.Take<Verdict>(1);
  LARGEOUT_RETURN_IF_ERROR(arena.error());
  LARGEOUT_RETURN_IF_ERROR(ClearVerdict(verdict, call_.stream));
  const auto end = [&] { return call_.late != nullptr ? 0 : ReadVerdict(verdict, call_.stream, bad); };
  input_gradient = input_gradient && batch_.floats() > 0;
  const bool fused = from.logits == nullptr && layer.classes > 0 && IsFused(layer.fan_in, batch_);
  const int sum_bytes = fused && input_gradient ? FusedSumBytes(batch_) : 0;
  if (sum_bytes > 0) {
    RangeSums sums{nullptr, batch_.floats(), FusedRanges(layer.classes).count};
    d_blocks_ = sums.sums = arena.Take<float>(sums.ranges * sums.floats);
    LARGEOUT_RETURN_IF_ERROR(arena.error());
    LARGEOUT_RETURN_IF_ERROR(
        ApplyFusedWithSums(layer, batch_, inputs, from, step, sums, sum_bytes, verdict, call_.stream));
    return end();
  }
  if (fused && !input_gradient) {
    const FusedKept<T> all{
        {nullptr, nullptr, 0, layer.classes}, {batch_.inputs, layer.fan_in}, nullptr, false, nullptr};
    LARGEOUT_RETURN_IF_ERROR(ApplyFused(layer, batch_, inputs, from, step, all, verdict, call_.stream));
    return end();
  }
  const ChunkMemory memory(layer.classes, input_gradient ? layer.fan_in : 0, batch_, &arena);
  Arena nothing;
  const InputSums sums(memory.rows, layer.fan_in, batch_, input_gradient ? &arena : &nothing);
  T* old_weights = fused && !sums.kind.Whole() ? arena.Take<T>(memory.rows * layer.fan_in) : nullptr;
  LARGEOUT_RETURN_IF_ERROR(arena.error());
  d_blocks_ = sums.sums;
  if (input_gradient)
    LARGEOUT_CUDA_RETURN(cudaMemsetAsync(sums.sums, 0, sums.floats * sizeof(float), call_.stream));
  for (int64_t first = 0; first < layer.classes; first += memory.rows) {
    const GradientChunk chunk = memory.At(first, layer.classes);
    if (fused) {
      const bool sparse = from.active != nullptr;
      if (sparse) {
        LARGEOUT_CUDA_RETURN(
            cudaMemsetAsync(chunk.state, kNoGradient, chunk.rows * batch_.blocks, call_.stream));
        LARGEOUT_RETURN_IF_ERROR(WordsOfConnections(layer, batch_, chunk, sums, call_.stream));
      }
      LARGEOUT_RETURN_IF_ERROR(ApplyFused(layer, batch_, inputs, from, step,
                                          {chunk, sums.kind, sums.sort.words, sparse, old_weights}, verdict,
                                          call_.stream));
      LARGEOUT_RETURN_IF_ERROR(AddToInputs(old_weights, layer.fan_in, batch_, chunk, sums, call_.stream));
      continue;
    }
    LARGEOUT_RETURN_IF_ERROR(ChunkGradients(layer, batch_, inputs, from, chunk, verdict, call_.stream));
    // The inputs' gradient first: it takes the weights as they were.
    if (input_gradient) {
      LARGEOUT_RETURN_IF_ERROR(WordsOfConnections(layer, batch_, chunk, sums, call_.stream));
      LARGEOUT_RETURN_IF_ERROR(
          AddToInputs(layer.weights + first * layer.fan_in, layer.fan_in, batch_, chunk, sums, call_.stream));
    }
    LARGEOUT_RETURN_IF_ERROR(ApplyStep(layer, batch_, inputs, chunk, step, verdict, call_.stream));
  }
  return end();
}

template <>
template <typename T, typename Id>
int FanInGpu::CandidateGradient(const FanInLayer<T, Id>& layer, const FanInGradients& gradients,
                                const int32_t* candidates, int64_t first_row, int64_t rows, int64_t count,
                                float* d_weights, int64_t* bad, int64_t* bad_candidate) {
  *bad = *bad_candidate = -1;
  const InputBlocks inputs(blocks_, narrow_blocks_);
  GradientsOnGpu from;
  LARGEOUT_RETURN_IF_ERROR(ToGpu(gradients, call_, &from));
  Arena arena(call_.scratch);
  Verdict* verdict = arena.Take<Verdict>(1);
  const ChunkMemory memory(rows, 0, batch_, &arena);
  LARGEOUT_RETURN_IF_ERROR(arena.error());
  LARGEOUT_RETURN_IF_ERROR(ClearVerdict(verdict, call_.stream));
  for (int64_t at = 0; at < rows; at += memory.rows) {
    GradientChunk chunk = memory.At(first_row + at, first_row + rows);
    LARGEOUT_RETURN_IF_ERROR(ChunkGradients(layer, batch_, inputs, from, chunk, verdict, call_.stream));
    chunk.first = at;  // of candidates and d_weights
    LARGEOUT_RETURN_IF_ERROR(ApplyRows(Indices(candidates + at * count), count, false, batch_, inputs, chunk,
                                       Write<float>{d_weights, nullptr}, verdict, call_.stream));
  }
  return ReadVerdict(verdict, call_.stream, bad, bad_candidate);
}

#define LARGEOUT_BACKWARD(T, Id)                                                                     \
  template int FanInGpu::Backward<T, Id>(const FanInLayer<T, Id>&, const FanInGradients&,            \
                                         const FanInStep<T>&, bool, int64_t*);                       \
  template int FanInGpu::CandidateGradient<T, Id>(const FanInLayer<T, Id>&, const FanInGradients&,   \
                                                  const int32_t*, int64_t, int64_t, int64_t, float*, \
                                                  int64_t*, int64_t*);
LARGEOUT_BACKWARD(float, uint16_t)
LARGEOUT_BACKWARD(float, uint32_t)
LARGEOUT_BACKWARD(bfloat16, uint16_t)
LARGEOUT_BACKWARD(bfloat16, uint32_t)
#undef LARGEOUT_BACKWARD

}  // namespace largeout
