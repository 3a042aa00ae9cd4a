// The resources of a call: threads or a stream, and memory. Launchers (X<Call> of x.h) are made of one. Ops make
// theirs of TensorFlow's context (common/op/call_op.h), tests of the system's own means (common/test/).
#ifndef LARGEOUT_COMMON_SCRATCH_H_
#define LARGEOUT_COMMON_SCRATCH_H_

#include <cstdint>

#include "common/parallel.h"

namespace largeout {

// Scratch memory on the device of the call.
class Scratch {
 public:
  virtual ~Scratch() = default;
  // Aligned to 64 bytes on a CPU and to 256 on a GPU. It lives as long as this object; on a GPU, until all
  // work that was launched before then has run. Null: no memory is left; the method that asked returns
  // kNoMemory.
  virtual void* Allocate(int64_t bytes) = 0;

  template <typename X>
  X* Take(int64_t n) {
    return static_cast<X*>(Allocate(n * static_cast<int64_t>(sizeof(X))));
  }
};

// Methods of launchers return 0, kNoMemory, or (on GPUs) an error of CUDA. CUDA calls this one
// cudaErrorMemoryAllocation.
constexpr int kNoMemory = 2;

#define LARGEOUT_RETURN_IF_ERROR(call) \
  do {                                 \
    const int error_ = (call);         \
    if (error_ != 0) return error_;    \
  } while (0)

struct GpuCall;  // common/cuda/cuda.h

struct CpuCall {
  struct Late {};  // on a CPU no error comes late (common/cuda/late_report.h)
  Parallel* parallel;
  Scratch* scratch;
};

}  // namespace largeout

#endif  // LARGEOUT_COMMON_SCRATCH_H_
