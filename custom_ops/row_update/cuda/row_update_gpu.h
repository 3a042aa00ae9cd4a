// RowUpdate on a GPU: the method of RowUpdateCpu (row_update_cpu.h).
#ifndef LARGEOUT_ROW_UPDATE_ROW_UPDATE_GPU_H_
#define LARGEOUT_ROW_UPDATE_ROW_UPDATE_GPU_H_

#include "row_update/cuda/row_update_cuda.h"

namespace largeout {

class RowUpdateGpu {
 public:
  using Call = GpuCall;
  explicit RowUpdateGpu(const GpuCall& call) : call_(call) {}

  template <typename T, typename G, typename Id>
  int Update(UpdateRule rule, T* table, int64_t rows, int64_t dim, float* const* slots, const Id* indices,
             int64_t n, const G* values, const float* hyper, BadIndex* bad) {
    *bad = {};
    if (n == 0) return 0;
    int error = 0;
    const size_t bytes = RowUpdateWorkspaceCuda(n, sizeof(Id), &error);
    LARGEOUT_RETURN_IF_ERROR(error);
    void* workspace = call_.scratch->Allocate(static_cast<int64_t>(bytes));
    if (workspace == nullptr) return kNoMemory;
    return RowUpdateCuda(rule, table, rows, dim, slots, indices, n, values, hyper, workspace, bytes,
                         call_.stream, bad);
  }

 private:
  const GpuCall call_;
};

}  // namespace largeout

#endif  // LARGEOUT_ROW_UPDATE_ROW_UPDATE_GPU_H_
