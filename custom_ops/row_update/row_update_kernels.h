// Private to row_update: what row_update.cc hands to the loops of row_update_simd.cc.
#ifndef LARGEOUT_ROW_UPDATE_ROW_UPDATE_KERNELS_H_
#define LARGEOUT_ROW_UPDATE_ROW_UPDATE_KERNELS_H_

#include <cstdint>

#include "common/isa.h"
#include "row_update/row_update.h"

namespace largeout {

struct RowUpdateTask {
  void* table;  // T [rows, dim], `strides.table` elements from row to row; its slots likewise
  float* slots[kMaxSlots];
  const void* values;  // G [n, dim]
  const float* hyper;
  const int64_t* rounding;  // as in StepNumbers
  int64_t dim;
  RowStrides strides;
  const int64_t* rows;  // [count] the rows to update, each once
  int64_t known;        // rows[.. known) are asked for ahead of their update, beyond those of a call; 0: those alone
  // The gradients of rows[i] are values[order[starts[i] .. starts[i+1])]; null: just values[i].
  const int64_t* starts;
  const int32_t* order;
};

// Updates rows[begin .. end). scratch: [dim], used where gradients are summed.
using UpdateRowsFunction = void (*)(const RowUpdateTask& task, int64_t begin, int64_t end, float* scratch);

struct RowUpdateKernels {
  UpdateRowsFunction update[kUpdateRules][3]
                           [2];  // rule, T, G; 0: float, 1: bfloat16, 2: rounded stochastically
};

LARGEOUT_DECLARE_LEVELS(RowUpdateKernels, kRowUpdateKernels)

}  // namespace largeout

#endif  // LARGEOUT_ROW_UPDATE_ROW_UPDATE_KERNELS_H_
