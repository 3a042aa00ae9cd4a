// The instructions of tensor cores and of copies that do not wait (sm_80 and later), as functions. All lanes of a warp
// call those of tensor cores together.
#ifndef LARGEOUT_COMMON_CUDA_TENSOR_CORES_CUH_
#define LARGEOUT_COMMON_CUDA_TENSOR_CORES_CUH_

#include "common/cuda/cuda.h"

namespace largeout {

// Four 8 x 8 blocks of 2 bytes, or 8 x 4 blocks of 4 bytes, from shared memory. Lane l names row l % 8 of
// block l / 8 (16 bytes, aligned). Register i: of block i, row lane / 4, the bytes from 4 * (lane % 4) on;
// with kTranspose, for 2 bytes alone, of the transposed block.
template <bool kTranspose>
__device__ __forceinline__ void LoadBlocks(const void* row, uint32_t (&r)[4]) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTranspose) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  }
}

// c (16 x 8) += a (16 x 16) * b (16 x 8). c: rows lane / 4 and 8 more, columns 2 * (lane % 4) and the next.
// a: as LoadBlocks of (rows 0-7, k 0-7), (rows 8-15, k 0-7), (rows 0-7, k 8-15), (rows 8-15, k 8-15); b: of
// the columns, (k 0-7) and (k 8-15).
__device__ __forceinline__ void MultiplyBlocks(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                               uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c (16 x 8) += a (16 x 8) * b (8 x 8) in TF32: of the bits of a float32 the upper 19 count. c: as above.
// a: of rows lane / 4 and 8 more, first k = lane % 4, then 4 more; b: of column lane / 4, the same k.
__device__ __forceinline__ void MultiplyTf32Blocks(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                   uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// x in the lower half, y in the upper one.
__device__ __forceinline__ uint32_t PackBfloat16(float x, float y) {
  uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
  return both;
}

// Begins to copy the first `bytes` of kSize aligned bytes, 4 or 16, from global to shared memory, the others
// being zero there. The thread that began it sees them after WaitForCopies, others after a barrier more.
template <int kSize>
__device__ __forceinline__ void BeginCopy(void* shared, const void* global, int bytes = kSize) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  if constexpr (kSize == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(global), "n"(kSize),
                 "r"(bytes)
                 : "memory");
  }
}
// Makes one group of the copies that this thread began since the last call.
__device__ __forceinline__ void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all groups of this thread but the last kLeft are there.
template <int kLeft>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

}  // namespace largeout

#endif  // LARGEOUT_COMMON_CUDA_TENSOR_CORES_CUH_
