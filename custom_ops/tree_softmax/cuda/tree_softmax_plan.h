// The plans that a call on a GPU keeps from method to method: the pieces into which the groups of a batch are cut.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_PLAN_H_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_PLAN_H_

#include <cstdint>

#include "common/cuda/cuda.h"
#include "tree_softmax/tree_softmax.h"

namespace largeout {

constexpr int kNarrowChildren = 128;  // a narrow node has fewer

// Whether the node of n pairs and c children is wide.
LARGEOUT_HOST_DEVICE constexpr bool IsWide(int64_t n, int64_t c) {
  return c >= kNarrowChildren || (c >= 32 && n >= 16);
}

struct TreeOffsets;  // tree_softmax_work.cuh
struct NarrowSlice;

// The pairs and pieces of a TreeWork that belong to the root, the first group, where it is alone on its level: none in
// a forest that has several roots there.
struct RootPieces {
  int64_t pairs = 0, children = 0, probs = 0, tiles = 0, loss_tiles = 0, weight_tiles = 0, sum_rows = 0;
};

// The pieces into which the groups of a batch are cut for the GPU. Device pointers, and sizes on the host.
struct TreeWork {
  int64_t pairs = 0, groups = 0;
  const int32_t *group_node = nullptr, *group_start = nullptr;
  const TreeOffsets* offsets = nullptr;      // [groups + 1] running sums of the sizes below
  const NarrowSlice* narrow = nullptr;       // [narrow_slices] up to 64 pairs of a narrow node; gradient only
  const int32_t* wide_group = nullptr;       // [wide_slices] up to 128 pairs of a wide node: its group
  const int32_t* tile_group = nullptr;       // [tiles] logits of a wide slice x 128 children; gradient only
  const int32_t* loss_tile_group = nullptr;  // [loss_tiles] the same x some hundreds; loss only
  const int32_t* weight_group = nullptr;     // [weight_tiles] gradients of 128 rows from a range of pairs
  const int32_t* sum_group = nullptr;        // [sum_rows] rows whose gradients come in parts
  const int32_t* level_start = nullptr;      // [levels + 1] the first group of a level
  int64_t rows = 0, probs = 0, narrow_slices = 0, wide_slices = 0, tiles = 0, loss_tiles = 0, terms = 0,
          weight_tiles = 0, partial_rows = 0, sum_rows = 0;
  int64_t max_children = 0, levels = 0;
  RootPieces root;
  RootPieces skipped;                           // those of the root where its products are the library's
                                                // (tree_softmax_root_library.cu), or none
  uint64_t narrow_levels = 0, wide_levels = 0;  // bit l: level l has such nodes; bit 63: any later one
};

struct TreeGradPlan {
  bool ok = true;  // as of TreeTouched
  TreeWork work;   // work.rows is U, work.probs is what probs must hold
};

struct TreeLossPlan {
  TreeStatus status = TreeStatus::kOk;
  int64_t bad_position = -1;                 // as of TreePaths
  int64_t pairs = 0, groups = 0, probs = 0;  // P, G and S of tree_softmax.h
  const int32_t *pair_token = nullptr, *pair_row = nullptr, *pair_slot = nullptr, *pair_group = nullptr;
  const int32_t* token_start = nullptr;
  TreeWork work;
  TreeGradPlan gradient;  // what Check would make, but for tables of bfloat16 without saved probs
};

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_PLAN_H_
