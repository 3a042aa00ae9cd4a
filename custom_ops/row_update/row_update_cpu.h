// RowUpdate on a CPU, as its op and its tests call it. RowUpdateGpu (cuda/row_update_gpu.h) has the same
// method.
#ifndef LARGEOUT_ROW_UPDATE_ROW_UPDATE_CPU_H_
#define LARGEOUT_ROW_UPDATE_ROW_UPDATE_CPU_H_

#include "common/scratch.h"
#include "row_update/row_update.h"

namespace largeout {

class RowUpdateCpu {
 public:
  using Call = CpuCall;
  explicit RowUpdateCpu(const CpuCall& call) : call_(call) {}

  // As RowUpdate. All pointers but `slots` itself are to memory of the device, `hyper` included. `increasing`: the
  // promise that indices increase strictly; a CPU looks for itself.
  template <typename T, typename G, typename Id>
  int Update(UpdateRule rule, T* table, int64_t rows, int64_t dim, float* const* slots, const Id* indices,
             int64_t n, const G* values, const float* hyper, BadIndex* bad, bool /*increasing*/ = false) {
    bad->position = RowUpdate(rule, table, rows, dim, slots, indices, n, values, hyper, call_.parallel);
    bad->index = bad->position < 0 ? 0 : indices[bad->position];
    return 0;
  }

 private:
  const CpuCall call_;
};

}  // namespace largeout

#endif  // LARGEOUT_ROW_UPDATE_ROW_UPDATE_CPU_H_
