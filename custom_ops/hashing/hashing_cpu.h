// Hashing on a CPU, as its ops and its tests call it. There is no HashingGpu: see hashing.h.
#ifndef LARGEOUT_HASHING_HASHING_CPU_H_
#define LARGEOUT_HASHING_HASHING_CPU_H_

#include "common/scratch.h"
#include "hashing/hashing.h"

namespace largeout {

class HashingCpu {
 public:
  using Call = CpuCall;
  explicit HashingCpu(const CpuCall& call) : call_(call) {}

  // As XxHash64.
  int Hash(const CategoryColumn& column, int64_t n, uint64_t seed, uint64_t* hashes) {
    XxHash64(column, n, seed, hashes, call_.parallel);
    return 0;
  }

  // As CategoryHash.
  int Categories(const CategoryColumn* columns, int64_t p, int64_t n, const CategoryRules& rules,
                 int64_t* ids) {
    CategoryHash(columns, p, n, rules, ids, call_.parallel);
    return 0;
  }

 private:
  const CpuCall call_;
};

}  // namespace largeout

#endif  // LARGEOUT_HASHING_HASHING_CPU_H_
