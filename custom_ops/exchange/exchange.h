// Exchange: which rows a replica asks of which shard. CPU and GPU give the same numbers.
//
// A placement maps the rows of a table one-to-one to *positions*: positions below offsets[0] are hot rows,
// which every device has, and shard s has positions offsets[s] .. offsets[s + 1]. The ids of a batch become
// positions, each once, ascending: what a shard has to send is one contiguous run of them.
//
//   unique = sorted set of position(id)
//   inverse[i] = index of position(ids[i]) in unique; -1 for ids outside [0, rows)
//   cuts[0] = 0, cuts[s + 1] = first index with unique >= offsets[s]:
//     unique[0 .. cuts[1]) are hot, unique[cuts[s + 1] .. cuts[s + 2]) belong to shard s
//   local = unique - offsets[shard]; of a hot row: the position itself
//
// Speed is bound by the sort: about 16 bytes an id and pass, and a pass for every 8 to 12 bits that positions
// have. Nothing of the size of the table is read, written or allocated. The same bits for every number of
// threads.
//
//   ExchangeCpu device(call);                                      // or ExchangeGpu
//   device.Plan(placement, ids, n, /*check_ids=*/true, cuts, &fault);  // u = device.num_unique(): allocate
//   device.Write(unique, local, inverse);
#ifndef LARGEOUT_EXCHANGE_EXCHANGE_H_
#define LARGEOUT_EXCHANGE_EXCHANGE_H_

#include <cstdint>
#include <type_traits>

#include "common/scratch.h"
#include "common/sort.h"

namespace largeout {

// The position of a row that is not hot.
enum class PlacementKind {
  kIdentity,     // num_hot + row
  kModulo,       // offsets[row % shards] + row / shards
  kPermutation,  // num_hot + (row * multiplier + addend) % rows
  kExplicit,     // position_of[row], hot rows too
};

// Owns nothing.
struct PlacementView {
  PlacementKind kind;
  int64_t rows, shards;
  int64_t multiplier, addend;  // in [0, rows); rows <= 3e9 where they are read
  const int64_t* offsets;      // [shards + 1], never decreasing; offsets[0] >= 0
  const int64_t* position_of;  // [rows] where kind is kExplicit
  const int64_t* hot;  // [num_hot] ascending rows: hot[k] has position k. None where kind is kExplicit
  int64_t num_hot;
};

// The first thing wrong with a batch: an element of hot, else an id outside [0, rows), else an id whose position_of is
// outside [0, offsets[shards]). Its index, the others are -1.
struct PartitionFault {
  int64_t hot = -1, id = -1, position = -1;
  int64_t row = 0;    // hot[hot] or ids[id]; of a position: the id
  int64_t value = 0;  // of a position: position_of[row]
  bool any() const { return hot >= 0 || id >= 0 || position >= 0; }
};

// The first k at which hot [num_hot] is not ascending or outside [0, rows), or -1.
int64_t FirstBadHot(const int64_t* hot, int64_t num_hot, int64_t rows);

// What Plan leaves to Write: on a CPU,
struct PartitionPlan {
  PlacementView placement = {};
  int64_t n = 0;
  int64_t* cuts = nullptr;
  Groups groups;
  int64_t num_unique() const { return static_cast<int64_t>(groups.unique.size()); }
};
// and on a GPU, in scratch memory.
struct PartitionPlanCuda {
  int64_t n = 0, unique_count = 0, num_valid = 0, shards = 0;
  const int64_t *offsets = nullptr, *unique = nullptr;
  const int32_t *order = nullptr, *group = nullptr;
  int64_t num_unique() const { return unique_count; }
};

// C: CpuCall (exchange.cc) or GpuCall (cuda/exchange.cu). Methods return 0 or an error (common/scratch.h).
template <typename C>
class Exchange {
 public:
  using Call = C;
  explicit Exchange(const Call& call) : call_(call) {}

  // placement.offsets and cuts [shards + 2] are in host memory, also for GPUs. n < 2^31. With check_ids an id
  // outside [0, rows) is a fault; otherwise it is left out. Where there is a fault, no other method may be
  // called. A GPU waits for the stream once.
  template <typename Id>
  int Plan(const PlacementView& placement, const Id* ids, int64_t n, bool check_ids, int64_t* cuts,
           PartitionFault* fault);

  int64_t num_unique() const { return plan_.num_unique(); }

  // unique, local [num_unique()], inverse [n], and the cuts of Plan.
  int Write(int64_t* unique, int64_t* local, int32_t* inverse);

 private:
  const Call call_;
  std::conditional_t<std::is_same_v<C, CpuCall>, PartitionPlan, PartitionPlanCuda> plan_;
};

using ExchangeCpu = Exchange<CpuCall>;
using ExchangeGpu = Exchange<GpuCall>;

}  // namespace largeout

#endif  // LARGEOUT_EXCHANGE_EXCHANGE_H_
