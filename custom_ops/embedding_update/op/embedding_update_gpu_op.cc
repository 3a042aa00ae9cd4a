// The GPU kernels of EmbeddingUpdate. Handles of variables are on the host.
#if LARGEOUT_CUDA
#include "common/op/tf_gpu_op.h"
#include "embedding/cuda/embedding_plan.h"
#include "embedding_update/embedding_update.h"
#include "embedding_update/op/embedding_update_kernel_op.h"

namespace largeout {
namespace {

#define LARGEOUT_HANDLES .HostMemory("variable").HostMemory("slots")
LARGEOUT_EMBEDDING("EmbeddingUpdate", DEVICE_GPU, EmbeddingUpdateOp, EmbeddingUpdateGpu, LARGEOUT_HANDLES);
#undef LARGEOUT_HANDLES

}  // namespace
}  // namespace largeout
#endif  // LARGEOUT_CUDA
