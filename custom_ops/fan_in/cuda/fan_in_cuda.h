// The CUDA twin of fan_in.h: the same results up to float32 rounding, all arrays in device memory, and the
// same bits on every run: no float atomics, every sum has an order that depends on the sizes and on how much
// shared memory a block may have. A warp computes one class for one block of examples, a lane an example: a
// connection reads one run of 64 or 128 bytes.
//
//   FanInLayOutCuda(batch, x, blocks, stream);
//   bytes = FanInBackwardWorkspaceCuda(classes, fan_in, batch, true);        // allocate them: workspace
//   FanInBackwardCuda(layer, batch, blocks, gradients, step, &d_blocks, workspace, stream, &bad);
//   FanInLayBackCuda(batch, d_blocks, d_x, stream);
//
// Launchers with `bad` wait for the stream once, at their end: *bad is -1, or the first row of a class with
// an index outside [0, inputs). Such a class is left out (nothing is ever read or written out of bounds), and
// the outputs mean nothing. With `late` nothing waits: *bad is -1, and the row is posted there, as the
// position of a finding of rule 0. Structs of fan_in.h hold device pointers here, `hyper` included.
#ifndef LARGEOUT_FAN_IN_FAN_IN_CUDA_H_
#define LARGEOUT_FAN_IN_FAN_IN_CUDA_H_

#include "common/cuda/cuda.h"
#include "common/cuda/late_report.h"
#include "fan_in/fan_in.h"

namespace largeout {

template <typename X>
int FanInLayOutCuda(const FanInBatch& batch, const X* x, float* blocks, GpuStream stream);
template <typename X>
int FanInLayBackCuda(const FanInBatch& batch, const float* blocks, X* x, GpuStream stream);

// Bytes of workspace for FanInLogitsCuda.
constexpr int64_t kFanInLogitsWorkspaceCuda = 256;

template <typename T, typename Id>
int FanInLogitsCuda(const FanInLayer<T, Id>& layer, const FanInBatch& batch, const float* blocks,
                    float* logits, void* workspace, GpuStream stream, int64_t* bad,
                    LateReport* late = nullptr);

// What FanInTopKCuda keeps for a block of examples: the best k of some thousand ranges of classes.
int64_t FanInTopKWorkspaceCuda(int64_t classes, const FanInBatch& batch, int64_t k);
template <typename T, typename Id, typename Out>
int FanInTopKCuda(const FanInLayer<T, Id>& layer, const FanInBatch& batch, const float* blocks, int64_t k,
                  float* scores, Out* rows, void* workspace, GpuStream stream, int64_t* bad);

// FanInPositives (SortLabels runs on the host) in device memory.
struct FanInPositivesCuda {
  const FanInPositive* sorted = nullptr;
  const int64_t* block_start = nullptr;  // [blocks + 1]; null: there are no labels
};

int64_t FanInLossWorkspaceCuda(int64_t classes, const FanInBatch& batch);
template <typename T, typename Id>
int FanInLossForwardCuda(const FanInLayer<T, Id>& layer, const FanInBatch& batch, const float* blocks,
                         FanInLoss loss, const FanInPositivesCuda& positives, const FanInLossOutputs& out,
                         void* workspace, GpuStream stream, int64_t* bad, LateReport* late = nullptr);

// FanInGradients in device memory.
struct FanInGradientsCuda {
  const float* logits = nullptr;  // [size, classes]; null: of a loss
  FanInLoss loss = FanInLoss::kSquaredHinge;
  FanInPositivesCuda positives;
  const float *grad_loss = nullptr, *lse = nullptr, *mass = nullptr;
  const uint8_t* active = nullptr;
};

// For as many classes at a time as have up to 4M gradients of logits (16 MB) and 2M connections: those, 16
// bytes and a 64th of a run of gradients for each connection, and its weight beyond 65,536 inputs; and one
// gradient of the inputs. Or, for the squared hinge and up to 32 examples and 32 connections, where the
// gradient of all inputs fits shared memory, up to 264 of it.
int64_t FanInBackwardWorkspaceCuda(int64_t classes, int64_t fan_in, const FanInBatch& batch,
                                   bool input_gradient);

// d_blocks: where to say where in the workspace the gradient of the inputs is, [blocks, inputs, width]; or
// null: none is computed. bad null: nothing waits and nobody learns, as where the forward pass has told.
template <typename T, typename Id>
int FanInBackwardCuda(const FanInLayer<T, Id>& layer, const FanInBatch& batch, const float* blocks,
                      const FanInGradientsCuda& gradients, const FanInStep<T>& step, float** d_blocks,
                      void* workspace, GpuStream stream, int64_t* bad);

// The workspace: FanInBackwardWorkspaceCuda(rows, .., input_gradient = false).
template <typename T, typename Id>
int FanInCandidateGradientCuda(const FanInLayer<T, Id>& layer, const FanInBatch& batch, const float* blocks,
                               const FanInGradientsCuda& gradients, const int32_t* candidates,
                               int64_t first_row, int64_t rows, int64_t count, float* d_weights,
                               void* workspace, GpuStream stream, int64_t* bad, int64_t* bad_candidate);

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_CUDA_H_
