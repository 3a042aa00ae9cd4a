// The products of wide nodes in bfloat16, on packed panels (gemm/gemm.h). Internal to the family.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_PRODUCTS_H_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_PRODUCTS_H_

#include <algorithm>
#include <type_traits>

#include "gemm/gemm.h"
#include "tree_softmax/tree_softmax.h"

namespace largeout {

// What one thread needs for them.
struct ProductScratch {
  Buffer<float> left, panels, hidden, hidden_panels, words;
};

template <typename T>
class TreeProducts {
 public:
  explicit TreeProducts(const TreeTable<T>& table)
      : gemm_(table.in_bfloat16 ? Bfloat16Products() : nullptr), dim_(table.dim) {}

  // Whether all products of a group of so many pairs and children are in bfloat16.
  bool Has(int64_t pairs, int64_t children) const {
    return gemm_ != nullptr && dim_ > 0 && ArePacked(pairs, children);
  }

  // As TreeDotKernels::dots.
  void Dots(const float* hidden, const int32_t* tokens, int64_t m, const T* rows, int64_t n,
            const float* bias, float* out, int64_t ld, ProductScratch* scratch) const {
    const int64_t words = gemm_->Words(dim_), left_ld = OddLines(words);
    float* left = Aligned(&scratch->left, m * left_ld);
    for (int64_t i = 0; i < m; ++i)
      gemm_->left(hidden + tokens[i] * dim_, dim_, 1, dim_, left + i * left_ld, left_ld);
    const int64_t block = std::max<int64_t>(1, kPanelWords / words / gemm_->width) * gemm_->width;
    float* panels = Aligned(&scratch->panels, RoundUp(std::min(n, block), gemm_->width) * words);
    for (int64_t j = 0; j < n; j += block) {
      const int64_t width = std::min(block, n - j);
      if constexpr (std::is_same<T, float>::value) {
        gemm_->pack_transposed(rows + j * dim_, dim_, width, dim_, panels);
      } else {
        gemm_->pack_transposed_bfloat16(rows + j * dim_, dim_, width, dim_, panels);
      }
      gemm_->multiply(m, width, words, left, left_ld, 1, panels, bias != nullptr ? bias + j : nullptr,
                      out + j, ld, false);
    }
  }

  // sums [m, dim] (+)= gradient [m, n] x rows [n, dim]. `add`: to what sums holds; otherwise it is not read.
  void ToHidden(const float* gradient, int64_t m, const T* rows, int64_t n, bool add, float* sums,
                ProductScratch* scratch) const {
    const LeftMatrix left = LeftOf(*gemm_, gradient, n, m, n, &scratch->words);
    float* panels = Aligned(&scratch->panels, gemm_->Words(n) * RoundUp(dim_, gemm_->width));
    if constexpr (std::is_same<T, float>::value) {
      gemm_->pack(rows, dim_, n, dim_, panels);
    } else {
      gemm_->pack_bfloat16(rows, dim_, n, dim_, panels);
    }
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
  // Of rows: with the logits they stay in the second-level cache.
  static constexpr int64_t kPanelWords = 48 << 10;

  const GemmKernels* const gemm_;
  const int64_t dim_;
};

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_PRODUCTS_H_
