// The CUDA twin of row_update.h: the same rules on device memory. One group of up to 32 threads updates a
// row; a row's gradients are summed in order of occurrence, so every run gives the same bits.
#ifndef LARGEOUT_ROW_UPDATE_ROW_UPDATE_CUDA_H_
#define LARGEOUT_ROW_UPDATE_ROW_UPDATE_CUDA_H_

#include <cstddef>

#include "common/bfloat16.h"
#include "common/cuda/cuda.h"
#include "row_update/row_update.h"

namespace largeout {

// Bytes of device memory that RowUpdateCuda needs for n indices of id_size bytes; *error is a CUDA error.
size_t RowUpdateWorkspaceCuda(int64_t n, int id_size, int* error);

// As RowUpdate; all pointers but `slots` itself are device pointers, `hyper` included. Returns a CUDA error.
//
// Waits for the stream once, after looking at the indices and before anything is written: an index outside
// the table must be known on the host. Gradients of this package just had to be counted there, so the stream
// is nearly empty then. If *bad holds a position on return, nothing was changed.
template <typename T, typename G, typename Id>
int RowUpdateCuda(UpdateRule rule, T* table, int64_t rows, int64_t dim, float* const* slots,
                  const Id* indices, int64_t n, const G* values, const float* hyper, void* workspace,
                  size_t workspace_bytes, GpuStream stream, BadIndex* bad);

}  // namespace largeout

#endif  // LARGEOUT_ROW_UPDATE_ROW_UPDATE_CUDA_H_
