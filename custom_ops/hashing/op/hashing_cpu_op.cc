// The CPU kernels of XxHash64 and CategoryHash. There are no others: see hashing.h.
#include "hashing/hashing.h"
#include "hashing/op/hashing_kernel_op.h"

namespace largeout {
namespace {

REGISTER_KERNEL_BUILDER(Name("Largeout>XxHash64").Device(tensorflow::DEVICE_CPU), XxHash64Op<HashingCpu>);
REGISTER_KERNEL_BUILDER(Name("Largeout>CategoryHash").Device(tensorflow::DEVICE_CPU),
                        CategoryHashOp<HashingCpu>);

}  // namespace
}  // namespace largeout
