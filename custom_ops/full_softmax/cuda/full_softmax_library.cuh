// The same numbers and gradients, whose products are those of cuBLASLt (common/cuda/blas.h): logits and their
// gradients are in memory, a chunk of classes and of tokens at a time.
#ifndef LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_LIBRARY_CUH_
#define LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_LIBRARY_CUH_

#include "common/cuda/blas.h"
#include "full_softmax/cuda/full_softmax_gradients.cuh"
#include "full_softmax/full_softmax.h"

namespace largeout {

// The terms of ranges of classes: [ranges, tokens] each; and the logits of the targets [tokens].
struct PartialTerms {
  float *high, *total, *sum, *picked;
};

// The three numbers of each token, from those of the ranges in their order (full_softmax.cu).
int JoinTerms(const PartialTerms& parts, int64_t ranges, const int32_t* targets, int64_t tokens, bool skip,
              const SoftmaxTerms& out, GpuStream stream);

// Both return kNoProduct where the call must not use the library, where there is none, or where it lacks a product
// of these types and sizes: products of float32 whose factors must not be rounded, and those of rows of bfloat16
// with hidden vectors of float32. There is at least one token.
//
// Scratch memory of both: 128 MB for logits; 32 MB for the library; a chunk of the rows in bfloat16, where these are
// float and hidden vectors bfloat16. LibraryGradient beside hidden vectors of bfloat16: 64 MB for gradients of
// logits, and the gradient of hidden vectors in float32. Beside rows of bfloat16: a chunk of their gradient in float32.
template <typename T, typename H>
int LibraryTerms(const SoftmaxRows<T>& table, const SoftmaxBatch<H, int32_t>& batch, const SoftmaxTerms& terms,
                 const GpuCall& call);
// d_hidden [tokens, dim]: where the gradient of hidden vectors of either type goes in float32, in place of
// out.hidden; or null.
template <typename T, typename H>
int LibraryGradient(const SoftmaxRows<T>& table, const SoftmaxBatch<H, int32_t>& batch, const TokenGradients& of,
                    const SoftmaxBatchGradients<H, T>& out, float* d_hidden, const GpuCall& call);

}  // namespace largeout

#endif  // LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_LIBRARY_CUH_
