// The GPU kernels of RowUpdate. Handles of variables are on the host.
#if LARGEOUT_CUDA
#include "common/op/tf_gpu_op.h"
#include "row_update/op/row_update_kernel_op.h"
#include "row_update/row_update.h"

namespace largeout {
namespace {

#define LARGEOUT_HANDLES .HostMemory("variable").HostMemory("slots")
LARGEOUT_ROW_UPDATE_TYPES(DEVICE_GPU, RowUpdateGpu, LARGEOUT_HANDLES);
#undef LARGEOUT_HANDLES

}  // namespace
}  // namespace largeout
#endif  // LARGEOUT_CUDA
