// Matrix products by cuBLASLt, where the process has it: on a GPU with TensorFlow always. Nothing is linked,
// and a process without the library, or without a GPU, gets a null Blas.
//
//   Blas* blas = Blas::OfDevice(call);
//   void* workspace = call.scratch->Allocate(Blas::kWorkspaceBytes);
//   blas->Multiply({rows, columns, depth}, BlasFactor<float>{a, depth, false}, {b, depth, true}, false,
//                  out, columns, workspace, call.stream)
//
// Matrices are row-major. Factors of bfloat16 are multiplied as they are, those of float are rounded to TF32;
// sums are float32. Products of the same sizes, strides and alignments on one GPU with one library have the
// same bits every time: algorithms that add up parts in memory are not used.
#ifndef LARGEOUT_COMMON_CUDA_BLAS_H_
#define LARGEOUT_COMMON_CUDA_BLAS_H_

#include <array>
#include <cstdint>
#include <map>
#include <mutex>

#include "common/bfloat16.h"
#include "common/cuda/cublas_lt.h"

namespace largeout {

// Multiply returns it where the library has no product of this kind, or refuses it. Nothing is in `out`
// then that may be used; the caller has its own kernels.
constexpr int kNoProduct = -1;

struct BlasSizes {
  int64_t rows, columns, depth;  // each at least 1 and below 2^31
};

// [rows, depth] (of the second factor [depth, columns]), or transposed: in memory the other way round.
// `stride`: elements from row to row of what is in memory.
template <typename F>
struct BlasFactor {
  const F* data;
  int64_t stride;
  bool transposed;
};

class Blas {
 public:
  static constexpr int64_t kWorkspaceBytes = 32 << 20;  // what NVIDIA advises for Hopper

  // That of the current device, made by the first call, which multiplies a few small matrices, looks at the
  // results and so waits for the GPU. Null: there is no library, it fails, its products are wrong, or the
  // environment has LARGEOUT_CUBLAS=0.
  static Blas* OfDevice(const GpuCall& call);

  explicit Blas(const CublasLt* library) : library_(library) {}
  Blas(const Blas&) = delete;

  // out [rows, columns] = a b, or with `add` out + a b. F: float or bfloat16. O: float; or bfloat16, if F is.
  template <typename F, typename O>
  int Multiply(const BlasSizes& sizes, const BlasFactor<F>& a, const BlasFactor<F>& b, bool add, O* out,
               int64_t out_stride, void* workspace, GpuStream stream);

 private:
  // The description of a product for the library, as numbers: kinds, sizes, strides, alignments.
  using Key = std::array<int64_t, 13>;
  struct Plan {
    void *desc = nullptr, *a = nullptr, *b = nullptr, *out = nullptr;
    CublasLtHeuristic best = {};
    bool usable = false;
  };

  bool Open(const GpuCall& call);
  template <typename F>
  bool IsRight(const GpuCall& call, void* workspace, bool transposed_a, bool transposed_b, bool add);
  Plan Make(const Key& key) const;
  void Forget(const Plan& plan) const;

  const CublasLt* const library_;
  void* handle_ = nullptr;
  std::mutex mutex_;
  std::map<Key, Plan> plans_;
};

}  // namespace largeout

#endif  // LARGEOUT_COMMON_CUDA_BLAS_H_
