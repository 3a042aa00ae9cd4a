// The backward pass, chunk by chunk of the classes: the gradients of the logits; what they add to the
// gradient of the inputs; those of weights and bias, written or applied in place. Neither [batch, classes]
// nor a gradient [classes, fan_in] is ever held.
#include "common/cuda/launch.cuh"
#include "fan_in/cuda/fan_in_input_gradient.cuh"
#include "fan_in/fan_in_random.h"
#include "row_update/cuda/row_update_rules.cuh"

namespace largeout {
namespace fan_in_gpu {
namespace {

// Gradients as they are. T: what they are written as.
template <typename T>
struct Write {
  T* weights;
  float* bias;

  struct OnDevice {
    __device__ OnDevice(const Write& to, bool) : to(to) {}
    __device__ bool Skips() const { return false; }
    __device__ bool HasBias() const { return to.bias != nullptr; }
    __device__ void Weight(int64_t at, float d) const { GpuFromFloat(d, &to.weights[at]); }
    __device__ void Bias(int64_t row, float d) const { to.bias[row] = d; }
    Write to;
  };
};

__device__ __forceinline__ void Store(float value, uint64_t, uint64_t, float* to) { *to = value; }
// Rounded up with the probability of what is cut off.
__device__ __forceinline__ void Store(float value, uint64_t key, uint64_t element, bfloat16* to) {
  const uint32_t bits = __float_as_uint(value);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  to->bits = is_nan ? 0x7fc0 : static_cast<uint16_t>((bits + (FanInBits(key, element) & 0xffffu)) >> 16);
}

// An optimizer's step. kEvery: rows without gradient move too; lazy rules leave them alone even where weights
// decay.
template <typename RuleT, typename T, bool kEvery, bool kLazy>
struct Update {
  FanInStep<T> step;
  uint64_t first;  // the number of the first weight

  struct OnDevice {
    __device__ OnDevice(const Update& to, bool found)
        : to(to), rule(to.step.hyper), bias_rule(to.step.hyper), found(found) {
      bias_rule.decay = 0.f;
    }
    __device__ bool Skips() const { return !found && !kEvery && (kLazy || rule.decay == 0.f); }
    __device__ bool HasBias() const { return to.step.bias != nullptr && (found || kEvery); }
    __device__ void Weight(int64_t at, float d) const {
      float slots[kFanInMaxSlots];
      for (int i = 0; i < RuleT::kSlots; ++i) slots[i] = to.step.slots[i][at];
      const float next = rule.Step(d, GpuToFloat(to.step.weights[at]), slots);
      Store(next, to.step.key, to.first + static_cast<uint64_t>(at), &to.step.weights[at]);
      for (int i = 0; i < RuleT::kSlots; ++i) to.step.slots[i][at] = slots[i];
    }
    __device__ void Bias(int64_t row, float d) const {
      float slots[kFanInMaxSlots];
      for (int i = 0; i < RuleT::kSlots; ++i) slots[i] = to.step.bias_slots[i][row];
      to.step.bias[row] = bias_rule.Step(d, to.step.bias[row], slots);
      for (int i = 0; i < RuleT::kSlots; ++i) to.step.bias_slots[i][row] = slots[i];
    }
    const Update& to;
    RuleT rule, bias_rule;
    bool found;
  };
};

template <typename Apply, typename Id>
int ApplyRows(const Id* indices, int64_t count, bool checked, const FanInBatch& batch, const float* blocks,
              const GradientChunk& chunk, const Apply& apply, Verdict* verdict, GpuStream stream) {
  return Launch(RowGradients<Apply, Id>, Blocks(chunk.rows, kWarps), kThreads, 0, stream, indices, count,
                checked, batch, blocks, chunk, apply, verdict);
}

template <typename T, typename Id>
int ApplyStep(const FanInLayer<T, Id>& layer, const FanInBatch& batch, const float* blocks,
              const GradientChunk& chunk, const FanInStep<T>& step, Verdict* verdict, GpuStream stream) {
  const uint64_t first = static_cast<uint64_t>(step.first_class) * layer.fan_in;
  const auto apply = [&](const auto& to) {
    return ApplyRows(layer.indices + chunk.first * layer.fan_in, layer.fan_in, true, batch, blocks, chunk, to,
                     verdict, stream);
  };
  if (step.HasNone()) return 0;
  switch (step.rule) {
    case FanInRule::kNone:
      return apply(Write<T>{step.weights, step.bias});
    case FanInRule::kSgd:
      return apply(Update<gpu::Sgd, T, false, false>{step, first});
    case FanInRule::kAdagrad:
      return apply(Update<gpu::Adagrad, T, false, false>{step, first});
    case FanInRule::kAdam:
      return apply(Update<gpu::LazyAdam, T, true, false>{step, first});
    case FanInRule::kLazyAdam:
      return apply(Update<gpu::LazyAdam, T, false, true>{step, first});
  }
  return static_cast<int>(cudaErrorInvalidValue);
}

template <typename T, typename Id>
int AddInputs(const FanInLayer<T, Id>& layer, const FanInBatch& batch, const GradientChunk& chunk,
              const ChunkMemory& memory, const InputSums& sums, GpuStream stream) {
  LARGEOUT_RETURN_IF_ERROR(ListActiveRows(batch, chunk, memory, stream));
  dim3 grid = Grid(static_cast<unsigned>(sums.owners / kWarps), batch);
  grid.z = static_cast<unsigned>(sums.ranges);
  constexpr int kFull = 16 / sizeof(Id);
  const bool aligned = reinterpret_cast<uintptr_t>(layer.indices) % 16 == 0;
  const auto kernel = aligned && layer.fan_in % kFull == 0 ? AddToInputs<kFull, T, Id>
                      : aligned && layer.fan_in % 2 == 0   ? AddToInputs<2, T, Id>
                                                           : AddToInputs<1, T, Id>;
  return Launch(kernel, grid, kThreads, 0, stream, layer, batch, chunk, sums);
}

}  // namespace
}  // namespace fan_in_gpu

using namespace fan_in_gpu;

int64_t FanInBackwardWorkspaceCuda(int64_t classes, int64_t fan_in, const FanInBatch& batch,
                                   bool input_gradient) {
  Arena arena(nullptr);
  arena.Take<Verdict>(1);
  ChunkMemory(classes, batch, &arena);
  if (input_gradient) InputSums(classes, batch, &arena);
  return arena.bytes();
}

template <typename T, typename Id>
int FanInBackwardCuda(const FanInLayer<T, Id>& layer, const FanInBatch& batch, const float* blocks,
                      const FanInGradientsCuda& gradients, const FanInStep<T>& step, float** d_blocks,
                      void* workspace, GpuStream stream, int64_t* bad) {
  *bad = -1;
  Arena arena(workspace);
  Verdict* verdict = arena.Take<Verdict>(1);
  const ChunkMemory memory(layer.classes, batch, &arena);
  int error = ClearVerdict(verdict, stream);
  if (error != 0) return error;
  const bool input_gradient = d_blocks != nullptr && batch.floats() > 0;
  Arena nothing(nullptr);
  const InputSums sums(layer.classes, batch, input_gradient ? &arena : &nothing);
  if (d_blocks != nullptr) *d_blocks = sums.sums;
  if (input_gradient)
    LARGEOUT_CUDA_RETURN(cudaMemsetAsync(sums.sums, 0, sums.ranges * sums.floats * sizeof(float), stream));
  for (int64_t first = 0; first < layer.classes; first += memory.rows) {
    const GradientChunk chunk = memory.At(first, layer.classes);
    error = ChunkGradients(layer, batch, blocks, gradients, chunk, verdict, stream);
    // The inputs' gradient first: it takes the weights as they were.
    if (error == 0 && input_gradient) error = AddInputs(layer, batch, chunk, memory, sums, stream);
    if (error == 0) error = ApplyStep(layer, batch, blocks, chunk, step, verdict, stream);
    if (error != 0) return error;
  }
  if (input_gradient && sums.ranges > 1) {
    LARGEOUT_RETURN_IF_ERROR(
        Launch(AddInputSums, TurnBlocks(Blocks(sums.floats, kThreads), 4096), kThreads, 0, stream, sums));
  }
  return ReadVerdict(verdict, stream, bad);
}

template <typename T, typename Id>
int FanInCandidateGradientCuda(const FanInLayer<T, Id>& layer, const FanInBatch& batch, const float* blocks,
                               const FanInGradientsCuda& gradients, const int32_t* candidates,
                               int64_t first_row, int64_t rows, int64_t count, float* d_weights,
                               void* workspace, GpuStream stream, int64_t* bad, int64_t* bad_candidate) {
  *bad = *bad_candidate = -1;
  Arena arena(workspace);
  Verdict* verdict = arena.Take<Verdict>(1);
  const ChunkMemory memory(rows, batch, &arena);
  int error = ClearVerdict(verdict, stream);
  if (error != 0) return error;
  for (int64_t at = 0; at < rows; at += memory.rows) {
    GradientChunk chunk = memory.At(first_row + at, first_row + rows);
    error = ChunkGradients(layer, batch, blocks, gradients, chunk, verdict, stream);
    chunk.first = at;  // of candidates and d_weights
    if (error == 0) {
      error = ApplyRows(candidates + at * count, count, false, batch, blocks, chunk,
                        Write<float>{d_weights, nullptr}, verdict, stream);
    }
    if (error != 0) return error;
  }
  return ReadVerdict(verdict, stream, bad, bad_candidate);
}

#define LARGEOUT_BACKWARD(T, Id)                                                                            \
  template int FanInBackwardCuda<T, Id>(const FanInLayer<T, Id>&, const FanInBatch&, const float*,          \
                                        const FanInGradientsCuda&, const FanInStep<T>&, float**, void*,     \
                                        GpuStream, int64_t*);                                               \
  template int FanInCandidateGradientCuda<T, Id>(                                                           \
      const FanInLayer<T, Id>&, const FanInBatch&, const float*, const FanInGradientsCuda&, const int32_t*, \
      int64_t, int64_t, int64_t, float*, void*, GpuStream, int64_t*, int64_t*);
LARGEOUT_BACKWARD(float, uint16_t)
LARGEOUT_BACKWARD(float, uint32_t)
LARGEOUT_BACKWARD(bfloat16, uint16_t)
LARGEOUT_BACKWARD(bfloat16, uint32_t)
#undef LARGEOUT_BACKWARD

}  // namespace largeout
