// The GPU kernels of the embedding ops. Handles of variables, and what the kernels read, are on the host.
#if LARGEOUT_CUDA
#include "common/op/tf_gpu_op.h"
#include "embedding/cuda/embedding_plan.h"
#include "embedding/op/embedding_kernel_op.h"

namespace largeout {
namespace {

#define LARGEOUT_HOST(input) .HostMemory(input)
LARGEOUT_EMBEDDING("EmbeddingLookup", DEVICE_GPU, EmbeddingLookupOp, EmbeddingGpu, LARGEOUT_HOST("table"));
LARGEOUT_EMBEDDING("EmbeddingGrad", DEVICE_GPU, EmbeddingGradOp, EmbeddingGpu, LARGEOUT_HOST("num_rows"));
LARGEOUT_EMBEDDING("EmbeddingWeightsGrad", DEVICE_GPU, EmbeddingWeightsGradOp, EmbeddingGpu,
                   LARGEOUT_HOST("table"));
LARGEOUT_EMBEDDING("EmbeddingCombine", DEVICE_GPU, EmbeddingLookupOp, EmbeddingGpu, );
LARGEOUT_EMBEDDING("EmbeddingCombineGrad", DEVICE_GPU, EmbeddingCombineGradOp, EmbeddingGpu,
                   LARGEOUT_HOST("num_rows"));
LARGEOUT_EMBEDDING("EmbeddingCombineWeightsGrad", DEVICE_GPU, EmbeddingWeightsGradOp, EmbeddingGpu, );
#undef LARGEOUT_HOST

}  // namespace
}  // namespace largeout
#endif  // LARGEOUT_CUDA
