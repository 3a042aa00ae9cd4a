// The random bits by which rows of bfloat16 are rounded stochastically: row_update.h says of what they are a
// function. For CPUs and GPUs.
#ifndef LARGEOUT_ROW_UPDATE_ROW_ROUNDING_H_
#define LARGEOUT_ROW_UPDATE_ROW_ROUNDING_H_

#include "common/random.h"
#include "row_update/row_update.h"

namespace largeout {
namespace {  // each instruction-set level keeps its own copy, see cmake/check_isa_symbols.cmake

// rounding: [kRoundingNumbers].
struct RowRounding {
  LARGEOUT_HOST_DEVICE inline explicit RowRounding(const int64_t* rounding)
      : key(RandomKey(rounding[kSeed], rounding[kStep])),
        multiplier(static_cast<uint64_t>(rounding[kRowMultiplier])),
        addend(static_cast<uint64_t>(rounding[kRowAddend])),
        modulus(static_cast<uint64_t>(rounding[kRowModulus])),
        first_column(static_cast<uint32_t>(rounding[kFirstColumn])) {}

  // Column c of a row of the table draws RandomBits(OfRow(row), c): those of c + first column of the folded
  // key.
  LARGEOUT_HOST_DEVICE inline uint32_t OfRow(int64_t row) const {
    const uint64_t number = static_cast<uint64_t>(row) * multiplier + addend;
    return FoldKey(key, modulus == 0 ? number : number % modulus) + first_column * kGamma32;
  }

  uint64_t key, multiplier, addend, modulus;
  uint32_t first_column;
};

}  // namespace
}  // namespace largeout

#endif  // LARGEOUT_ROW_UPDATE_ROW_ROUNDING_H_
