// Records on a CPU, as their ops and tests call them. There is no RecordsGpu: the memory of files is that of
// the host.
#ifndef LARGEOUT_ROW_UPDATE_RECORDS_CPU_H_
#define LARGEOUT_ROW_UPDATE_RECORDS_CPU_H_

#include "common/scratch.h"
#include "row_update/records.h"

namespace largeout {

class RecordsCpu {
 public:
  using Call = CpuCall;
  explicit RecordsCpu(const CpuCall& call) : call_(call) {}

  // As RecordUpdate.
  template <typename T, typename G, typename Id>
  int Update(UpdateRule rule, float* records, int64_t rows, int64_t words, int64_t dim, const Id* indices,
             int64_t n, const G* values, const float* hyper, BadIndex* bad) {
    bad->position =
        RecordUpdate<T>(rule, records, rows, words, dim, indices, n, values, hyper, call_.parallel);
    bad->index = bad->position < 0 ? 0 : indices[bad->position];
    return 0;
  }

  // As WriteRecords.
  template <typename Id>
  int Write(float* records, int64_t rows, int64_t words, const Id* indices, int64_t n, const float* contents,
            BadIndex* bad) {
    bad->position = WriteRecords(records, rows, words, indices, n, contents, call_.parallel);
    bad->index = bad->position < 0 ? 0 : indices[bad->position];
    return 0;
  }

  // As GatherRecords.
  template <typename Id>
  int Gather(const RecordLayout& layout, const float* records, int64_t rows, int64_t words, const Id* indices,
             int64_t n, void* out, bool* written, uint64_t* checked, int64_t* damaged, BadIndex* bad) {
    bad->position =
        GatherRecords(layout, records, rows, words, indices, n, out, written, checked, damaged, call_.parallel);
    bad->index = bad->position < 0 ? 0 : indices[bad->position];
    return 0;
  }

 private:
  const CpuCall call_;
};

}  // namespace largeout

#endif  // LARGEOUT_ROW_UPDATE_RECORDS_CPU_H_
