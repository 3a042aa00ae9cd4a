// A binary heap that one thread of a block works on, for tree_softmax_topk.cu.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_HEAP_CUH_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_HEAP_CUH_

#include "tree_softmax/cuda/tree_softmax_work.cuh"

namespace largeout {

struct Entry {
  float score;  // log probability, may be NaN
  int32_t id;   // class or node
};

__device__ __forceinline__ float Key(float score) { return score != score ? -INFINITY : score; }
__device__ __forceinline__ bool Better(const Entry& a, const Entry& b) {
  const float x = Key(a.score), y = Key(b.score);
  return x > y || (x == y && a.id < b.id);
}

// A binary heap with the best (kBest) or the worst entry on top; one thread works on it.
template <bool kBest>
struct Heap {
  Entry* entries;
  int count;
  __device__ static bool Above(const Entry& a, const Entry& b) { return kBest ? Better(a, b) : Better(b, a); }
  __device__ void SiftDown(int at, Entry x) {
    for (;;) {
      int child = 2 * at + 1;
      if (child >= count) break;
      if (child + 1 < count && Above(entries[child + 1], entries[child])) ++child;
      if (!Above(entries[child], x)) break;
      entries[at] = entries[child];
      at = child;
    }
    entries[at] = x;
  }
  __device__ void Push(const Entry& x) {
    int at = count++;
    while (at > 0 && Above(x, entries[(at - 1) / 2])) {
      entries[at] = entries[(at - 1) / 2];
      at = (at - 1) / 2;
    }
    entries[at] = x;
  }
  __device__ Entry Pop() {
    const Entry top = entries[0], last = entries[--count];
    if (count > 0) SiftDown(0, last);
    return top;
  }
  // Drops what is below `key`.
  __device__ void Drop(float key) {
    int kept = 0;
    for (int i = 0; i < count; ++i) {
      if (Key(entries[i].score) >= key) entries[kept++] = entries[i];
    }
    count = kept;
    for (int i = count / 2 - 1; i >= 0; --i) SiftDown(i, entries[i]);
  }
};

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_HEAP_CUH_
