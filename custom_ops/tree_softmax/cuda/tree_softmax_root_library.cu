// A wide root, all tokens at once: a softmax over its children, whose products are those of cuBLASLt. Its rows are the
// first of the table, its pairs the first of the batch, and nothing else is on its level: other nodes there would be
// left out. So no root of a forest comes here that shares its level.
#include "common/cuda/launch.cuh"
#include "full_softmax/cuda/full_softmax_library.cuh"
#include "tree_softmax/cuda/tree_softmax_root.cuh"

namespace largeout {
namespace {

template <typename H>
__global__ void GatherVectors(const H* hidden, const int32_t* pair_token, int64_t pairs, int64_t dim, H* out) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < pairs * dim) out[i] = hidden[pair_token[i / dim] * dim + i % dim];
}

__global__ void ScatterVectors(const float* in, const int32_t* pair_token, int64_t pairs, int64_t dim,
                               float* out) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < pairs * dim) out[pair_token[i / dim] * dim + i % dim] = in[i];
}

__global__ void ScatterLosses(const float* losses, const int32_t* pair_slot, int64_t pairs, float* pair_loss) {
  const int64_t p = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (p < pairs) pair_loss[pair_slot[p]] = losses[p];
}

// The pairs of the root as the batch of a softmax over its children. `tokens`: of the whole batch.
template <typename T, typename H>
int RootBatch(const TreeBatch<T, H>& batch, const RootPieces& root, int64_t tokens, const GpuCall& call,
              SoftmaxRows<T>* rows, SoftmaxBatch<H, int32_t>* of_root) {
  *rows = {batch.table.rows, batch.table.bias, root.children, batch.table.dim};
  *of_root = {batch.hidden, batch.pair_row, root.pairs, false};
  if (root.pairs == tokens) return 0;  // pair p is that of token p
  const int64_t n = root.pairs * batch.table.dim;
  H* const gathered = call.scratch->Take<H>(n);
  if (gathered == nullptr) return kNoMemory;
  of_root->hidden = gathered;
  return Launch(GatherVectors<H>, ElementBlocks(n), kElementThreads, 0, call.stream, batch.hidden, batch.pair_token,
                root.pairs, batch.table.dim, gathered);
}

bool IsForLibrary(const RootPieces& root, int64_t dim, const GpuCall& call) {
  return call.library && dim > 0 && root.pairs >= TreeTuning::kLeastRootPairs &&
         root.children >= TreeTuning::kLeastRootChildren;
}

}  // namespace

template <typename T, typename H>
int RootLoss(const TreeBatch<T, H>& batch, const TreeWork& work, const int32_t* pair_slot, int64_t tokens,
             float* pair_loss, const GpuCall& call) {
  const RootPieces& root = work.root;
  if (!IsForLibrary(root, batch.table.dim, call)) return kNoProduct;
  SoftmaxRows<T> rows;
  SoftmaxBatch<H, int32_t> of_root;
  LARGEOUT_RETURN_IF_ERROR(RootBatch(batch, root, tokens, call, &rows, &of_root));
  float *losses = call.scratch->Take<float>(root.pairs), *sums = call.scratch->Take<float>(root.pairs);
  if (losses == nullptr || sums == nullptr) return kNoMemory;
  LARGEOUT_RETURN_IF_ERROR(LibraryTerms(rows, of_root, {batch.pair_lse, losses, sums}, call));
  return Launch(ScatterLosses, ElementBlocks(root.pairs), kElementThreads, 0, call.stream, losses, pair_slot, root.pairs,
                pair_loss);
}

template <typename T, typename H>
int RootGradient(const TreeBatch<T, H>& batch, const TreeWork& work, int64_t tokens,
                 const TreeGradOutputs<T>& out, const GpuCall& call) {
  const RootPieces& root = work.root;
  const int64_t dim = batch.table.dim;
  if (!IsForLibrary(root, dim, call)) return kNoProduct;
  SoftmaxRows<T> rows;
  SoftmaxBatch<H, int32_t> of_root;
  LARGEOUT_RETURN_IF_ERROR(RootBatch(batch, root, tokens, call, &rows, &of_root));
  float* const zeros = call.scratch->Take<float>(root.pairs);
  float* const d_hidden = root.pairs == tokens ? out.d_hidden : call.scratch->Take<float>(root.pairs * dim);
  if (zeros == nullptr || d_hidden == nullptr) return kNoMemory;
  LARGEOUT_CUDA_RETURN(cudaMemsetAsync(zeros, 0, root.pairs * sizeof(float), call.stream));
  const TokenGradients of{batch.pair_row, batch.pair_lse, {zeros, out.pair_scale, zeros}, false};
  LARGEOUT_RETURN_IF_ERROR(LibraryGradient(rows, of_root, of,
                                           SoftmaxBatchGradients<H, T>{nullptr, out.row_grads, out.bias_grads},
                                           d_hidden, call));
  if (root.pairs == tokens) return 0;
  return Launch(ScatterVectors, ElementBlocks(root.pairs * dim), kElementThreads, 0, call.stream, d_hidden, batch.pair_token,
                root.pairs, dim, out.d_hidden);
}

#define LARGEOUT_INSTANTIATE(T, H)                                                                             \
  template int RootLoss<T, H>(const TreeBatch<T, H>&, const TreeWork&, const int32_t*, int64_t, float*,        \
                              const GpuCall&);                                                                 \
  template int RootGradient<T, H>(const TreeBatch<T, H>&, const TreeWork&, int64_t, const TreeGradOutputs<T>&, \
                                  const GpuCall&);
LARGEOUT_INSTANTIATE(float, float)
LARGEOUT_INSTANTIATE(float, bfloat16)
LARGEOUT_INSTANTIATE(bfloat16, float)
LARGEOUT_INSTANTIATE(bfloat16, bfloat16)

}  // namespace largeout
