// The CUDA twin of full_softmax.h: the same numbers, all arrays in device memory, and the same bits on every
// run: no float atomics, sums have an order that depends on the sizes alone. Any dim; rows are copied to
// shared memory 16 bytes at a time, and without waiting, where they are aligned to them. Products are those
// of tensor cores (common/cuda/gemm/): three of TF32 for float32, which lose 2^-22 of a product; of
// bfloat16 where rows or hidden vectors are. Beside rows of bfloat16 hidden vectors of float32 keep 16 bits.
// Beside hidden vectors of bfloat16 all factors are rounded to it: rows, and gradients of logits.
//
//   SoftmaxTargetsCuda(targets, tokens, classes, copy, &scratch, stream, &bad);  // waits for the stream
//   FullSoftmaxTermsCuda(table, batch, terms, &scratch, stream);
//   FullSoftmaxGradCuda(table, batch, lse, upstream, gradients, &scratch, stream);
//
// Every function returns the first CUDA error as an int (0: success). Less than 2^31 tokens, classes and
// columns.
#ifndef LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_CUDA_H_
#define LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_CUDA_H_

#include "common/cuda/cuda.h"
#include "common/cuda/late_report.h"
#include "full_softmax/full_softmax.h"

namespace largeout {

// *bad: the first target outside [-1, classes). copy [tokens]: the targets as the functions below take them,
// -1 in the place of bad ones; may be null. Waits for the stream, where there are tokens. With `late` nothing
// waits: *bad is none, and the finding, of rule 0, is posted there. bad null: nothing waits and nobody
// learns.
template <typename Id>
int SoftmaxTargetsCuda(const Id* targets, int64_t tokens, int64_t classes, int32_t* copy, Scratch* scratch,
                       GpuStream stream, BadTarget* bad, LateReport* late = nullptr);

// As FullSoftmaxTerms. Targets have been checked. Scratch memory: up to 64 MB, or 12 bytes for each 128
// tokens and 8192 classes.
template <typename T, typename H>
int FullSoftmaxTermsCuda(const SoftmaxRows<T>& table, const SoftmaxBatch<H, int32_t>& batch,
                         const SoftmaxTerms& terms, Scratch* scratch, GpuStream stream);

// As FullSoftmaxGrad; any gradient may be null. Scratch memory: up to 128 MB (64 with hidden vectors of
// bfloat16) for gradients of logits, and the gradient of the hidden vectors in float32: several parts of it,
// together up to 32 MB, where there are few tokens, else one, and for float32 vectors none. Rows of bfloat16:
// also a float32 copy of some of their gradient, where there are more than 8192 tokens.
template <typename T, typename H>
int FullSoftmaxGradCuda(const SoftmaxRows<T>& table, const SoftmaxBatch<H, int32_t>& batch, const float* lse,
                        const SoftmaxUpstream& upstream, const SoftmaxBatchGradients<H, T>& gradients,
                        Scratch* scratch, GpuStream stream);

}  // namespace largeout

#endif  // LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_CUDA_H_
