// The products of a group: logits, and those of wide nodes in bfloat16, on packed panels (gemm/gemm.h).
// Internal to the family.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_PRODUCTS_H_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_PRODUCTS_H_

#include <algorithm>

#include "gemm/gemm.h"
#include "tree_softmax/tree_softmax.h"
#include "tree_softmax/tree_softmax_kernels.h"

namespace largeout {

// One thread's memory for them.
struct ProductScratch {
  Buffer<float> left, panels, hidden, hidden_panels, words;
};

template <typename T>
class TreeProducts {
 public:
  TreeProducts(const TreeTable<T>& table, const TreeDotKernels<T>& dot)
      : gemm_(table.in_bfloat16 ? Bfloat16Products() : nullptr), dot_(dot), table_(table), dim_(table.dim) {}

  // Whether all products of a group of so many pairs and children are in bfloat16.
  bool Has(int64_t pairs, int64_t children) const {
    return gemm_ != nullptr && dim_ > 0 && ArePacked(pairs, children);
  }

  // out[i * ld + j] = the logit of token tokens[i] and row first + j, for i < m, j < n, which are of one
  // group; packed: where Has says so of the group.
  void Logits(bool packed, const float* hidden, const int32_t* tokens, int64_t m, int64_t first, int64_t n,
              float* out, int64_t ld, ProductScratch* scratch) const {
    const T* rows = table_.rows + first * dim_;
    const float* bias = table_.bias != nullptr ? table_.bias + first : nullptr;
    if (packed) {
      PackedLogits(hidden, tokens, m, rows, n, bias, out, ld, scratch);
    } else {
      dot_.dots(hidden, tokens, m, rows, n, dim_, bias, out, ld);
    }
  }

  // sums [m, dim] (+)= gradient [m, n] x rows [n, dim]. `add`: to what sums holds; otherwise it is not read.
  void ToHidden(const float* gradient, int64_t m, const T* rows, int64_t n, bool add, float* sums,
                ProductScratch* scratch) const {
    const LeftMatrix left = LeftOf(*gemm_, gradient, n, m, n, &scratch->words);
    float* panels = Aligned(&scratch->panels, gemm_->Words(n) * RoundUp(dim_, gemm_->width));
    Pack(*gemm_, rows, dim_, n, dim_, panels);
    gemm_->multiply(m, dim_, gemm_->Words(n), left.data, left.row, left.k, panels, nullptr, sums, dim_, add);
  }

  // Columns [column, column + columns) of the tokens' hidden vectors, for ToRows.
  const float* PackHidden(const float* hidden, const int32_t* tokens, int64_t m, int64_t column,
                          int64_t columns, ProductScratch* scratch) const {
    float* rows = scratch->hidden.Get(m * columns);
    for (int64_t i = 0; i < m; ++i)
      std::copy_n(hidden + tokens[i] * dim_ + column, columns, rows + i * columns);
    float* panels = Aligned(&scratch->hidden_panels, gemm_->Words(m) * RoundUp(columns, gemm_->width));
    gemm_->pack(rows, columns, m, columns, panels);
    return panels;
  }

  // sums [n, columns] (+)= the transposed gradient [m, n] x what PackHidden has packed.
  void ToRows(const float* gradient, int64_t m, int64_t n, const float* panels, int64_t columns, bool add,
              float* sums, ProductScratch* scratch) const {
    const LeftMatrix left = TransposedOf(*gemm_, gradient, n, m, n, &scratch->words);
    gemm_->multiply(n, columns, gemm_->Words(m), left.data, left.row, left.k, panels, nullptr, sums, columns,
                    add);
  }

 private:
  // As TreeDotKernels::dots.
  void PackedLogits(const float* hidden, const int32_t* tokens, int64_t m, const T* rows, int64_t n,
                    const float* bias, float* out, int64_t ld, ProductScratch* scratch) const {
    const int64_t words = gemm_->Words(dim_), left_ld = OddLines(words);
    float* left = Aligned(&scratch->left, m * left_ld);
    for (int64_t i = 0; i < m; ++i)
      gemm_->left(hidden + tokens[i] * dim_, dim_, 1, dim_, left + i * left_ld, left_ld);
    const int64_t block = std::max<int64_t>(1, kPanelWords / words / gemm_->width) * gemm_->width;
    float* panels = Aligned(&scratch->panels, RoundUp(std::min(n, block), gemm_->width) * words);
    for (int64_t j = 0; j < n; j += block) {
      const int64_t width = std::min(block, n - j);
      PackTransposed(*gemm_, rows + j * dim_, dim_, width, dim_, panels);
      gemm_->multiply(m, width, words, left, left_ld, 1, panels, bias != nullptr ? bias + j : nullptr,
                      out + j, ld, false);
    }
  }

  // Of rows: with the logits they stay in the second-level cache.
  static constexpr int64_t kPanelWords = 48 << 10;

  const GemmKernels* const gemm_;
  const TreeDotKernels<T>& dot_;
  const TreeTable<T> table_;
  const int64_t dim_;
};

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_PRODUCTS_H_
