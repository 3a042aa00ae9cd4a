// The CPU kernels of PartitionIds.
#include "exchange/exchange.h"
#include "exchange/op/exchange_kernel_op.h"

namespace largeout {
namespace {

#define LARGEOUT_REGISTER(Id)                                                                  \
  REGISTER_KERNEL_BUILDER(                                                                     \
      Name("Largeout>PartitionIds").Device(tensorflow::DEVICE_CPU).TypeConstraint<Id>("Tids"), \
      PartitionIdsOp<ExchangeCpu, Id>)
LARGEOUT_REGISTER(int32_t);
LARGEOUT_REGISTER(int64_t);
#undef LARGEOUT_REGISTER

}  // namespace
}  // namespace largeout
