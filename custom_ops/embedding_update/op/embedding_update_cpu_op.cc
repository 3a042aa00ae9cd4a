// The CPU kernels of EmbeddingUpdate.
#include "embedding_update/embedding_update.h"
#include "embedding_update/op/embedding_update_kernel_op.h"

namespace largeout {
namespace {

LARGEOUT_EMBEDDING("EmbeddingUpdate", DEVICE_CPU, EmbeddingUpdateOp, EmbeddingUpdateCpu, );

}  // namespace
}  // namespace largeout
