// The CPU kernels of RowUpdate.
#include "row_update/op/row_update_kernel_op.h"
#include "row_update/row_update.h"

namespace largeout {
namespace {

LARGEOUT_ROW_UPDATE_TYPES(DEVICE_CPU, RowUpdateCpu, );

}  // namespace
}  // namespace largeout
