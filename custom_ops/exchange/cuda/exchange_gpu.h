// PartitionIds on a GPU: the methods of ExchangeCpu (exchange_cpu.h).
#ifndef LARGEOUT_EXCHANGE_EXCHANGE_GPU_H_
#define LARGEOUT_EXCHANGE_EXCHANGE_GPU_H_

#include "exchange/cuda/exchange_cuda.h"

namespace largeout {

class ExchangeGpu {
 public:
  using Call = GpuCall;
  explicit ExchangeGpu(const GpuCall& call) : call_(call) {}

  template <typename Id>
  int Plan(const PlacementView& placement, const Id* ids, int64_t n, bool check_ids, int64_t* cuts,
           PartitionFault* fault) {
    *fault = {};
    void* workspace = call_.scratch->Allocate(PartitionWorkspaceCuda(placement, n));
    if (workspace == nullptr) return kNoMemory;
    LARGEOUT_RETURN_IF_ERROR(
        PlanPartitionCuda(placement, ids, n, check_ids, workspace, call_.stream, cuts, &plan_));
    if (plan_.bad_hot >= 0) {
      fault->hot = plan_.bad_hot;
      return CopyToHostCuda(placement.hot + fault->hot, sizeof(fault->row), &fault->row, call_.stream);
    }
    if (plan_.bad_id < 0 && plan_.bad_position < 0) return 0;
    int64_t* at = plan_.bad_id >= 0 ? &fault->id : &fault->position;
    *at = plan_.bad_id >= 0 ? plan_.bad_id : plan_.bad_position;
    Id id;
    LARGEOUT_RETURN_IF_ERROR(CopyToHostCuda(ids + *at, sizeof(id), &id, call_.stream));
    fault->row = id;
    if (plan_.bad_id >= 0) return 0;
    return CopyToHostCuda(placement.position_of + id, sizeof(fault->value), &fault->value, call_.stream);
  }

  int64_t num_unique() const { return plan_.num_unique; }

  int Write(int64_t* unique, int64_t* local, int32_t* inverse) {
    return WritePartitionCuda(plan_, unique, local, inverse, call_.stream);
  }

 private:
  const GpuCall call_;
  PartitionPlanCuda plan_;
};

}  // namespace largeout

#endif  // LARGEOUT_EXCHANGE_EXCHANGE_GPU_H_
