// The CUDA twin of row_update.h: the same rules on device memory. One group of up to 32 threads updates a
// row; a row's gradients are summed in an order that depends on the indices alone, so every run gives the same
// bits.
#ifndef LARGEOUT_ROW_UPDATE_ROW_UPDATE_CUDA_H_
#define LARGEOUT_ROW_UPDATE_ROW_UPDATE_CUDA_H_

#include "common/bfloat16.h"
#include "common/cuda/cuda.h"
#include "row_update/row_update.h"

namespace largeout {

// As RowUpdate; all pointers but `slots` itself are device pointers, `hyper` included. Returns a CUDA error.
//
// Waits for the stream after looking at the indices and before anything is written: an index outside the
// table must be known on the host. Gradients of this package just had to be counted there, so the stream is
// nearly empty then. If *bad holds a position on return, nothing was changed. Indices that do not strictly
// increase cost a sort and a second wait. Where one of them occurs more than 128 times, gradients are summed
// first, that row's by many blocks (embedding_cuda.h): [different rows, dim] floats of scratch memory.
template <typename T, typename G, typename Id>
int RowUpdateCuda(UpdateRule rule, T* table, int64_t rows, int64_t dim, float* const* slots,
                  const Id* indices, int64_t n, const G* values, const float* hyper, Scratch* scratch,
                  GpuStream stream, BadIndex* bad);

}  // namespace largeout

#endif  // LARGEOUT_ROW_UPDATE_ROW_UPDATE_CUDA_H_
