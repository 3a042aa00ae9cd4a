// How functions are marked that run on the host and on GPUs. For any file.
#ifndef LARGEOUT_COMMON_HOST_DEVICE_H_
#define LARGEOUT_COMMON_HOST_DEVICE_H_

// LARGEOUT_CUDA_CODE: this is a .cu file, compiled by nvcc or (in tests) by g++, see cuda_emulator/.
#if defined(__CUDACC__)
#define LARGEOUT_CUDA_CODE 1
#define LARGEOUT_HOST_DEVICE __host__ __device__
#else
#if defined(LARGEOUT_EMULATE_CUDA)
#define LARGEOUT_CUDA_CODE 1
#endif
#define LARGEOUT_HOST_DEVICE
#endif

#endif  // LARGEOUT_COMMON_HOST_DEVICE_H_
