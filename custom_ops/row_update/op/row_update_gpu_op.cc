// The kernel for the GPU: see row_update_cuda.h for what runs there.
#if LARGEOUT_CUDA
#include "common/op/tf_gpu_op.h"
#include "row_update/cuda/row_update_cuda.h"
#include "row_update/op/row_update_op.h"

namespace largeout {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

template <typename T, typename G, typename Id>
class RowUpdateGpuOp final : public RowUpdateOpBase {
 public:
  using RowUpdateOpBase::RowUpdateOpBase;

  void Compute(OpKernelContext* context) override {
    const Tensor &indices = context->input(1 + info().slots), &values = context->input(2 + info().slots),
                 &hyper = context->input(3 + info().slots);
    const GpuStream stream = ContextStream(context);
    Update update;
    OP_REQUIRES_OK(context, update.Find(context, tensorflow::DataTypeToEnum<T>::value, info().slots));
    for (tensorflow::Var* variable : update.all) OP_REQUIRES_OK(context, OwnMemory(context, variable));
    Locks locks(update.all);
    OP_REQUIRES_OK(context, update.CheckShapes(info(), indices, values, hyper));
    Tensor* table = update.variable->tensor();
    const int64_t rows = table->dim_size(0), dim = rows == 0 ? 0 : table->NumElements() / rows,
                  n = indices.NumElements();
    if (n == 0) return;
    float* slots[kMaxSlots] = {};
    for (size_t i = 0; i < update.slots.size(); ++i) slots[i] = Data<float>(update.slots[i]->tensor());
    int error = 0;
    const int64_t bytes = static_cast<int64_t>(RowUpdateWorkspaceCuda(n, sizeof(Id), &error));
    OP_REQUIRES_OK(context, GpuStatus(error));
    Tensor workspace;
    OP_REQUIRES_OK(context, context->allocate_temp(tensorflow::DT_UINT8, {bytes}, &workspace));
    BadIndex bad;
    error = RowUpdateCuda(rule_, Data<T>(table), rows, dim, slots, indices.flat<Id>().data(), n,
                          Data<G>(values), hyper.flat<float>().data(), workspace.data(), bytes, stream, &bad);
    OP_REQUIRES_OK(context, GpuStatus(error));
    OP_REQUIRES(context, bad.position < 0, IndexError(bad.position, bad.index, rows));
  }
};

#define REGISTER(T, G, Id)                                     \
  REGISTER_KERNEL_BUILDER(Name("Largeout>RowUpdate")           \
                              .Device(tensorflow::DEVICE_GPU)  \
                              .HostMemory("variable")          \
                              .HostMemory("slots")             \
                              .TypeConstraint<T>("dtype")      \
                              .TypeConstraint<G>("Tvalues")    \
                              .TypeConstraint<Id>("Tindices"), \
                          RowUpdateGpuOp<T, G, Id>)
#define REGISTER_IDS(T, G) \
  REGISTER(T, G, int32_t); \
  REGISTER(T, G, int64_t)
REGISTER_IDS(float, float);
REGISTER_IDS(float, Eigen::bfloat16);
REGISTER_IDS(Eigen::bfloat16, float);
REGISTER_IDS(Eigen::bfloat16, Eigen::bfloat16);
#undef REGISTER_IDS
#undef REGISTER

}  // namespace
}  // namespace largeout
#endif  // LARGEOUT_CUDA
