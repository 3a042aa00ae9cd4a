// Checks and inputs of the kernels of tree_softmax. Looks at shapes only, never at the memory of tensors that
// may be on a GPU.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_OP_H_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_OP_H_

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "common/op/shapes_op.h"
#include "common/op/table_op.h"
#include "tree_softmax/tree_softmax.h"

namespace largeout {

// A table and its bias as kernels take them; T is TensorFlow's type.
template <typename T>
TreeTable<typename KernelType<T>::type> TreeTableOf(const TableAndBias& variables) {
  const tensorflow::Tensor *bias = variables.bias(), &table = variables.table();
  return {Data<T>(table), bias != nullptr ? Data<float>(*bias) : nullptr, table.dim_size(1)};
}

// The int32 arrays of the tree, which are in host memory, where the kernels of a device read them.
template <typename Call>
class TreeOnDevice;
template <>
class TreeOnDevice<CpuCall> {
 public:
  using Wanted =
      std::initializer_list<std::pair<int, const int32_t**>>;  // an input, and where to say where it is
  static absl::Status Get(tensorflow::OpKernelContext* context, const Wanted& wanted,
                          std::vector<tensorflow::Tensor>*) {
    for (const auto& [at, data] : wanted) *data = Data<int32_t>(context->input(at));
    return absl::OkStatus();
  }
};

// Null for weights of shape [0]: all 1.
inline const float* WeightsOf(const tensorflow::Tensor& weights) {
  return weights.NumElements() > 0 ? Data<float>(weights) : nullptr;
}

// The tree at inputs at .. at + 4 (class_row, node_start, node_row, node_parent, row_hint) of a table with
// `rows` rows. A forest (several nodes without a parent) may use fewer rows: as many as row_hint covers, at
// most.
inline absl::Status OpenTree(tensorflow::OpKernelContext* context, int at, int64_t rows, bool forest,
                             TreeArrays* tree) {
  const tensorflow::Tensor &class_row = context->input(at), &node_row = context->input(at + 2);
  if (class_row.dims() != 1 || node_row.dims() != 1 || class_row.dim_size(0) < 1 ||
      node_row.dim_size(0) < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("`class_row` and `node_row` must have rank 1 and not be empty. Received: shapes ",
                     class_row.shape().DebugString(), " and ", node_row.shape().DebugString()));
  }
  const int64_t classes = class_row.dim_size(0), nodes = node_row.dim_size(0);
  const tensorflow::Tensor& row_hint = context->input(at + 4);
  if (forest) {
    rows = std::min<int64_t>(rows, 16 * row_hint.NumElements());
  } else if (classes + nodes - 1 != rows) {
    return absl::InvalidArgumentError(absl::StrCat("`table` must have classes + nodes - 1 = ", classes, " + ",
                                                   nodes, " - 1 rows. Received: ", rows));
  }
  TF_RETURN_IF_ERROR(CheckShape(context->input(at + 1), "node_start", {nodes + 1}));
  TF_RETURN_IF_ERROR(CheckShape(context->input(at + 3), "node_parent", {nodes}));
  TF_RETURN_IF_ERROR(CheckShape(row_hint, "row_hint", {(rows + 15) / 16}));
  *tree = {Data<int32_t>(class_row),
           Data<int32_t>(context->input(at + 1)),
           Data<int32_t>(node_row),
           Data<int32_t>(context->input(at + 3)),
           Data<int32_t>(row_hint),
           classes,
           nodes,
           rows};
  return absl::OkStatus();
}

// The saved tensors at inputs at .. at + 5: their ranks and sizes (CheckTreeSaved looks at the values).
inline absl::Status OpenSaved(tensorflow::OpKernelContext* context, int at, TreeSaved* saved) {
  const int64_t pairs = context->input(at).NumElements(), groups = context->input(at + 2).NumElements();
  TF_RETURN_IF_ERROR(CheckShape(context->input(at), "pair_token", {pairs}));
  TF_RETURN_IF_ERROR(CheckShape(context->input(at + 1), "pair_row", {pairs}));
  TF_RETURN_IF_ERROR(CheckShape(context->input(at + 2), "group_node", {groups}));
  TF_RETURN_IF_ERROR(CheckShape(context->input(at + 3), "group_start", {groups + 1}));
  TF_RETURN_IF_ERROR(CheckShape(context->input(at + 4), "pair_lse", {pairs}));
  TF_RETURN_IF_ERROR(CheckShape(context->input(at + 5), "probs", {context->input(at + 5).NumElements()}));
  const tensorflow::Tensor& probs = context->input(at + 5);
  *saved = {Data<int32_t>(context->input(at)),
            Data<int32_t>(context->input(at + 1)),
            Data<int32_t>(context->input(at + 2)),
            Data<int32_t>(context->input(at + 3)),
            Data<float>(context->input(at + 4)),
            probs.NumElements() > 0 ? Data<float>(probs) : nullptr,
            pairs,
            groups};
  return absl::OkStatus();
}

// The same in a shape function, for node_start [N + 1] at `at`, node_parent [N], and the saved tensors after
// them.
inline absl::Status SavedShapes(tensorflow::shape_inference::InferenceContext* c, int at) {
  tensorflow::shape_inference::ShapeHandle parents, pairs, vector;
  tensorflow::shape_inference::DimensionHandle starts;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(at + 1), 1, &parents));
  TF_RETURN_IF_ERROR(c->Add(c->Dim(parents, 0), 1, &starts));
  TF_RETURN_IF_ERROR(VectorShape(c, at, starts, "node_start"));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(at + 2), 1, &pairs));
  TF_RETURN_IF_ERROR(VectorShape(c, at + 3, c->Dim(pairs, 0), "pair_row"));
  TF_RETURN_IF_ERROR(VectorShape(c, at + 6, c->Dim(pairs, 0), "pair_lse"));
  for (const int other : {at + 4, at + 5, at + 7})
    TF_RETURN_IF_ERROR(c->WithRank(c->input(other), 1, &vector));
  return absl::OkStatus();
}

// The tree of a gradient: node_start and node_parent at `at` and at + 1, for a table with `rows` rows; their
// memory is not looked up yet.
inline absl::Status OpenNodes(tensorflow::OpKernelContext* context, int at, int64_t rows, TreeArrays* tree) {
  const int64_t nodes = context->input(at + 1).NumElements();
  TF_RETURN_IF_ERROR(CheckShape(context->input(at + 1), "node_parent", {nodes}));
  TF_RETURN_IF_ERROR(CheckShape(context->input(at), "node_start", {nodes + 1}));
  *tree = {nullptr, nullptr, nullptr, nullptr, nullptr, 0, nodes, rows};
  return absl::OkStatus();
}

// What went wrong with the paths of the targets.
inline absl::Status BadPaths(const TreePaths& paths, int64_t classes) {
  switch (paths.status) {
    case TreeStatus::kOk:
      return absl::OkStatus();
    case TreeStatus::kBadTarget:
      return absl::InvalidArgumentError(
          absl::StrCat("`targets` must be in [0, ", classes, "), the classes of the tree. ",
                       "Received: ", paths.bad_target, " at position ", paths.bad_position));
    case TreeStatus::kBadTree:
      return absl::InvalidArgumentError(absl::StrCat(
          "`class_row`, `node_start`, `node_row`, `node_parent` and `row_hint` must describe one tree. ",
          "Received: arrays in which the path of class ", paths.bad_target, " does not lead to the root"));
    default:
      return absl::InvalidArgumentError(
          "`targets` must have less than 2^31 (token, node) pairs. Received: more");
  }
}

inline absl::Status BadSaved() {
  return absl::InvalidArgumentError(
      "`pair_token`, `pair_row`, `group_node`, `group_start` and `probs` must be outputs "
      "of the loss op for the same tree. Received: values out of range");
}

// k, node_start and row_child at inputs 1, 4 and 5 of TreeTopK, for a table with `rows` rows.
inline absl::Status OpenTopK(tensorflow::OpKernelContext* context, int64_t rows, TreeArrays* tree,
                             int64_t* k) {
  TF_RETURN_IF_ERROR(CheckShape(context->input(5), "row_child", {rows}));
  const tensorflow::Tensor &starts = context->input(4), &k_tensor = context->input(1);
  const int64_t nodes = starts.NumElements() - 1, classes = rows - nodes + 1;
  if (starts.dims() != 1 || nodes < 1 || classes < 1) {
    return absl::InvalidArgumentError(absl::StrCat("`node_start` must have rank 1 and 2 to ", rows + 1,
                                                   " values. Received: shape ",
                                                   starts.shape().DebugString()));
  }
  if (k_tensor.dims() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("`k` must be a scalar. Received: shape ", k_tensor.shape().DebugString()));
  }
  *k = k_tensor.scalar<int32_t>()();
  if (*k < 0 || *k > classes) {
    return absl::InvalidArgumentError(
        absl::StrCat("`k` must be in [0, ", classes, "], the number of classes. Received: k=", *k));
  }
  *tree = {nullptr, Data<int32_t>(starts), nullptr, nullptr, nullptr, classes, nodes, rows};
  return absl::OkStatus();
}

inline absl::Status BadTopKTree() {
  return absl::InvalidArgumentError(
      "`node_start` and `row_child` must describe one tree. Received: arrays that name rows, "
      "nodes or classes that do not exist, or nodes of several parents");
}

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_OP_H_
