// RecordLookup: EmbeddingLookup in a table of records.
#include "embedding/embedding.h"
#include "embedding/op/embedding_kernel_op.h"
#include "embedding/op/embedding_shapes_op.h"
#include "row_update/op/records_shapes_op.h"

namespace largeout {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("Largeout>RecordLookup")
    .Input("variable: resource")
    .Input("ids: Tids")
    .Input("row_splits: int64")
    .Input("weights: float")
    .Output("output: dtype")
    .Output("written: bool")
    .Attr("dtype: {float, bfloat16}")
    .Attr("Tids: {int32, int64}")
    .Attr("combiner: {'none', 'sum', 'mean', 'sqrtn'} = 'none'")
    .Attr("out_of_range: {'error', 'zero'} = 'error'")
    .Attr("dim: int >= 1")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      int64_t dim;
      TF_RETURN_IF_ERROR(RecordsShape(c, &dim));
      ShapeHandle leading, output;
      TF_RETURN_IF_ERROR(LeadingShape(c, 1, &leading));
      TF_RETURN_IF_ERROR(c->Concatenate(leading, c->Vector(dim), &output));
      c->set_output(0, output);
      c->set_output(1, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"(EmbeddingLookup in the rows of records. See records.h.

variable: float32 [rows, words]: records of rows of `dim` values of type dtype.
ids, row_splits, weights, out_of_range: as in EmbeddingLookup.
output: as there. It is that of the rows where `written`.
written: scalar: whether all rows that the ids name were ever written.

An error, where the record of such a row is not the one that was written.
)");

template <typename T, typename Id>
class RecordLookupOp final : public EmbeddingOpBase<EmbeddingCpu> {
 public:
  explicit RecordLookupOp(tensorflow::OpKernelConstruction* context) : EmbeddingOpBase(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dim", &layout_.dim));
    OP_REQUIRES_OK(context, CheckDim(layout_.dim));
    layout_.value_bytes = sizeof(T);
  }

  void Run(tensorflow::OpKernelContext* context) override {
    LockedVariables variables;
    OP_REQUIRES_OK(context, variables.Find(context, 0, tensorflow::DT_FLOAT, "variable"));
    variables.Lock();
    const tensorflow::Tensor& records = variables[0];
    OP_REQUIRES_OK(context,
                   CheckRecords(records, layout_.Words(), absl::StrCat("a row of ", layout_.dim, " values")));
    const int64_t rows = records.dim_size(0), words = records.dim_size(1);
    OpCall<CpuCall> call(context);
    EmbeddingCpu device(call.get());
    Bags<Id> bags;
    tensorflow::TensorShape leading, shape;
    OP_REQUIRES_OK(context, CheckedBags(call, &device, 1, rows, &bags, &leading));
    OP_REQUIRES_OK(context, LookupShape(leading, layout_.dim, &shape));
    tensorflow::Tensor *output, *written;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &output));
    OP_REQUIRES_OK(context, context->allocate_output(1, {}, &written));
    written->scalar<bool>()() = true;
    if (output->NumElements() == 0) return;
    using Value = typename KernelType<T>::type;
    const float* first = Data<float>(records);
    const Value* row = reinterpret_cast<const Value*>(first + RecordLayout::kMarkWords);
    const int64_t stride = words * static_cast<int64_t>(sizeof(float) / sizeof(T));
    OP_REQUIRES_OK(context, call.Status(device.Lookup(row, rows, layout_.dim, stride, bags,
                                                      attributes_.combiner(), Data<T>(output))));
    int64_t damaged;
    written->scalar<bool>()() = AllWritten(first, rows, words, bags.ids, bags.num_ids, CheckedRows(records),
                                           &damaged, call.get().parallel);
    OP_REQUIRES_OK(context, CheckWhole(records, bags.ids, damaged));
  }

 private:
  RecordLayout layout_ = {};
};

#define LARGEOUT_RECORD_LOOKUP(T, Id)                         \
  REGISTER_KERNEL_BUILDER(Name("Largeout>RecordLookup")       \
                              .Device(tensorflow::DEVICE_CPU) \
                              .TypeConstraint<T>("dtype")     \
                              .TypeConstraint<Id>("Tids"),    \
                          RecordLookupOp<T, Id>)
LARGEOUT_RECORD_LOOKUP(float, int32_t);
LARGEOUT_RECORD_LOOKUP(float, int64_t);
LARGEOUT_RECORD_LOOKUP(Eigen::bfloat16, int32_t);
LARGEOUT_RECORD_LOOKUP(Eigen::bfloat16, int64_t);
#undef LARGEOUT_RECORD_LOOKUP

}  // namespace largeout
