// The CUDA twin of fan_in_rewire.h: the same connections, bit for bit, in device memory. A class is drawn,
// pruned and regrown by one thread; classes are many, and this is done once in hundreds of steps.
#ifndef LARGEOUT_FAN_IN_FAN_IN_REWIRE_CUDA_H_
#define LARGEOUT_FAN_IN_FAN_IN_REWIRE_CUDA_H_

#include "common/cuda/cuda.h"
#include "fan_in/fan_in_rewire.h"

namespace largeout {

// Bytes of workspace to draw up to `count` inputs for each of `rows` classes that have `fan_in` connections.
// For FanInConnectionsCuda fan_in = 0, for FanInRewireCuda count = 2 * fan_in.
int64_t FanInDrawWorkspaceCuda(int64_t rows, int64_t fan_in, int64_t count, int64_t inputs,
                               int num_slots = 0);

// Does not wait.
template <typename Id>
int FanInConnectionsCuda(int64_t rows, int64_t fan_in, int64_t inputs, uint64_t key, int64_t first_class,
                         Id* indices, void* workspace, GpuStream stream);

// Waits for the stream, since an index outside [0, inputs) must be known before candidates are drawn: *bad is
// -1 or its row.
template <typename Id>
int FanInCandidatesCuda(const Id* indices, int64_t fan_in, int64_t inputs, uint64_t key, int64_t first_class,
                        int64_t first_row, int64_t rows, int64_t count, int32_t* candidates, void* workspace,
                        GpuStream stream, int64_t* bad);

// Does not wait.
template <typename T>
int FanInKeyCountsCuda(const T* weights, int64_t rows, int64_t fan_in, uint64_t key, int64_t first_class,
                       uint64_t prefix, int digit, int64_t* counts, GpuStream stream);

// Waits for the stream before anything is changed; *bad and *bad_candidate are as FanInRewire's result. All
// pointers in r but `slots` itself, and changes, are device pointers.
template <typename T, typename Id>
int FanInRewireCuda(const FanInRewiring<T, Id>& r, int64_t* changes, void* workspace, GpuStream stream,
                    int64_t* bad, bool* bad_candidate);

// Bytes of workspace for FanInDegreesCuda.
constexpr int64_t kFanInDegreesWorkspaceCuda = 256;

// Waits for the stream.
template <typename Id>
int FanInDegreesCuda(const Id* indices, int64_t rows, int64_t fan_in, int64_t inputs, int64_t* degrees,
                     void* workspace, GpuStream stream, int64_t* bad);

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_REWIRE_CUDA_H_
