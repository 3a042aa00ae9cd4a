// Private to row_update: what records.cc and row_update.cc call of records_simd.cc.
#ifndef LARGEOUT_ROW_UPDATE_RECORDS_KERNELS_H_
#define LARGEOUT_ROW_UPDATE_RECORDS_KERNELS_H_

#include <cstdint>

#include "common/isa.h"

namespace largeout {

struct RecordKernels {
  // As RecordMark.
  uint32_t (*mark)(const float* record, int64_t words, int64_t row);
  // Gives the records rows[0 .. n) whose marks are set the marks of what they are now.
  void (*mark_again)(float* records, int64_t words, const int64_t* rows, int64_t n);
};

LARGEOUT_DECLARE_LEVELS(RecordKernels, kRecordKernels)

}  // namespace largeout

#endif  // LARGEOUT_ROW_UPDATE_RECORDS_KERNELS_H_
