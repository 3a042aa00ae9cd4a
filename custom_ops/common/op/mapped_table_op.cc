#include <string>

#include "common/mapped_file.h"
#include "common/op/guarded_op.h"
#include "common/op/table_sizes_op.h"

namespace largeout {

using tensorflow::DEVICE_CPU;

REGISTER_OP("Largeout>MappedTable")
    .Input("path: string")
    .Input("shape: int64")
    .Output("table: dtype")
    .Attr("dtype: {float, bfloat16, uint8}")
    .Attr("read_only: bool = false")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
      tensorflow::shape_inference::ShapeHandle shape;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &shape));
      TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(1, &shape));
      c->set_output(0, shape);
      return absl::OkStatus();
    })
    .Doc(R"(A file as the memory of a large table. A new one is sparse, and reads as zeros.

path: scalar: the file. It is made where it is not there.
shape: [rank]: the shape of the table; an existing file must have just its bytes.
table: what is written there is in the file. The file stays mapped as long as this memory is used.
read_only: the file must be there, and nothing may be written to `table`: the process would end.
)");

namespace {

class MappedBuffer final : public tensorflow::TensorBuffer {
 public:
  MappedBuffer(void* data, size_t bytes) : TensorBuffer(data), bytes_(bytes) {}
  ~MappedBuffer() override { UnmapFile(data(), bytes_); }
  size_t size() const override { return bytes_; }
  tensorflow::TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription*) const override {}

 private:
  const size_t bytes_;
};

}  // namespace

class MappedTableOp : public GuardedOp {
 public:
  explicit MappedTableOp(tensorflow::OpKernelConstruction* context) : GuardedOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("read_only", &read_only_));
  }

  void Run(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor& path = context->input(0);
    OP_REQUIRES(context, tensorflow::TensorShapeUtils::IsScalar(path.shape()),
                absl::InvalidArgumentError(
                    absl::StrCat("`path` must be a scalar. Received: shape ", path.shape().DebugString())));
    tensorflow::TensorShape shape;
    OP_REQUIRES_OK(context, ShapeOfSizes(context->input(1), output_type(0), &shape));
    if (shape.num_elements() == 0) {
      tensorflow::Tensor* nothing;
      OP_REQUIRES_OK(context, context->allocate_output(0, shape, &nothing));
      return;
    }
    const std::string name(path.scalar<tensorflow::tstring>()());
    const size_t bytes = static_cast<size_t>(shape.num_elements() * tensorflow::DataTypeSize(output_type(0)));
    std::string error;
    void* data = MapFile(name, bytes, read_only_, &error);
    OP_REQUIRES(context, data != nullptr,
                absl::FailedPreconditionError(absl::StrCat("`path` must be a file for a table of shape ",
                                                           shape.DebugString(), ". Received: ", name, "; ", error)));
    auto* buffer = new MappedBuffer(data, bytes);
    context->set_output(0, tensorflow::Tensor(output_type(0), shape, buffer));
    buffer->Unref();  // the tensor has a reference of its own
  }

 private:
  bool read_only_ = false;
};

REGISTER_KERNEL_BUILDER(Name("Largeout>MappedTable").Device(DEVICE_CPU), MappedTableOp);

}  // namespace largeout
