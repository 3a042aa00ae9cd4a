// Top-k at a wide root, which every query needs: its logits for a block of queries at a time, by the products
// of wide nodes, and of each query what its logsumexp needs.
//
// Bounds, for q queries and a root of c children: 2 q c dim flops; the root's rows once from memory for each
// block of queries, c dim elements, and 8 q c bytes of logits, written and read.
#include "common/cuda/launch.cuh"
#include "tree_softmax/cuda/tree_softmax_logits.cuh"
#include "tree_softmax/cuda/tree_softmax_root.cuh"

namespace largeout {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    RootTiles(NodeLogits<T, float> root, RootLogits out, float* high, float* total, CopiedRows copied) {
  using Logits = NodeLogits<T, float>;
  __shared__ float terms[Logits::kTerms];
  const int64_t slices = CeilDiv(out.count, kTileRows), slice = blockIdx.x % slices,
                range = blockIdx.x / slices;
  const int64_t each = RangeTiles(out.count, out.children, 1), begin = range * each;
  const int64_t end = min(begin + each, CeilDiv(out.children, kTileColumns));
  const int64_t first = slice * kTileRows, at = range * out.count + first;
  root.hidden += first * root.dim;
  root.count = static_cast<int>(min(out.count - first, int64_t{kTileRows}));
  const auto no_target = [](int) { return -1; };
  float* logits = out.logits + first * out.children;
  if (root.count > kSmallM) {
    root.template TermsOfTiles<typename Logits::LargeM>(begin, end, copied, no_target, nullptr, logits,
                                                        high + at, total + at, DynamicShared<char>(), terms);
  } else {
    root.template TermsOfTiles<typename Logits::SmallM>(begin, end, copied, no_target, nullptr, logits,
                                                        high + at, total + at, DynamicShared<char>(), terms);
  }
}

// A thread a query.
__global__ void JoinRootTerms(const float* high, const float* total, int64_t ranges, RootLogits out) {
  const int64_t q = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (q >= out.count) return;
  const JoinedTotal all = JoinTotals(high + q, total + q, ranges, out.count);
  out.top[q] = static_cast<float>(all.top), out.log_total[q] = static_cast<float>(all.log_total);
}

}  // namespace

template <typename T>
int RootPlan<T>::Reserve(int64_t queries, int64_t size, Scratch* scratch) {
  children = size;
  most = std::min(queries, std::max<int64_t>(1, TreeTuning::kRootLogits / size));
  if (most > kTileRows) most = most / kTileRows * kTileRows;
  // RangeTiles leaves the longest ranges, or so many that there are no more than kLogitBlocks blocks.
  const int64_t tiles = CeilDiv(size, kTileColumns);
  const int64_t terms = std::max(std::min(most * tiles, kTileRows * TreeTuning::kLogitBlocks),
                                 most * CeilDiv(tiles, kMostRangeTiles));
  logits = {scratch->Take<float>(most * size), scratch->Take<float>(most), scratch->Take<float>(most), most,
            size};
  high = scratch->Take<float>(terms), total = scratch->Take<float>(terms);
  return logits.logits == nullptr || logits.top == nullptr || logits.log_total == nullptr ||
                 high == nullptr || total == nullptr
             ? kNoMemory
             : 0;
}

template <typename T>
int RootPlan<T>::Compute(const TreeTable<T>& table, const float* hidden, int64_t count, const GpuCall& call) {
  const GpuStream stream = call.stream;
  logits.count = count;
  const NodeLogits<T, float> root{
      hidden, nullptr, table.rows, table.bias, table.dim, 0, static_cast<int>(children), call.tf32};
  const int64_t ranges = CeilDiv(CeilDiv(children, kTileColumns), RangeTiles(count, children, 1));
  LARGEOUT_RETURN_IF_ERROR(Launch(RootTiles<T>, static_cast<unsigned>(CeilDiv(count, kTileRows) * ranges),
                                  kTileThreads, kLogitBytes<T, float>, stream, root, logits, high, total,
                                  CopiedRows::Of(table.dim, hidden, table.rows)));
  return Launch(JoinRootTerms, static_cast<unsigned>(CeilDiv(count, kThreads)), kThreads, 0, stream, high,
                total, ranges, logits);
}

template struct RootPlan<float>;
template struct RootPlan<bfloat16>;

}  // namespace largeout
