// The CPU kernels of the embedding ops.
#include "embedding/embedding.h"
#include "embedding/op/embedding_kernel_op.h"

namespace largeout {
namespace {

LARGEOUT_EMBEDDING("EmbeddingLookup", DEVICE_CPU, EmbeddingLookupOp, EmbeddingCpu, );
LARGEOUT_EMBEDDING("EmbeddingGrad", DEVICE_CPU, EmbeddingGradOp, EmbeddingCpu, );
LARGEOUT_EMBEDDING("EmbeddingWeightsGrad", DEVICE_CPU, EmbeddingWeightsGradOp, EmbeddingCpu, );
LARGEOUT_EMBEDDING("EmbeddingCombine", DEVICE_CPU, EmbeddingLookupOp, EmbeddingCpu, );
LARGEOUT_EMBEDDING("EmbeddingCombineGrad", DEVICE_CPU, EmbeddingCombineGradOp, EmbeddingCpu, );
LARGEOUT_EMBEDDING("EmbeddingCombineWeightsGrad", DEVICE_CPU, EmbeddingWeightsGradOp, EmbeddingCpu, );

}  // namespace
}  // namespace largeout
