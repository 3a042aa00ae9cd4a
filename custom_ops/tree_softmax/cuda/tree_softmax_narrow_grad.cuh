// Private to the .cu files that have gradients of narrow nodes: warps that read the node's rows straight from
// the table.
//
// A warp takes slices (up to 64 pairs of a node) and 128 elements of the rows: eight rows and their gradients
// stay in registers while the tokens go by, so a row is read once and its gradient written once. Each lane
// reads the place of one such unit, as the forward pass does with pairs.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_NARROW_GRAD_CUH_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_NARROW_GRAD_CUH_

#include "common/cuda/launch.cuh"
#include "tree_softmax/cuda/tree_softmax_work.cuh"

namespace largeout {

constexpr int kNarrowWarps = 8;
constexpr int kUnits = 6;  // of a warp at a time

// A unit of work: a slice, and a part of the elements of its rows.
struct NarrowUnit {
  NarrowSlice slice;
  int64_t part;
};

// rows.Take(row, out_row, n, k, w, gradient): takes the gradients of up to eight rows, from `row` of the table and
// `out_row` of the output on (n: as many as are left), to which no other slice adds. w: their values, from column k on.
template <typename T, int kVec, typename Rows>
__global__ void __launch_bounds__(kNarrowWarps * 32, 2)
    NarrowGradients(TreeBatch<T> batch, const NarrowSlice* slices, const int32_t* level_start, int64_t level,
                    ProbChunk chunk, TreeGradOutputs<T> out, Rows rows) {
  __shared__ float all_grads[kNarrowWarps * kSlice * 8];
  __shared__ int all_tokens[kNarrowWarps * kSlice];
  __shared__ NarrowUnit all_units[kNarrowWarps * kUnits];
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  float* grads = all_grads + warp * kSlice * 8;  // [pair][child]
  int* tokens = all_tokens + warp * kSlice;
  NarrowUnit* units = all_units + warp * kUnits;
  const int64_t dim = batch.table.dim;
  const int64_t parts = RowPieces(dim, 32 * kVec);
  const int64_t begin = batch.offsets[level_start[level]].narrow_slices * parts;
  const int64_t end = batch.offsets[level_start[level + 1]].narrow_slices * parts;
  // Where there are few units, every warp has one; else whole slices, where they fit.
  const int64_t warps = gridDim.x * int64_t{kNarrowWarps}, of_warp = CeilDiv(end - begin, warps);
  int64_t each = min(int64_t{kUnits}, max(int64_t{1}, of_warp));
  if (each > parts) each -= each % parts;
  for (int64_t base = begin + (blockIdx.x * int64_t{kNarrowWarps} + warp) * each; base < end;
       base += warps * each) {
    const int n = static_cast<int>(min(each, end - base));
    if (lane < n) {
      const int64_t slice = (base + lane) / parts;
      units[lane] = {slices[slice], base + lane - slice * parts};
    }
    __syncwarp();
    for (int i = 0; i < n; ++i) {
      const NarrowSlice& slice = units[i].slice;
      const int part = static_cast<int>(units[i].part);
      if (!Inside(chunk, slice.prob)) continue;
      const int count = slice.count, children = slice.children, first = slice.first;
      const int64_t row = slice.row;
      const bool partial = slice.out < 0;  // other slices add to the same rows
      const int64_t out_row = partial ? ~slice.out : slice.out;
      const int k = (part * 32 + lane) * kVec;
      const bool active = k < dim;
      // The parts of a slice follow each other: what the first put into shared memory is still there.
      const bool staged = i > 0 && part > 0;
      if (!staged) {
        for (int t = lane; t < count; t += 32) tokens[t] = batch.pair_token[first + t];
      }
      for (int j0 = 0; j0 < children; j0 += 8) {
        if (!staged || children > 8) {
          const float* probs = chunk.data + (slice.prob - chunk.begin);
          for (int e = lane; e < count * 8; e += 32) {
            const int t = e / 8, j = j0 + e % 8;
            float g = 0.f;
            if (j < children) {
              g = probs[static_cast<int64_t>(t) * children + j];
              const float scale = out.pair_scale[first + t];
              if (batch.pair_row[first + t] == row + j) g -= 1.f;
              g *= scale;
            }
            grads[e] = g;
          }
        }
        __syncwarp();
        if (active) {
          float w[8][kVec], sum[8][kVec] = {};
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            // Beyond the last child g is 0: any finite row will do, but a NaN must not spread.
            if (j0 + j < children) {
              LoadVec<kVec>(batch.table.rows + (row + j0 + j) * dim + k, w[j]);
            } else {
#pragma unroll
              for (int x = 0; x < kVec; ++x) w[j][x] = 0.f;
            }
          }
          const bool add = level > 0 || j0 > 0;
          constexpr int kBatch = 4;  // tokens in flight
          for (int t0 = 0; t0 < count; t0 += kBatch) {
            float h[kBatch][kVec], d[kBatch][kVec] = {};
#pragma unroll
            for (int b = 0; b < kBatch; ++b) {
              if (t0 + b < count) {
                const int64_t at = tokens[t0 + b] * dim + k;
                LoadVec<kVec>(batch.hidden + at, h[b]);
                if (add) LoadVec<kVec>(out.d_hidden + at, d[b]);
              }
            }
#pragma unroll
            for (int b = 0; b < kBatch; ++b) {
              if (t0 + b < count) {
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                  const float g = grads[(t0 + b) * 8 + j];
#pragma unroll
                  for (int x = 0; x < kVec; ++x) {
                    sum[j][x] = fmaf(g, h[b][x], sum[j][x]);
                    d[b][x] = fmaf(g, w[j][x], d[b][x]);
                  }
                }
                StoreVec<kVec>(out.d_hidden + tokens[t0 + b] * dim + k, d[b]);
              }
            }
          }
          if (!partial) {
            rows.Take(row + j0, out_row + j0, children - j0, k, w, sum);
          } else {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
              if (j0 + j < children) StoreVec<kVec>(out.partials + (out_row + j0 + j) * dim + k, sum[j]);
            }
          }
        }
        if (part == 0 && out.bias_grads != nullptr && lane < 8 && j0 + lane < children) {
          float sum = 0.f;
          for (int t = 0; t < count; ++t) sum += grads[t * 8 + lane];
          (partial ? out.bias_partials : out.bias_grads)[out_row + j0 + lane] = sum;
        }
        __syncwarp();
      }
    }
    __syncwarp();  // before the units are overwritten
  }
}

template <typename T>
bool NarrowGradAligned(const TreeBatch<T>& batch, const TreeGradOutputs<T>& out) {
  return RowsAligned(batch.table.dim, batch.table.rows, batch.hidden) &&
         RowsAligned(batch.table.dim, out.d_hidden, out.row_grads, out.partials);
}

// kVec 4: where NarrowGradAligned.
template <int kVec, typename T, typename Rows>
int NarrowGradTo(const Rows& rows, const TreeBatch<T>& batch, const TreeWork& work, int64_t level,
                 const ProbChunk& chunk, const TreeGradOutputs<T>& out, GpuStream stream) {
  // The number of slices of one level is not known here: at most this many blocks, which take turns.
  const int64_t units = work.narrow_slices * RowPieces(batch.table.dim, 32 * kVec);
  const unsigned blocks = GridStrideBlocks(CeilDiv(units, kNarrowWarps), 132 * 8);
  return Launch(NarrowGradients<T, kVec, Rows>, blocks, kNarrowWarps * 32, 0, stream, batch, work.narrow,
                work.level_start, level, chunk, out, rows);
}

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_NARROW_GRAD_CUH_
