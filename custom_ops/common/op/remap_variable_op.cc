#include <utility>

#include "common/op/locked_variables_op.h"
#include "common/op/table_sizes_op.h"

namespace largeout {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("Largeout>RemapVariable")
    .Input("variable: resource")
    .Input("path: string")
    .Input("shape: int64")
    .Attr("dtype: {float, bfloat16, uint8}")
    .Attr("read_only: bool = false")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle path, shape;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &path));
      TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(2, &shape));
      return c->Merge(TableShape(c, 0), shape, &shape);
    })
    .Doc(R"(Another file as the memory of a variable: what MappedTable returns, without a copy.

An assignment would copy the whole file into memory after the first sparse update of the variable.

variable: of type dtype. It is locked: what reads or updates it sees one file or the other.
path: scalar: the file. It is made where it is not there.
shape: [rank]: the shape of the table; an existing file must have just its bytes.
read_only: the file must be there, and nothing may be written to `variable`.
)");

class RemapVariableOp : public GuardedOp {
 public:
  explicit RemapVariableOp(tensorflow::OpKernelConstruction* context) : GuardedOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(context, context->GetAttr("read_only", &read_only_));
  }

  void Run(tensorflow::OpKernelContext* context) override {
    tensorflow::Tensor table;  // then the memory before: it goes after the lock
    LockedVariables variables;
    OP_REQUIRES_OK(context, variables.Find(context, 0, dtype_, "variable", LockedVariables::kWrite));
    tensorflow::TensorShape shape;
    OP_REQUIRES_OK(context, ShapeOfSizes(context->input(2), dtype_, &shape));
    OP_REQUIRES_OK(context, CheckDeclared(context, shape));
    OP_REQUIRES_OK(context, MappedTensor(context->input(1), context->input(2), dtype_, read_only_, &table));
    variables.Lock();
    std::swap(*variables.writable(0), table);
  }

 private:
  // The shape that the variable was declared with, which graphs rely on, allows this one.
  static absl::Status CheckDeclared(tensorflow::OpKernelContext* context,
                                    const tensorflow::TensorShape& shape) {
    tensorflow::ResourceHandle handle;
    TF_RETURN_IF_ERROR(tensorflow::HandleFromInput(context, 0, &handle));
    for (const auto& declared : handle.dtypes_and_shapes()) {
      if (declared.shape.IsCompatibleWith(shape)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("`shape` must be one that `variable` may have: ", declared.shape.DebugString(),
                       ". Received: ", shape.DebugString()));
    }
    return absl::OkStatus();
  }

  tensorflow::DataType dtype_ = tensorflow::DT_FLOAT;
  bool read_only_ = false;
};

REGISTER_KERNEL_BUILDER(Name("Largeout>RemapVariable").Device(tensorflow::DEVICE_CPU), RemapVariableOp);

}  // namespace largeout
