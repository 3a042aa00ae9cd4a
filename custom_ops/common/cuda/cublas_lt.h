// The part of cuBLASLt's C interface that blas.cu calls, declared here: its header is in no package that a
// build needs. The types and numbers are those of cublasLt.h of CUDA 12 and 13, whose ABI is the same for
// them.
#ifndef LARGEOUT_COMMON_CUDA_CUBLAS_LT_H_
#define LARGEOUT_COMMON_CUDA_CUBLAS_LT_H_

#include <cstddef>
#include <cstdint>

#include "common/cuda/cuda.h"

namespace largeout {

struct CublasLtAlgorithm {
  uint64_t data[8];
};
struct CublasLtHeuristic {
  CublasLtAlgorithm algorithm;
  size_t workspace_bytes;
  int status;  // 0: the rest is valid
  float waves;
  int reserved[4];
};

constexpr int kCublasFloat = 0, kCublasBfloat16 = 14;        // cudaDataType
constexpr int kCublasIn32F = 68, kCublasInTf32 = 77;         // cublasComputeType_t
constexpr int kCublasTransposeA = 3, kCublasTransposeB = 4;  // cublasLtMatmulDescAttributes_t
constexpr int kCublasWorkspaceBytes = 1, kCublasReductions = 3, kCublasAlignmentOfA = 5,
              kCublasAlignmentOfB = 6, kCublasAlignmentOfC = 7,
              kCublasAlignmentOfD = 8;  // cublasLtMatmulPreferenceAttributes_t

// Each returns a cublasStatus_t, 0 for success. Descriptors are pointers to what the library keeps.
struct CublasLt {
  int (*Create)(void** handle);
  int (*MatmulDescCreate)(void** desc, int compute_type, int scale_type);
  int (*MatmulDescSetAttribute)(void* desc, int attribute, const void* value, size_t bytes);
  int (*MatmulDescDestroy)(void* desc);
  int (*MatrixLayoutCreate)(void** layout, int type, uint64_t rows, uint64_t columns, int64_t stride);
  int (*MatrixLayoutDestroy)(void* layout);
  int (*MatmulPreferenceCreate)(void** preference);
  int (*MatmulPreferenceSetAttribute)(void* preference, int attribute, const void* value, size_t bytes);
  int (*MatmulPreferenceDestroy)(void* preference);
  int (*MatmulAlgoGetHeuristic)(void* handle, void* desc, void* a, void* b, void* c, void* d,
                                void* preference, int wanted, CublasLtHeuristic* results, int* found);
  int (*Matmul)(void* handle, void* desc, const void* alpha, const void* a, void* a_layout, const void* b,
                void* b_layout, const void* beta, const void* c, void* c_layout, void* d, void* d_layout,
                const CublasLtAlgorithm* algorithm, void* workspace, size_t workspace_bytes,
                GpuStream stream);
};

// The library of the process: TensorFlow's, which loads it at the first call, or libcublasLt.so. Null if
// none is found.
const CublasLt* LoadedCublasLt();

}  // namespace largeout

#endif  // LARGEOUT_COMMON_CUDA_CUBLAS_LT_H_
