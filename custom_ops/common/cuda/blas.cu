#include "common/cuda/blas.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

namespace largeout {
namespace {

constexpr size_t kMostPlans = 1024;  // that are kept: batches of ever other sizes need ever other plans

// The positions of a Blas::Key.
enum : int {
  kFactorType,
  kOutType,
  kTransposedA,
  kTransposedB,
  kAdds,
  kRows,
  kColumns,
  kDepth,
  kStrideA,
  kStrideB,
  kStrideOut,
  kAlignments,  // of a and b: their logarithms, 16 a + b
  kAlignmentOut
};

// The largest power of two, at most 256, that divides an address and the bytes from row to row: its logarithm.
int64_t Alignment(const void* data, int64_t stride_bytes) {
  const uint64_t both = reinterpret_cast<uintptr_t>(data) | static_cast<uint64_t>(stride_bytes);
  int64_t bits = 0;
  while (bits < 8 && (both >> bits & 1) == 0) ++bits;
  return bits;
}

template <typename F>
constexpr int kCublasType = std::is_same_v<F, float> ? kCublasFloat : kCublasBfloat16;

}  // namespace

Blas* Blas::OfDevice(const GpuCall& call) {
  constexpr int kMostDevices = 64;
  static std::mutex mutex;
  static std::unique_ptr<Blas> of[kMostDevices];
  static bool asked[kMostDevices];
  int device;
  if (cudaGetDevice(&device) != cudaSuccess || device >= kMostDevices) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!asked[device]) {
    asked[device] = true;
    const char* const wanted = std::getenv("LARGEOUT_CUBLAS");
    if (wanted != nullptr && std::strcmp(wanted, "0") == 0) return nullptr;
    auto made = std::make_unique<Blas>(LoadedCublasLt());
    if (made->Open(call)) of[device] = std::move(made);
  }
  return of[device].get();
}

// Looks at products in the three ways that a dense layer multiplies: forward, and for both gradients.
bool Blas::Open(const GpuCall& call) {
  if (library_ == nullptr || library_->Create(&handle_) != 0) return false;
  void* const workspace = call.scratch->Allocate(kWorkspaceBytes);
  if (workspace == nullptr) return false;
  const auto right = [&](auto kind, bool transposed_a, bool transposed_b, bool add) {
    return IsRight<decltype(kind)>(call, workspace, transposed_a, transposed_b, add);
  };
  return right(0.f, false, true, false) && right(0.f, true, false, true) && right(0.f, false, false, true) &&
         right(bfloat16(), false, true, false) && right(bfloat16(), true, false, true) &&
         right(bfloat16(), false, false, true);
}

// Products of small whole numbers are exact in every type: the library's must be those of plain loops.
template <typename F>
bool Blas::IsRight(const GpuCall& call, void* workspace, bool transposed_a, bool transposed_b, bool add) {
  constexpr int64_t kM = 24, kN = 40, kK = 16, kPad = 8;
  const int64_t stride_a = (transposed_a ? kM : kK) + kPad, stride_b = (transposed_b ? kK : kN) + kPad;
  std::vector<F> a((transposed_a ? kK : kM) * stride_a), b((transposed_b ? kN : kK) * stride_b);
  int seed = 0;
  for (F& x : a) FromFloat(static_cast<float>(seed++ * 7 % 11 - 5), &x);
  for (F& x : b) FromFloat(static_cast<float>(seed++ * 5 % 13 - 6), &x);
  std::vector<float> out(kM * kN, 1.f);
  const GpuStream stream = call.stream;
  F *const on_a = call.scratch->Take<F>(a.size()), *const on_b = call.scratch->Take<F>(b.size());
  float* const on_out = call.scratch->Take<float>(out.size());
  if (on_a == nullptr || on_b == nullptr || on_out == nullptr) return false;
  const int64_t bytes = out.size() * sizeof(float);
  if (CopyToDeviceCuda(a.data(), a.size() * sizeof(F), on_a, stream) != 0 ||
      CopyToDeviceCuda(b.data(), b.size() * sizeof(F), on_b, stream) != 0 ||
      CopyToDeviceCuda(out.data(), bytes, on_out, stream) != 0 ||
      Multiply(BlasSizes{kM, kN, kK}, BlasFactor<F>{on_a, stride_a, transposed_a},
               BlasFactor<F>{on_b, stride_b, transposed_b}, add, on_out, kN, workspace, stream) != 0 ||
      CopyToHostCuda(on_out, bytes, out.data(), stream) != 0)
    return false;
  for (int64_t i = 0; i < kM; ++i) {
    for (int64_t j = 0; j < kN; ++j) {
      float want = add ? 1.f : 0.f;
      for (int64_t k = 0; k < kK; ++k) {
        want += ToFloat(a[transposed_a ? k * stride_a + i : i * stride_a + k]) *
                ToFloat(b[transposed_b ? j * stride_b + k : k * stride_b + j]);
      }
      if (out[i * kN + j] != want) return false;
    }
  }
  return true;
}

Blas::Plan Blas::Make(const Key& key) const {
  Plan plan;
  const int factors = static_cast<int>(key[kFactorType]), out = static_cast<int>(key[kOutType]);
  // The library's matrices are column-major: in its eyes each of ours is transposed, and it multiplies
  // out^T = b^T a^T. Its first factor is our second one.
  const int transpose_a = key[kTransposedB] != 0, transpose_b = key[kTransposedA] != 0;
  const int64_t first_rows = transpose_a ? key[kDepth] : key[kColumns],
                first_columns = transpose_a ? key[kColumns] : key[kDepth],
                second_rows = transpose_b ? key[kRows] : key[kDepth],
                second_columns = transpose_b ? key[kDepth] : key[kRows];
  void* preference = nullptr;
  bool all = true;
  const auto good = [&](int status) { all = all && status == 0; };
  const auto prefer = [&](int attribute, auto value) {
    if (all) good(library_->MatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)));
  };
  good(library_->MatmulDescCreate(&plan.desc, factors == kCublasFloat ? kCublasInTf32 : kCublasIn32F,
                                  kCublasFloat));
  if (all) good(library_->MatmulDescSetAttribute(plan.desc, kCublasTransposeA, &transpose_a, sizeof(int)));
  if (all) good(library_->MatmulDescSetAttribute(plan.desc, kCublasTransposeB, &transpose_b, sizeof(int)));
  if (all) good(library_->MatrixLayoutCreate(&plan.a, factors, first_rows, first_columns, key[kStrideB]));
  if (all) good(library_->MatrixLayoutCreate(&plan.b, factors, second_rows, second_columns, key[kStrideA]));
  if (all) good(library_->MatrixLayoutCreate(&plan.out, out, key[kColumns], key[kRows], key[kStrideOut]));
  if (all) good(library_->MatmulPreferenceCreate(&preference));
  prefer(kCublasWorkspaceBytes, static_cast<uint64_t>(kWorkspaceBytes));
  prefer(kCublasReductions, uint32_t{0});
  prefer(kCublasAlignmentOfA, uint32_t{1} << (key[kAlignments] % 16));
  prefer(kCublasAlignmentOfB, uint32_t{1} << (key[kAlignments] / 16));
  prefer(kCublasAlignmentOfC, uint32_t{1} << key[kAlignmentOut]);
  prefer(kCublasAlignmentOfD, uint32_t{1} << key[kAlignmentOut]);
  int found = 0;
  if (all) {
    good(library_->MatmulAlgoGetHeuristic(handle_, plan.desc, plan.a, plan.b, plan.out, plan.out, preference, 1,
                                          &plan.best, &found));
  }
  if (preference != nullptr) library_->MatmulPreferenceDestroy(preference);
  plan.usable = all && found > 0 && plan.best.status == 0;
  return plan;
}

void Blas::Forget(const Plan& plan) const {
  if (plan.desc != nullptr) library_->MatmulDescDestroy(plan.desc);
  for (void* layout : {plan.a, plan.b, plan.out}) {
    if (layout != nullptr) library_->MatrixLayoutDestroy(layout);
  }
}

template <typename F, typename O>
int Blas::Multiply(const BlasSizes& sizes, const BlasFactor<F>& a, const BlasFactor<F>& b, bool add, O* out,
                   int64_t out_stride, void* workspace, GpuStream stream) {
  static_assert(std::is_same_v<O, float> || std::is_same_v<O, F>, "a product of float is float");
  const auto bytes = [](int64_t stride, size_t element) { return stride * static_cast<int64_t>(element); };
  Key key;
  key[kFactorType] = kCublasType<F>, key[kOutType] = kCublasType<O>;
  key[kTransposedA] = a.transposed, key[kTransposedB] = b.transposed, key[kAdds] = add;
  key[kRows] = sizes.rows, key[kColumns] = sizes.columns, key[kDepth] = sizes.depth;
  key[kStrideA] = a.stride, key[kStrideB] = b.stride, key[kStrideOut] = out_stride;
  // The library's first factor is b.
  key[kAlignments] =
      Alignment(b.data, bytes(b.stride, sizeof(F))) + 16 * Alignment(a.data, bytes(a.stride, sizeof(F)));
  key[kAlignmentOut] = Alignment(out, bytes(out_stride, sizeof(O)));
  const std::lock_guard<std::mutex> lock(mutex_);
  auto at = plans_.find(key);
  if (at == plans_.end()) {
    if (plans_.size() >= kMostPlans) {
      for (const auto& [_, plan] : plans_) Forget(plan);
      plans_.clear();
    }
    at = plans_.emplace(key, Make(key)).first;
  }
  const Plan& plan = at->second;
  if (!plan.usable) return kNoProduct;
  const float one = 1.f, beta = add ? 1.f : 0.f;
  const int status = library_->Matmul(handle_, plan.desc, &one, b.data, plan.a, a.data, plan.b, &beta, out,
                                      plan.out, out, plan.out, &plan.best.algorithm, workspace,
                                      static_cast<size_t>(kWorkspaceBytes), stream);
  return status == 0 ? 0 : kNoProduct;
}

#define LARGEOUT_MULTIPLY(F, O)                                                                           \
  template int Blas::Multiply<F, O>(const BlasSizes&, const BlasFactor<F>&, const BlasFactor<F>&, bool, O*, \
                                    int64_t, void*, GpuStream);
LARGEOUT_MULTIPLY(float, float)
LARGEOUT_MULTIPLY(bfloat16, float)

}  // namespace largeout
