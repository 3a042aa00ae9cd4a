// For the .cu files of row_update: how the values of a step are stored in a row.
#ifndef LARGEOUT_ROW_UPDATE_ROW_UPDATE_ROUNDING_CUH_
#define LARGEOUT_ROW_UPDATE_ROW_UPDATE_ROUNDING_CUH_

#include "common/cuda/cuda.h"
#include "row_update/row_rounding.h"

namespace largeout {
namespace gpu {

// Of one step. `rounding` is device memory, or null: to nearest.
template <typename T>
struct Rounding {
  __device__ __forceinline__ explicit Rounding(const int64_t*) {}
  __device__ __forceinline__ uint32_t OfRow(int64_t) const { return 0; }
  __device__ __forceinline__ void Store(float value, uint32_t, int64_t, T* to) const { *to = value; }
};

template <>
struct Rounding<bfloat16> {
  __device__ __forceinline__ explicit Rounding(const int64_t* rounding) : rounding(rounding) {}
  // The key of a row of the table, which Store takes for its columns.
  __device__ __forceinline__ uint32_t OfRow(int64_t row) const {
    return rounding == nullptr ? 0 : RowRounding(rounding).OfRow(row);
  }
  __device__ __forceinline__ void Store(float value, uint32_t of_row, int64_t column, bfloat16* to) const {
    if (rounding == nullptr) return GpuFromFloat(value, to);
    to->bits = RoundStochastically(__float_as_uint(value), RandomBits(of_row, static_cast<uint32_t>(column)));
  }
  const int64_t* rounding;
};

}  // namespace gpu
}  // namespace largeout

#endif  // LARGEOUT_ROW_UPDATE_ROW_UPDATE_ROUNDING_CUH_
