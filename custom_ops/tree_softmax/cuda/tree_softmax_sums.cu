// Row gradients that several slices or splits have a part of: the sums of the parts.
#include "common/cuda/launch.cuh"
#include "tree_softmax/cuda/tree_softmax_work.cuh"

namespace largeout {
namespace {

constexpr int kSumWarps = 8, kSumUnits = 2, kSumWidth = kSumWarps / kSumUnits * 32;

// The sum of parts [begin, end) of an element of a row; element dim is the bias. first: the row's first part.
template <typename T>
__device__ __forceinline__ float AddParts(const TreeGradOutputs<T>& out, int64_t first, int64_t children,
                                          int64_t begin, int64_t end, int64_t dim, int64_t k) {
  float sum = 0.f;
  if (k < dim) {
    const float* p = out.partials + first * dim + k;
#pragma unroll 8
    for (int64_t i = begin; i < end; ++i) sum += p[i * children * dim];
  } else if (k == dim && out.bias_grads != nullptr) {
    const float* p = out.bias_partials + first;
    for (int64_t i = begin; i < end; ++i) sum += p[i * children];
  }
  return sum;
}

// A unit is 128 elements of a row, and a block has two units at a time. If neither has more than one part,
// each warp sums 32 elements. Otherwise the warps share the parts of one unit, then of the other: each sums a
// run of parts, and the runs are added in their order.
template <typename T>
__global__ void __launch_bounds__(kSumWarps * 32)
    SumParts(TreeBatch<T> batch, const int32_t* sum_group, int64_t skipped, int64_t units,
             TreeGradOutputs<T> out) {
  __shared__ float sums[kSumWarps][kSumWidth];
  const int64_t dim = batch.table.dim, pieces = CeilDiv(dim + 1, kSumWidth);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  struct Unit {
    int64_t first, children, parts, row, k;  // the first part's row; the output's; the first element
  };
  const auto unit_at = [&](int64_t i) {
    const int64_t r = skipped + i / pieces;
    const int group = sum_group[r];
    const TreeOffsets &at = batch.offsets[group], &next = batch.offsets[group + 1];
    Unit u;
    u.children = next.rows - at.rows, u.parts = (next.partial_rows - at.partial_rows) / u.children;
    u.first = at.partial_rows + r - at.sum_rows, u.row = at.rows + r - at.sum_rows;
    u.k = i % pieces * kSumWidth;
    return u;
  };
  const auto write = [&](const Unit& u, int64_t k, float sum) {
    if (k < dim) GpuFromFloat(sum, out.row_grads + u.row * dim + k);
    if (k == dim && out.bias_grads != nullptr) out.bias_grads[u.row] = sum;
  };
  for (int64_t base = int64_t{blockIdx.x} * kSumUnits; base < units; base += int64_t{gridDim.x} * kSumUnits) {
    const int n = static_cast<int>(min(int64_t{kSumUnits}, units - base));
    const int mine = static_cast<int>(threadIdx.x) / kSumWidth;
    Unit own{};
    if (mine < n) own = unit_at(base + mine);
    if (__syncthreads_or(own.parts > 1) == 0) {
      const int64_t k = own.k + threadIdx.x % kSumWidth;
      if (mine < n) write(own, k, AddParts(out, own.first, own.children, 0, 1, dim, k));
      continue;
    }
    for (int i = 0; i < n; ++i) {
      const Unit u = unit_at(base + i);
      const int64_t each = CeilDiv(u.parts, kSumWarps), begin = min(u.parts, warp * each);
#pragma unroll
      for (int x = 0; x < kSumWidth; x += 32) {
        sums[warp][x + lane] =
            AddParts(out, u.first, u.children, begin, min(u.parts, begin + each), dim, u.k + x + lane);
      }
      __syncthreads();
      if (threadIdx.x < kSumWidth) {
        float sum = sums[0][threadIdx.x];
        for (int w = 1; w < kSumWarps; ++w) sum += sums[w][threadIdx.x];
        write(u, u.k + threadIdx.x, sum);
      }
      __syncthreads();  // before the sums are overwritten
    }
  }
}

}  // namespace

template <typename T>
int SumPartials(const TreeBatch<T>& batch, const TreeWork& work, const TreeGradOutputs<T>& out,
                GpuStream stream) {
  const int64_t rows = work.sum_rows - work.skipped.sum_rows;
  if (rows == 0) return 0;
  const int64_t units = rows * CeilDiv(batch.table.dim + 1, kSumWidth);
  return Launch(SumParts<T>, GridStrideBlocks(CeilDiv(units, kSumUnits), 132 * 64), kSumWarps * 32, 0, stream,
                batch, work.sum_group, work.skipped.sum_rows, units, out);
}

template int SumPartials<float>(const TreeBatch<float>&, const TreeWork&, const TreeGradOutputs<float>&,
                                GpuStream);
template int SumPartials<bfloat16>(const TreeBatch<bfloat16>&, const TreeWork&,
                                   const TreeGradOutputs<bfloat16>&, GpuStream);

}  // namespace largeout
