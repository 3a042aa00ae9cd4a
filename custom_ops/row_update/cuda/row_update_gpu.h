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
             int64_t n, const G* values, const float* hyper, BadIndex* bad, bool increasing = false) {
    LateFinding found;
    if (call_.late != nullptr && call_.late->Take(&found)) {
      *bad = {found.position, found.value, /*late=*/true, found.rule == kIndicesIncrease, found.limit};
      return 0;
    }
    return RowUpdateCuda(rule, table, rows, dim, slots, indices, n, values, hyper, call_.scratch,
                         call_.stream, bad, increasing, call_.late);
  }

 private:
  const GpuCall call_;
};

}  // namespace largeout

#endif  // LARGEOUT_ROW_UPDATE_ROW_UPDATE_GPU_H_
