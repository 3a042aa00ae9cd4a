// Softmax over a tree: p(class | h) is the product of one softmax per node on the way from the root to the class.
//
// The children of a node are contiguous rows of one table, so a batch is a list of (token, node) *pairs*: a token has one
// pair for every node on the path of its target. Pairs are sorted by node; a *group* is the run of pairs of one node and is
// one small GEMM, softmax and cross-entropy straight on the table. Nothing is gathered per token, nothing has the size
// [tokens, classes].
//
//   TreePairs pairs;                                                      // CPU only; the CUDA twin builds its own
//   BuildTreePairs(tree, targets, weights, tokens, &parallel, &pairs);    // checks targets and the path's tree arrays
//   TreeSoftmaxLoss(tree, table, hidden, weights, tokens, pairs, ...);    // loss [tokens], lse [P], probs [S]
//   TreeSoftmaxGrad(...);                                                 // d_hidden, gradients of the rows of the groups
//
// The saved tensors between loss and gradient (the same on every device; P pairs, G groups, int32 unless stated):
//   pair_token  [P]    sorted by node, within a node by token
//   pair_row    [P]    the row that the path takes at this node
//   group_node  [G]    ascending, so a parent's group comes before its children's
//   group_start [G+1]  pairs group_start[g] .. group_start[g+1] belong to node group_node[g]; group_start[G] = P
//   pair_lse    [P]    float32, logsumexp of the node's logits
//   probs       [S]    float32, pair p of group g, child j: probs[prob_start(g) + (p - group_start[g]) * size(g) + j], where
//                      size(g) is the number of children and prob_start(g) the sum of pairs * size over earlier groups.
//                      S = prob_start(G), or 0 where that exceeds max_saved_bytes: then the gradient computes them anew.
// Row gradients: group g owns the next size(g) rows of the outputs, in order: rows [U] ascending, U = sum of size(g).
//
// hidden is float32 here: the caller converts bfloat16 (ToFloats), and sets in_bfloat16 of the table. T is the table's type,
// float or bfloat16.
// (On GPUs hidden vectors of bfloat16 are not converted for wide nodes: tree_softmax_cuda.h.)
// All memory belongs to the caller. The results do not depend on the number of threads.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_H_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_H_

#include <cstdint>
#include <vector>

#include "common/bfloat16.h"
#include "common/parallel.h"

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
  // On a CPU: products of wide nodes may be of bfloat16, with sums in float32, where the processor has them.
  // Rows of float32, and the gradients of logits, are then rounded. (On a GPU hidden vectors of bfloat16 say so.)
  bool in_bfloat16 = false;
};

// Whether that is for a node of so many pairs and children.
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

// A token of weight 0 is skipped: no pairs, its target may be anything. weights: [tokens], or null for all 1.
template <typename Id>
TreeStatus BuildTreePairs(const TreeArrays& tree, const Id* targets, const float* weights, int64_t tokens,
                          Parallel* parallel, TreePairs* pairs);

// loss[t] = weights[t] * sum over the path of (lse - logit of the row), 0 where the weight is 0. pair_lse: [P]. probs:
// [pairs.prob_count], or null (nothing of that size is then allocated).
template <typename T>
void TreeSoftmaxLoss(const TreeArrays& tree, const TreeTable<T>& table, const float* hidden, const float* weights,
                     int64_t tokens, const TreePairs& pairs, float* loss, float* pair_lse, float* probs, Parallel* parallel);

// The sizes of a batch's paths: P, G and S of above; or what is wrong with them.
struct TreePaths {
  TreeStatus status = TreeStatus::kOk;
  int64_t bad_position = -1, bad_target = -1;  // of TreePairs, and the target there
  int64_t pairs = 0, groups = 0, probs = 0;
};

// What the loss leaves behind. Sizes: tokens, and the P, G and S of above.
struct TreeLossOutputs {
  float* loss;                                                // [tokens]
  int32_t *pair_token, *pair_row, *group_node, *group_start;  // [P] [P] [G] [G + 1], or all null: not wanted
  float* pair_lse;                                            // [P]
  float* probs;                                               // [S], or null: they are not saved
};

// The saved tensors, as the gradient reads them.
struct TreeSaved {
  const int32_t *pair_token, *pair_row, *group_node, *group_start;
  const float *pair_lse, *probs;  // probs: null to compute them anew
  int64_t pairs, groups;
};

// True when every index that the gradient follows is in range and groups are ascending, non-empty and cover the pairs.
// Writes U to *unique_rows, and the size that probs must have to *prob_count.
bool CheckTreeSaved(const TreeArrays& tree, const TreeSaved& saved, int64_t tokens, int64_t* unique_rows,
                    int64_t* prob_count);

// Its answer, and these sizes.
struct TreeTouched {
  bool ok = true;
  int64_t rows = 0, probs = 0;
};

// With g = (prob - onehot(row)) * grad_loss[t] * weights[t]: d_hidden[t] = sum of g * table row over the path's nodes, 0 for
// skipped tokens; row_grads = sum of g * hidden[t] over a node's tokens; bias_grads = sum of g. Every output element is
// written, none is read before. bias_grads may be null. tree: only node_start, node_parent and sizes are read.
// scratch_bytes bounds what large nodes keep of probabilities when saved.probs is null.
template <typename T>
void TreeSoftmaxGrad(const TreeArrays& tree, const TreeTable<T>& table, const float* hidden, const float* weights,
                     const float* grad_loss, int64_t tokens, const TreeSaved& saved, int64_t scratch_bytes,
                     float* d_hidden, int64_t* rows, T* row_grads, float* bias_grads, Parallel* parallel);

// Takes the gradients of rows as they are made, in the place of an array with all of them.
template <typename T>
class TreeRowTaker {
 public:
  virtual ~TreeRowTaker() = default;
  // grads [n, dim] are those of the rows [first, first + n) of the table, which are not read any more: they
  // may be changed. On any thread, different rows each time; rows [first + n, first + n + next) come next on
  // it.
  virtual void Take(int64_t first, int64_t n, int64_t next, const T* grads) = 0;
};

// The same, but that row gradients go to `taker`: the same bits. Beside them at most about scratch_bytes are
// held.
template <typename T>
void TreeSoftmaxGradTo(const TreeArrays& tree, const TreeTable<T>& table, const float* hidden,
                       const float* weights, const float* grad_loss, int64_t tokens, const TreeSaved& saved,
                       int64_t scratch_bytes, float* d_hidden, int64_t* rows, TreeRowTaker<T>* taker,
                       float* bias_grads, Parallel* parallel);

// The k most probable classes of every query, exact, by best-first search: log_probs [queries, k] descending, ids
// [queries, k]; ties by the smaller id. k <= classes. row_child: [rows] class id, or ~node. A query with NaN ends as soon
// as it has k classes; their log probabilities are NaN. False: row_child names a node or class that does not
// exist, or nodes have several parents and so more rows were met than there are.
template <typename T, typename Id>
bool TreeTopK(const TreeArrays& tree, const int32_t* row_child, const TreeTable<T>& table, const float* hidden,
              int64_t queries, int64_t k, float* log_probs, Id* ids, Parallel* parallel);

// bfloat16 <-> float32, vectorised.
void ToFloats(const bfloat16* in, int64_t n, float* out, Parallel* parallel);
void FromFloats(const float* in, int64_t n, bfloat16* out, Parallel* parallel);

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_H_
