// The mark of functions that run on the host and on GPUs. For any file.
#ifndef LARGEOUT_COMMON_HOST_DEVICE_H_
#define LARGEOUT_COMMON_HOST_DEVICE_H_

// LARGEOUT_CUDA_CODE: this is a .cu file. A build by another compiler than nvcc defines it.
#if defined(__CUDACC__)
#define LARGEOUT_CUDA_CODE 1
#define LARGEOUT_HOST_DEVICE __host__ __device__
#else
#define LARGEOUT_HOST_DEVICE
#endif

#endif  // LARGEOUT_COMMON_HOST_DEVICE_H_
