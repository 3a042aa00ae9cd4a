// Exact top-k, best first: a block searches for one query. Its four warps compute the logits of the most
// probable open node; the first warp turns them into scores and keeps two heaps: the k best classes and the
// open nodes. The search ends when the most probable open node cannot hold a better class. The order of the
// search does not change the answer. The logits of a wide root are there before (tree_softmax_topk_root.cu):
// the warps look through them for what may enter a heap, and mostly nothing does.
//
// Bounds, for each query: the rows of the nodes that it opens, from memory or the L2 cache, and 2 dim flops a
// row; of a wide root, 4 bytes a child.
#include <algorithm>

#include "common/cuda/launch.cuh"
#include "tree_softmax/cuda/tree_softmax_heap.cuh"
#include "tree_softmax/cuda/tree_softmax_root.cuh"

namespace largeout {
namespace {

constexpr int kThreads = 128;
constexpr int kLogits = 1024;      // of a node, in shared memory; those of larger nodes are computed twice
constexpr int kOpen = 1024;        // open nodes in shared memory
constexpr int kSharedWords = 512;  // the k best classes in shared memory up to this k
constexpr int64_t kFallbackBytes = int64_t{256} << 20;
constexpr int kFallbackBlocks = 64;

struct SearchStatus {
  int bad, overflows;
};

template <typename T>
struct SearchTask {
  TreeArrays tree;
  const int32_t* row_child;
  TreeTable<T> table;
  const float* hidden;
  int64_t queries;
  int64_t first;    // the first query of a launch
  RootLogits root;  // of its queries
  int k;
  Entry* words;         // [queries, k], or null: shared memory
  int32_t* overflowed;  // [queries] the queries to be searched again
  Entry* open;          // fallback: [blocks, open_size]
  int64_t open_size;
  SearchStatus* status;
};

enum State { kGoOn = 0, kFinished = 1, kOverflow = 2, kBad = 3 };

// One child; thread 0 alone. cur: the node it is a child of.
__device__ int Insert(const Entry& child, int k, const TreeArrays& tree, int cur, int64_t open_size,
                      Heap<true>* open, Heap<false>* words) {
  const bool full = words->count == k;
  if (full && Key(child.score) < Key(words->entries[0].score)) return kGoOn;
  if (child.id >= 0) {
    if (child.id >= tree.classes) return kBad;
    if (!full) {
      words->Push(child);
    } else if (Better(child, words->entries[0])) {
      words->SiftDown(0, child);
    }
    return kGoOn;
  }
  const Entry node{child.score, ~child.id};
  if (node.id <= cur || node.id >= tree.nodes) return kBad;
  if (open->count == open_size) {
    if (full) open->Drop(Key(words->entries[0].score));
    if (open->count > open_size / 4 * 3) return kOverflow;
  }
  open->Push(node);
  return kGoOn;
}

template <typename T, int kVec, typename Id>
__global__ void __launch_bounds__(kThreads)
    Search(SearchTask<T> task, bool fallback, float* log_probs, Id* ids) {
  __shared__ float logits[kLogits];
  __shared__ Entry shared_open[kOpen];
  __shared__ Entry shared_words[kSharedWords];
  __shared__ int next_node, state;
  __shared__ float next_score;
  __shared__ float bar;  // the score that a child of a given root needs to enter a heap
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t dim = task.table.dim;
  const int64_t count = fallback ? task.status->overflows : task.queries;
  const bool has_root = task.root.logits != nullptr;
  for (int64_t i = blockIdx.x; i < count; i += gridDim.x) {
    const int64_t query = fallback ? task.overflowed[i] : task.first + i;
    const float* const hidden[1] = {task.hidden + query * dim};
    // The heaps are thread 0's; the others see their entries after a barrier.
    Heap<true> open{fallback ? task.open + blockIdx.x * task.open_size : shared_open, 0};
    Heap<false> words{task.words == nullptr ? shared_words : task.words + query * task.k, 0};
    if (threadIdx.x == 0) next_node = 0, next_score = 0.f, bar = -INFINITY, state = kGoOn;
    __syncthreads();
    int64_t rows = 0;  // of the nodes that were expanded; as in TreeTopK, not more than the tree has
    while (state == kGoOn) {
      const int node = next_node;
      const float score = next_score;
      const int64_t first = task.tree.node_start[node];
      const int64_t size = task.tree.node_start[node + 1] - first;
      rows += size;
      const bool good =
          first >= 0 && size >= 1 && first + size <= task.tree.rows && rows <= task.tree.rows;
      float top = -INFINITY, sum = 0.f, log_total = 0.f;
      const bool given = has_root && node == 0;
      if (given) top = task.root.top[i], log_total = task.root.log_total[i];
      int my_state = good ? kGoOn : kBad;
      const int passes = size > kLogits && !given ? 2 : 1;
      for (int pass = 0; good && pass < passes; ++pass) {
        for (int64_t base = 0; base < size; base += kLogits) {
          const int m = static_cast<int>(min(size - base, static_cast<int64_t>(kLogits)));
          __syncthreads();  // the logits of the chunk before have been used
          if (given) {
            bool enters = false;
#pragma unroll 8
            for (int j = threadIdx.x; j < m; j += kThreads) {
              const float logit = task.root.logits[i * size + base + j];
              logits[j] = logit;
              enters = enters || Key(score + ((logit - top) - log_total)) >= bar;
            }
            if (__syncthreads_or(enters) == 0) continue;
          } else {
            for (int j = warp * 8; j < m; j += kThreads / 32 * 8) {
              float logit[1];
              EightLogits<T, kVec, 1>(task.table.rows + (first + base + j) * dim, m - j, dim, hidden, logit);
              const int child = j + (lane >> 2);
              if ((lane & 3) == 0 && child < m) {
                logits[child] =
                    logit[0] + (task.table.bias == nullptr ? 0.f : task.table.bias[first + base + child]);
              }
            }
            __syncthreads();
          }
          if (warp != 0) continue;
          if (pass == 0 && !given) {  // logsumexp, online
            float here = -INFINITY, part = 0.f;
            for (int j = lane; j < m; j += 32) here = MaxOrNan(here, logits[j]);
            here = MaxOrNan(top, WarpMax(here));
            if (here != -INFINITY) {  // else: nothing but classes that are shut off so far
              for (int j = lane; j < m; j += 32) part += expf(logits[j] - here);
              sum = sum * expf(top - here) + WarpSum(part);
              top = here;
            }
          }
          if (pass == passes - 1) {
            if (!given) log_total = logf(sum);
            for (int j0 = 0; j0 < m; j0 += 32) {
              const int j = j0 + lane;
              Entry child{0.f, 0};
              bool candidate = j < m;
              if (candidate) {
                child.score = score + ((logits[j] - top) - log_total);
                child.id = task.row_child[first + base + j];
                candidate = words.count < task.k || Key(child.score) >= Key(words.entries[0].score);
              }
              unsigned mask = __ballot_sync(0xffffffffu, candidate);
              __syncwarp();  // the worst word has been read
              while (mask != 0) {
                const int from = __ffs(mask) - 1;
                mask &= mask - 1;
                const Entry x{__shfl_sync(0xffffffffu, child.score, from),
                              __shfl_sync(0xffffffffu, child.id, from)};
                if (lane == 0 && my_state == kGoOn) {
                  my_state =
                      Insert(x, task.k, task.tree, node, fallback ? task.open_size : kOpen, &open, &words);
                }
              }
              words.count = __shfl_sync(0xffffffffu, words.count, 0);
              __syncwarp();  // lane 0's entries are visible
            }
            if (lane == 0 && words.count == task.k) bar = Key(words.entries[0].score);
          }
        }
      }
      __syncthreads();  // `state` has been read by all, also where a broken node left no logits to wait for
      if (threadIdx.x == 0) {
        if (my_state == kGoOn) {
          // Equal scores go on: a class below may tie and have the smaller id. At -inf that would walk the
          // whole tree.
          const bool full = words.count == task.k;
          if (open.count == 0 || (full && (Key(open.entries[0].score) < Key(words.entries[0].score) ||
                                           Key(open.entries[0].score) == -INFINITY))) {
            my_state = words.count == task.k ? kFinished : kBad;
          } else {
            const Entry best = open.Pop();
            next_node = best.id;
            next_score = best.score;
          }
        }
        state = my_state;
      }
      __syncthreads();
    }
    if (threadIdx.x == 0) {
      if (state == kOverflow && !fallback) {
        task.overflowed[atomicAdd(&task.status->overflows, 1)] = static_cast<int32_t>(query);
      } else if (state != kFinished) {
        StoreRelaxed(&task.status->bad, 1);
      } else {
        for (int j = task.k - 1; j >= 0; --j) {
          const Entry worst = words.Pop();
          log_probs[query * task.k + j] = worst.score;
          ids[query * task.k + j] = static_cast<Id>(worst.id);
        }
      }
    }
    __syncthreads();  // `state` has been read
  }
}

template <typename T, typename Id>
int TopKOf(const TreeArrays& tree, const int32_t* row_child, const TreeTable<T>& table, const float* hidden,
           int64_t queries, int64_t k, float* log_probs, Id* ids, bool* ok, const GpuCall& call) {
  Scratch* const scratch = call.scratch;
  const GpuStream stream = call.stream;
  *ok = true;
  if (queries == 0 || k == 0) return 0;
  if (queries > 0x7fffffff || k > 0x7fffffff) return static_cast<int>(cudaErrorInvalidValue);
  SearchTask<T> task{tree,    row_child, table,   hidden, queries, 0, {}, static_cast<int>(k),
                     nullptr, nullptr,   nullptr, 0,      nullptr};
  if (k > kSharedWords) {
    task.words = scratch->Take<Entry>(queries * k);
    if (task.words == nullptr) return kNoMemory;
  }
  task.overflowed = scratch->Take<int32_t>(queries);
  task.status = scratch->Take<SearchStatus>(1);
  if (task.overflowed == nullptr || task.status == nullptr) return kNoMemory;
  LARGEOUT_CUDA_RETURN(cudaMemsetAsync(task.status, 0, sizeof(SearchStatus), stream));
  const bool aligned = RowsAligned(table.dim, table.rows, hidden);
  const auto launch = [&](int64_t blocks, bool fallback) {
    return Launch(aligned ? Search<T, 4, Id> : Search<T, 1, Id>, static_cast<unsigned>(blocks), kThreads, 0,
                  stream, task, fallback, log_probs, ids);
  };
  int32_t ends[2];  // of the root's rows
  LARGEOUT_RETURN_IF_ERROR(CopyToHostCuda(tree.node_start, sizeof(ends), ends, stream));
  RootPlan<T> root;
  const bool good = ends[0] == 0 && ends[1] > 0 && ends[1] <= tree.rows;  // else the search says so
  if (good && IsWide(queries, ends[1])) LARGEOUT_RETURN_IF_ERROR(root.Reserve(queries, ends[1], scratch));
  for (const int64_t each = root.most > 0 ? root.most : queries; task.first < queries; task.first += each) {
    task.queries = std::min(each, queries - task.first);
    if (root.most > 0) {
      LARGEOUT_RETURN_IF_ERROR(root.Compute(table, hidden + task.first * table.dim, task.queries, call));
      task.root = root.logits;
    }
    LARGEOUT_RETURN_IF_ERROR(launch(GridStrideBlocks(task.queries, 0x7fffffff), false));
  }
  SearchStatus status;
  LARGEOUT_CUDA_RETURN(cudaMemcpyAsync(&status, task.status, sizeof(status), cudaMemcpyDeviceToHost, stream));
  LARGEOUT_CUDA_RETURN(cudaStreamSynchronize(stream));
  if (status.bad == 0 && status.overflows > 0) {
    // A node is open at most once, so `nodes` entries never overflow.
    task.open_size = tree.nodes;
    const int64_t each = tree.nodes * static_cast<int64_t>(sizeof(Entry));
    const int64_t blocks =
        std::min<int64_t>({status.overflows, kFallbackBlocks, std::max<int64_t>(1, kFallbackBytes / each)});
    task.open = static_cast<Entry*>(scratch->Allocate(blocks * each));
    if (task.open == nullptr) return kNoMemory;
    task.root = {};
    LARGEOUT_RETURN_IF_ERROR(launch(GridStrideBlocks(blocks, kFallbackBlocks), true));
    LARGEOUT_CUDA_RETURN(
        cudaMemcpyAsync(&status, task.status, sizeof(status), cudaMemcpyDeviceToHost, stream));
    LARGEOUT_CUDA_RETURN(cudaStreamSynchronize(stream));
  }
  *ok = status.bad == 0;
  return 0;
}

}  // namespace

template <>
template <typename T, typename H, typename Id>
int TreeSoftmaxGpu::TopK(const TreeArrays& tree, const int32_t* row_child, const TreeTable<T>& table,
                         const H* hidden, int64_t queries, int64_t k, float* log_probs, Id* ids, bool* ok) {
  const float* floats;
  LARGEOUT_RETURN_IF_ERROR(Floats(hidden, queries * table.dim, call_, &floats));
  return TopKOf(tree, row_child, table, floats, queries, k, log_probs, ids, ok, call_);
}

#define LARGEOUT_TREE_TOPK(T, H, Id)                                                                  \
  template int TreeSoftmaxGpu::TopK<T, H, Id>(const TreeArrays&, const int32_t*, const TreeTable<T>&, \
                                              const H*, int64_t, int64_t, float*, Id*, bool*);
#define LARGEOUT_TREE_TOPKS(T, H) LARGEOUT_TREE_TOPK(T, H, int32_t) LARGEOUT_TREE_TOPK(T, H, int64_t)
LARGEOUT_TREE_TOPKS(float, float)
LARGEOUT_TREE_TOPKS(float, bfloat16)
LARGEOUT_TREE_TOPKS(bfloat16, float)
LARGEOUT_TREE_TOPKS(bfloat16, bfloat16)
#undef LARGEOUT_TREE_TOPKS
#undef LARGEOUT_TREE_TOPK

}  // namespace largeout
