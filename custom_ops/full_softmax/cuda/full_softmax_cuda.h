// The CUDA twin of full_softmax.h: the same numbers, all arrays in device memory, and the same bits on every
// run: no float atomics, sums have an order that depends on the sizes alone. Any dim; rows are read in
// 16-byte pieces (8 for bfloat16) where dim is a multiple of 4. Products are float32 multiply-adds; those
// with a table of bfloat16 use tensor cores, where float32 factors keep 16 bits of their mantissa.
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
#include "full_softmax/full_softmax.h"

namespace largeout {

// *bad: the position of the first target outside [-1, classes), or -1. copy [tokens]: the targets as the
// functions below take them; may be null. Waits for the stream, where there are tokens.
template <typename Id>
int SoftmaxTargetsCuda(const Id* targets, int64_t tokens, int64_t classes, int32_t* copy, Scratch* scratch,
                       GpuStream stream, int64_t* bad);

// As FullSoftmaxTerms. Targets have been checked. Scratch memory: up to 64 MB, or 12 bytes for each 64 tokens
// and 8192 classes.
template <typename T, typename H>
int FullSoftmaxTermsCuda(const SoftmaxRows<T>& table, const SoftmaxBatch<H, int32_t>& batch,
                         const SoftmaxTerms& terms, Scratch* scratch, GpuStream stream);

// As FullSoftmaxGrad; any gradient may be null. Scratch memory: up to 128 MB for gradients of logits, and the
// gradient of the hidden vectors in float32: several parts of it, together up to 32 MB, where there are few
// tokens, else one, and for float32 vectors none. Rows of bfloat16: also a float32 copy of some of their
// gradient, where there are more than 8192 tokens.
template <typename T, typename H>
int FullSoftmaxGradCuda(const SoftmaxRows<T>& table, const SoftmaxBatch<H, int32_t>& batch, const float* lse,
                        const SoftmaxUpstream& upstream, const SoftmaxBatchGradients<H, T>& gradients,
                        Scratch* scratch, GpuStream stream);

}  // namespace largeout

#endif  // LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_CUDA_H_
