// The classes in blocks. Their rows are packed for the two products with them, block by block.
#ifndef LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_BLOCKS_H_
#define LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_BLOCKS_H_

#include <algorithm>

#include "full_softmax/full_softmax.h"
#include "gemm/gemm.h"

namespace largeout {

// One thread's memory for one block.
struct BlockScratch {
  Buffer<float> columns, rows, logits, sums, words, turned;
};

template <typename T>
class SoftmaxBlocks {
 public:
  static constexpr int64_t kRanges = 16;

  SoftmaxBlocks(const SoftmaxRows<T>& table, const GemmKernels& gemm)
      : size(SizeFor(table.dim)),
        count((table.classes + size - 1) / size),
        ranges(std::min(kRanges, count)),
        table_(table),
        gemm_(gemm) {}

  int32_t first(int64_t block) const { return static_cast<int32_t>(block * size); }
  int64_t width(int64_t block) const { return std::min(size, table_.classes - block * size); }
  const float* bias(int64_t block) const {
    return table_.bias != nullptr ? table_.bias + first(block) : nullptr;
  }
  // Blocks of range r: [first_of_range(r), first_of_range(r + 1)).
  int64_t first_of_range(int64_t range) const { return count * range / std::max<int64_t>(1, ranges); }

  // A block's rows as the columns that hidden vectors are multiplied with.
  const float* PackColumns(int64_t block, BlockScratch* scratch) const {
    float* out = Aligned(&scratch->columns, RoundUp(size, gemm_.width) * gemm_.Words(table_.dim));
    PackTransposed(gemm_, rows(block), table_.dim, width(block), table_.dim, out);
    return out;
  }

  // A block's rows as they are, which gradients of logits are multiplied with.
  const float* PackRows(int64_t block, BlockScratch* scratch) const {
    float* out = Aligned(&scratch->rows, gemm_.Words(size) * RoundUp(table_.dim, gemm_.width));
    Pack(gemm_, rows(block), table_.dim, width(block), table_.dim, out);
    return out;
  }

  const int64_t size, count, ranges;

 private:
  // A block's packed rows and its logits stay in the second-level cache.
  static int64_t SizeFor(int64_t dim) {
    constexpr int64_t kPanelFloats = 96 << 10;
    return OddLines(std::min<int64_t>(512, std::max<int64_t>(48, kPanelFloats / std::max<int64_t>(1, dim))));
  }

  const T* rows(int64_t block) const { return table_.rows + first(block) * table_.dim; }

  const SoftmaxRows<T> table_;
  const GemmKernels& gemm_;
};

}  // namespace largeout

#endif  // LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_BLOCKS_H_
