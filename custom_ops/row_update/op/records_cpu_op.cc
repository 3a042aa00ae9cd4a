// The CPU kernels of RecordUpdate, WriteRecords and GatherRecords. There are no others: see records.h.
#include "row_update/op/records_kernel_op.h"
#include "row_update/records.h"

namespace largeout {
namespace {

#define LARGEOUT_RECORD_UPDATE(T, G, Id)                       \
  REGISTER_KERNEL_BUILDER(Name("Largeout>RecordUpdate")        \
                              .Device(tensorflow::DEVICE_CPU)  \
                              .TypeConstraint<T>("dtype")      \
                              .TypeConstraint<G>("Tvalues")    \
                              .TypeConstraint<Id>("Tindices"), \
                          RecordUpdateOp<RecordsCpu, T, G, Id>)
#define LARGEOUT_RECORDS(Id)                                                                        \
  LARGEOUT_RECORD_UPDATE(float, float, Id);                                                         \
  LARGEOUT_RECORD_UPDATE(float, Eigen::bfloat16, Id);                                               \
  LARGEOUT_RECORD_UPDATE(Eigen::bfloat16, float, Id);                                               \
  LARGEOUT_RECORD_UPDATE(Eigen::bfloat16, Eigen::bfloat16, Id);                                     \
  REGISTER_KERNEL_BUILDER(                                                                          \
      Name("Largeout>WriteRecords").Device(tensorflow::DEVICE_CPU).TypeConstraint<Id>("Tindices"),  \
      WriteRecordsOp<RecordsCpu, Id>);                                                              \
  REGISTER_KERNEL_BUILDER(                                                                          \
      Name("Largeout>GatherRecords").Device(tensorflow::DEVICE_CPU).TypeConstraint<Id>("Tindices"), \
      GatherRecordsOp<RecordsCpu, Id>)
LARGEOUT_RECORDS(int32_t);
LARGEOUT_RECORDS(int64_t);
#undef LARGEOUT_RECORDS
#undef LARGEOUT_RECORD_UPDATE

}  // namespace
}  // namespace largeout
