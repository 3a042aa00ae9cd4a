// The logits of a wide node for some vectors at a time, and what is left of them for their logsumexp. T: the
// type of rows, H: of the vectors.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_LOGITS_CUH_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_LOGITS_CUH_

#include "common/cuda/gemm/multiply.cuh"
#include "common/cuda/gemm/softmax_terms.cuh"
#include "tree_softmax/cuda/tree_softmax_work.cuh"

namespace largeout {

template <typename T, typename H>
constexpr int kLogitBytes = kTilesBytes<FactorType<T, H>, true, true, RowOperand<H>, TableOperand<T, H>>;

// `count` vectors of hidden, through an index or the first ones, and all children of a node.
template <typename T, typename H>
struct NodeLogits {
  using LargeM = typename Tiles<FactorType<T, H>>::LargeM;
  using SmallM = typename Tiles<FactorType<T, H>>::SmallM;
  const H* hidden;
  const int32_t* index;  // or null
  const T* rows;         // of the node
  const float* bias;     // of its rows, or null
  int64_t dim;
  int count, children;
  bool tf32;  // GpuCall::tf32

  // Those of the children from `child` on.
  template <class Shape>
  __device__ __forceinline__ void Multiply(int child, const CopiedRows& copied, char* shared,
                                           float (&acc)[Shape::kTM][Shape::kTN]) const {
    const int depth = static_cast<int>(dim);
    const RowOperand<H> a{hidden, dim, index, count, depth, copied.hidden};
    const TableOperand<T, H> b{rows + child * dim, dim, nullptr, children - child, depth, copied.table};
    MultiplyTile<Shape, true, true>(a, b, 0, depth, tf32, shared, acc, NothingEachK());
    if (bias == nullptr) return;
#pragma unroll
    for (int j = 0; j < Shape::kTN; ++j) {
      const int c = child + Shape::Column(j);
      const float add = c < children ? bias[c] : 0.f;
#pragma unroll
      for (int i = 0; i < Shape::kTM; ++i) acc[i][j] += add;
    }
  }

  // Floats of shared memory that TermsOfTiles needs for the rows of the block.
  static constexpr int kTerms = std::max(TileTotals<LargeM>::kFloats, TileTotals<SmallM>::kFloats);

  // Goes through tiles [begin, end) of the children. high, total [count]: of their logits. target(t): a
  // child, whose logit goes to picked[t], or -1. logits [count, children]: all of them, unless it is null.
  template <class Shape, typename Target>
  __device__ __forceinline__ void TermsOfTiles(int64_t begin, int64_t end, const CopiedRows& copied,
                                               const Target& target, float* picked, float* logits,
                                               float* high, float* total, char* shared, float* terms) const {
    const TileTotals<Shape> totals{terms};
    for (int64_t tile = begin; tile < end; ++tile) {
      const int child = static_cast<int>(tile * kTileColumns);
      float acc[Shape::kTM][Shape::kTN] = {};
      Multiply<Shape>(child, copied, shared, acc);
#pragma unroll
      for (int i = 0; i < Shape::kTM; ++i) {
        const int t = Shape::Row(i);
        const bool exists = t < count;
        const int at = exists ? target(t) - child : -1;
        float* out =
            logits == nullptr || !exists ? nullptr : logits + static_cast<int64_t>(t) * children + child;
#pragma unroll
        for (int j = 0; j < Shape::kTN; ++j) {
          const int column = Shape::Column(j);
          if (child + column >= children) {
            acc[i][j] = -INFINITY;
            continue;
          }
          if (column == at) picked[t] = acc[i][j];
          if (out != nullptr) out[column] = acc[i][j];
        }
      }
      totals.Add(acc, tile == begin);
    }
    __syncthreads();
    const int t = threadIdx.x;
    if (t >= Shape::kM || t >= count) return;
    const SoftmaxTotal row = totals.Join(t);
    high[t] = row.high, total[t] = row.total;
  }
};

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_LOGITS_CUH_
