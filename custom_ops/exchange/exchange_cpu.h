// PartitionIds on a CPU, as its op and its tests call it. ExchangeGpu (cuda/exchange_gpu.h) has the same
// methods.
#ifndef LARGEOUT_EXCHANGE_EXCHANGE_CPU_H_
#define LARGEOUT_EXCHANGE_EXCHANGE_CPU_H_

#include "common/scratch.h"
#include "embedding/embedding.h"
#include "exchange/exchange.h"

namespace largeout {

class ExchangeCpu {
 public:
  using Call = CpuCall;
  explicit ExchangeCpu(const CpuCall& call) : call_(call) {}

  // placement.offsets and cuts [shards + 2] are in host memory, also for GPUs. With check_ids an id outside
  // [0, rows) is a fault; otherwise it is left out. Where there is a fault, nothing else may be called.
  template <typename Id>
  int Plan(const PlacementView& placement, const Id* ids, int64_t n, bool check_ids, int64_t* cuts,
           PartitionFault* fault) {
    placement_ = placement, n_ = n, cuts_ = cuts;
    *fault = {};
    fault->hot = FirstBadHot(placement.hot, placement.num_hot, placement.rows);
    if (fault->hot >= 0) {
      fault->row = placement.hot[fault->hot];
      return 0;
    }
    if (check_ids) fault->id = FirstBadId(ids, n, placement.rows);
    if (fault->id >= 0) {
      fault->row = ids[fault->id];
      return 0;
    }
    fault->position = GroupByPosition(placement, ids, n, call_.parallel, &groups_);
    if (fault->position >= 0) {
      fault->row = ids[fault->position];
      fault->value = placement.position_of[fault->row];
    }
    return 0;
  }

  int64_t num_unique() const { return static_cast<int64_t>(groups_.unique.size()); }

  // unique, local [num_unique()], inverse [n], and the cuts of Plan.
  int Write(int64_t* unique, int64_t* local, int32_t* inverse) {
    WritePartition(placement_, groups_, n_, unique, local, inverse, cuts_, call_.parallel);
    return 0;
  }

 private:
  const CpuCall call_;
  PlacementView placement_ = {};
  int64_t n_ = 0;
  int64_t* cuts_ = nullptr;
  Groups groups_;
};

}  // namespace largeout

#endif  // LARGEOUT_EXCHANGE_EXCHANGE_CPU_H_
