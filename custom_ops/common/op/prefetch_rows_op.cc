#include "common/mapped_file.h"
#include "common/op/locked_variables_op.h"

namespace largeout {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("Largeout>PrefetchRows")
    .Input("variable: resource")
    .Input("indices: Tindices")
    .Attr("Tindices: {int32, int64}")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle table = TableShape(c, 0), indices;
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(table, 1, &table));
      return c->WithRank(c->input(1), 1, &indices);
    })
    .Doc(R"(Asks for rows of a variable whose memory is a file, so that they are there when they are used.

It does not wait for them. Where the memory is no file, nothing happens.

variable: [rows, ...], of any type.
indices: [n], the rows, in any order. The disk likes them in ascending order.
)");

template <typename Id>
class PrefetchRowsOp : public GuardedOp {
 public:
  using GuardedOp::GuardedOp;

  void Run(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor& indices = context->input(1);
    OP_REQUIRES(context, indices.dims() == 1,
                absl::InvalidArgumentError(absl::StrCat("`indices` must have the shape [n]. Received: shape=",
                                                        indices.shape().DebugString())));
    // The lock keeps the mapping. (A tensor that shares it would make TensorFlow copy it at an update.)
    LockedVariables variables;
    OP_REQUIRES_OK(context, variables.Find(context, 0, tensorflow::DT_INVALID, "variable"));
    variables.Lock();
    const tensorflow::Tensor& table = variables[0];
    OP_REQUIRES(
        context, table.dims() >= 1,
        absl::InvalidArgumentError(absl::StrCat("`variable` must have at least one axis. Received: shape=",
                                                table.shape().DebugString())));
    const int64_t rows = table.dim_size(0), n = indices.NumElements();
    const Id* ids = Data<Id>(indices);
    for (int64_t i = 0; i < n; ++i) {
      OP_REQUIRES(context, ids[i] >= 0 && ids[i] < rows,
                  absl::InvalidArgumentError(absl::StrCat("`indices` must be in [0, ", rows,
                                                          "), the rows of `variable`. Received: indices[", i,
                                                          "] = ", ids[i])));
    }
    if (n == 0 || FileAccessOf(table) == FileAccess::kNoFile) return;
    ContextParallel parallel(context);
    WillNeed(table.data(), static_cast<int64_t>(table.TotalBytes()) / rows, ids, n, &parallel);
  }
};

REGISTER_KERNEL_BUILDER(
    Name("Largeout>PrefetchRows").Device(tensorflow::DEVICE_CPU).TypeConstraint<int32_t>("Tindices"),
    PrefetchRowsOp<int32_t>);
REGISTER_KERNEL_BUILDER(
    Name("Largeout>PrefetchRows").Device(tensorflow::DEVICE_CPU).TypeConstraint<int64_t>("Tindices"),
    PrefetchRowsOp<int64_t>);

}  // namespace largeout
