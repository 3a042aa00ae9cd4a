// Softmax over a tree: p(class | h) is the product of one softmax per node on the way from the root to the
// class.
//
// The children of a node are contiguous rows of one table, so a batch is a list of (token, node) *pairs*: a
// token has one pair for every node on the path of its target. Pairs are sorted by node; a *group* is the run
// of pairs of one node and is one small GEMM, softmax and cross-entropy straight on the table. Nothing is
// gathered per token, nothing has the size [tokens, classes].
//
//   TreeSoftmaxCpu device(call);    // or TreeSoftmaxGpu
//   // Checks the targets, and the tree along their paths.
//   device.FindPaths(tree, targets, weights, tokens, dim, 0, &lasting, &paths);
//   // loss [tokens], and the saved tensors.
//   device.Loss(tree, table, hidden, weights, tokens, out, scratch_bytes);
//   // d_hidden, and the gradients of the rows of the groups.
//   device.Gradient(...);
//
// The saved tensors between loss and gradient are the same on every device. P pairs, G groups; int32 unless stated:
//   pair_token  [P]    sorted by node, within a node by token
//   pair_row    [P]    the row that the path takes at this node
//   group_node  [G]    ascending, so a parent's group comes before its children's
//   group_start [G+1]  pairs group_start[g] .. group_start[g+1] belong to node group_node[g];
//                      group_start[G] = P
//   pair_lse    [P]    float32, logsumexp of the node's logits
//   probs       [S]    float32, pair p of group g, child j:
//                      probs[prob_start(g) + (p - group_start[g]) * size(g) + j], where size(g) is the number
//                      of children and prob_start(g) the sum of pairs * size over earlier groups.
//                      S = prob_start(G), or 0 where that exceeds max_saved_bytes: then the gradient
//                      recomputes them.
// Row gradients: group g owns the next size(g) rows of the outputs, in order: rows [U] ascending, U = sum of
// size(g).
//
// H is the type of hidden vectors, T that of the table: float or bfloat16. Arrays are in the memory of the
// device, the tree's too. The results do not depend on the number of threads.
//
// A GPU gives the same tensors, and the same bits on every run: no float atomics, sums have an order that
// depends on the sizes alone. Any dim; rows are read in 16-byte pieces (8 for bfloat16) where dim is a
// multiple of 4. Wide nodes use tensor cores (common/cuda/gemm/): three products of TF32 for float32 tables,
// which lose 2^-22 of a product, or one, which loses 2^-11, where the call allows it (GpuCall::tf32);
// bfloat16 for tables of bfloat16, where float32 factors keep 16 bits. Beside hidden vectors of bfloat16 each
// product of a wide node is one of bfloat16: rows of float32, and the gradients of logits, are rounded, in
// loss and gradient alike. Those of a wide root may be cuBLASLt's, which needs 224 MB of scratch memory more
// (GpuCall::library). Sums are of float32, and those of bias gradients of what is not rounded. Narrow
// nodes and top-k take hidden vectors as float32.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_H_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_H_

#include <cstdint>
#include <type_traits>
#include <vector>

#include "common/bfloat16.h"
#include "common/scratch.h"

namespace largeout {

// keras_largeout/trees/tree.py says what they are. Nodes are numbered breadth first; rows = classes + nodes - 1 = node_start[nodes].
struct TreeArrays {
  const int32_t* class_row;    // [classes]   the row of a class
  const int32_t* node_start;   // [nodes + 1] the children of node n: rows node_start[n] .. node_start[n + 1]
  const int32_t* node_row;     // [nodes]     the row of node n in its parent; root: -1; increasing
  const int32_t* node_parent;  // [nodes]     root: -1
  const int32_t* row_hint;     // [ceil(rows / 16)] the node that holds row 16 * i
  int64_t classes, nodes, rows;
};

template <typename T>
struct TreeTable {
  const T* rows;      // [rows, dim]
  const float* bias;  // [rows], or null
  int64_t dim;
  // Set by a CPU beside hidden vectors of bfloat16: products of wide nodes may be of bfloat16, with sums in
  // float32, where the processor has them. Rows of float32, and the gradients of logits, are then rounded.
  bool in_bfloat16 = false;
};

// Whether products of a node of so many pairs and children are in bfloat16 then.
constexpr bool ArePacked(int64_t pairs, int64_t children) { return pairs >= 16 && children >= 32; }

enum class TreeStatus { kOk, kBadTarget, kBadTree, kTooManyPairs };

struct TreePairs {
  std::vector<int32_t> token, row, group_node, group_start;  // the saved tensors
  std::vector<int32_t> slot;         // [P] the place of a pair in token-major order
  std::vector<int32_t> token_start;  // [tokens + 1] the slots of a token, from leaf to root
  int64_t prob_count = 0;            // sum over pairs of the node's children
  int64_t touched_rows = 0;          // sum over groups of the node's children
  bool ordered = true;               // rows of the groups ascend
  int64_t bad_position = -1;         // of the first bad target (kBadTarget), or of a target whose path is no path (kBadTree)
};

// The sizes of a batch's paths: P, G and S of above; or what is wrong with them.
struct TreePaths {
  TreeStatus status = TreeStatus::kOk;
  int64_t bad_position = -1, bad_target = -1;  // of TreePairs, and the target there
  int64_t pairs = 0, groups = 0, probs = 0;
};

// The outputs of the loss. Sizes: tokens, and the P, G and S of above.
struct TreeLossOutputs {
  float* loss;                                                // [tokens]
  int32_t *pair_token, *pair_row, *group_node, *group_start;  // [P] [P] [G] [G + 1], or all null: not wanted
  float* pair_lse;                                            // [P]
  float* probs;                                               // [S], or null: they are not saved
};

// The saved tensors, as the gradient reads them.
struct TreeSaved {
  const int32_t *pair_token, *pair_row, *group_node, *group_start;
  const float *pair_lse, *probs;  // probs: null to recompute them
  int64_t pairs, groups;
};

// The rows that the gradient of saved tensors touches.
struct TreeTouched {
  // Every index that the gradient follows is in range, and groups are ascending, non-empty and cover the
  // pairs.
  bool ok = true;
  // U, and the size that probs must have.
  int64_t rows = 0, probs = 0;
};

// Takes the gradients of rows as they are made, in the place of an array with all of them.
template <typename T>
class TreeRowTaker {
 public:
  virtual ~TreeRowTaker() = default;
  // grads [n, dim] are those of the rows [first, first + n) of the table, which are not read again: they
  // may be changed. On any thread, different rows each time; rows [first + n, first + n + next) come next on
  // it.
  virtual void Take(int64_t first, int64_t n, int64_t next, const T* grads) = 0;
};

struct TreeLossPlan;  // cuda/tree_softmax_plan.h
struct TreeGradPlan;

// One call: of FindPaths and Loss, of Resume or Check and then Gradient, or of TopK. C: CpuCall
// (tree_softmax*.cc) or GpuCall (cuda/tree_softmax*.cu). Methods return 0 or an error (common/scratch.h).
template <typename C>
class TreeSoftmax {
  static constexpr bool kOnCpu = std::is_same_v<C, CpuCall>;

 public:
  using Call = C;
  using Plan = std::conditional_t<kOnCpu, TreeTouched, TreeGradPlan>;
  explicit TreeSoftmax(const Call& call) : call_(call) {}

  // Finds the paths of the targets, which Loss then follows; their sizes, or what is wrong, in *paths. A
  // token of weight 0 is skipped: no pairs, its target may be anything. weights: [tokens], or null for all 1.
  // likely_pairs: how many pairs there will be, or a little more; 0 if it is unknown. No result depends on it.
  // What GradientPlan gives is in memory of `lasting`. A GPU waits for the stream once where likely_pairs are
  // enough, otherwise twice (and once more for a bad target).
  template <typename Id>
  int FindPaths(const TreeArrays& tree, const Id* targets, const float* weights, int64_t tokens, int64_t dim,
                int64_t likely_pairs, Scratch* lasting, TreePaths* paths);

  // loss[t] = weights[t] * sum over the path of (lse - logit of the row), 0 where the weight is 0.
  // scratch_bytes bounds what is held of probabilities that are not saved. (On a GPU no logits of wide nodes
  // are in memory then, but two numbers for each pair and some thousand children.)
  template <typename T, typename H>
  int Loss(const TreeArrays& tree, const TreeTable<T>& table, const H* hidden, const float* weights,
           int64_t tokens, const TreeLossOutputs& out, int64_t scratch_bytes);

  // After Loss: what it found that the gradient needs as well.
  Plan GradientPlan() const;

  // Whether Resume may take the place of Check, for a table of T; whether probabilities were saved.
  template <typename T>
  static bool CanResume(const Plan& plan, bool saved_probs) {
    return plan.ok && (saved_probs || kOnCpu || std::is_same_v<T, float>);
  }

  // Goes on from the plan of the loss that left the saved tensors, for the same tree, tokens and dim.
  TreeTouched Resume(const Plan& plan);

  // What the gradient of `saved` touches, for a table of T. A GPU waits for the stream once.
  template <typename T>
  int Check(const TreeArrays& tree, const TreeSaved& saved, int64_t tokens, int64_t dim,
            TreeTouched* touched);

  // With g = (prob - onehot(row)) * grad_loss[t] * weights[t]: d_hidden[t] = sum of g * table row over the
  // path's nodes, 0 for skipped tokens; row_grads = sum of g * hidden[t] over a node's tokens; bias_grads =
  // sum of g. Every output element is written, none is read before. bias_grads may be null. tree: only
  // node_start, node_parent and sizes are read. After Resume, or for what Check found to be right.
  // scratch_bytes bounds what large nodes keep of probabilities when saved.probs is null (on a GPU up to two
  // slices, of 128 pairs x children, or 64 where there are more than a million; beside them what the splits
  // of row gradients leave, and up to 35 MB of d_hidden's parts).
  template <typename T, typename H>
  int Gradient(const TreeArrays& tree, const TreeTable<T>& table, const H* hidden, const float* weights,
               const float* grad_loss, int64_t tokens, const TreeSaved& saved, int64_t scratch_bytes,
               H* d_hidden, int64_t* rows, T* row_grads, float* bias_grads);

  // The k most probable classes of every query, exact, by best-first search: log_probs [queries, k]
  // descending, ids [queries, k]; ties by the smaller id. k <= classes. row_child: [rows] class id, or ~node.
  // A query with NaN ends as soon as it has k classes; their log probabilities are NaN. *ok is false where
  // row_child names a node or class that does not exist, or nodes have several parents and so more rows were
  // met than there are.
  //
  // On a GPU the logits of a wide root are computed for many queries together, up to 256 MB of them. Then one
  // block a query, its open nodes in a heap of 1024 entries in shared memory. A query whose heap overflows is
  // searched again with a heap of `nodes` entries in device memory, which cannot overflow, so the answer
  // stays exact; several such queries share what memory there is and take their turns. Waits for the stream
  // twice.
  template <typename T, typename H, typename Id>
  int TopK(const TreeArrays& tree, const int32_t* row_child, const TreeTable<T>& table, const H* hidden,
           int64_t queries, int64_t k, float* log_probs, Id* ids, bool* ok);

 protected:
  const Call call_;
  Plan gradient_;

 private:
  std::conditional_t<kOnCpu, TreePairs, TreeLossPlan> loss_;
};

using TreeSoftmaxCpu = TreeSoftmax<CpuCall>;
using TreeSoftmaxGpu = TreeSoftmax<GpuCall>;

// TreeSoftmaxCpu::Gradient, but that row gradients go to `taker`: the same bits. Beside them at most about
// scratch_bytes are held.
template <typename T, typename H>
int TreeSoftmaxGradTo(const TreeArrays& tree, const TreeTable<T>& table, const H* hidden,
                      const float* weights, const float* grad_loss, int64_t tokens, const TreeSaved& saved,
                      int64_t scratch_bytes, H* d_hidden, int64_t* rows, TreeRowTaker<T>* taker,
                      float* bias_grads, const CpuCall& call);

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_H_
