// In the place of cuBLASLt, as its documentation has it: column-major matrices of descriptors, plain loops.
// It refuses what the library refuses (strides below the rows, factors less aligned than was promised), and
// reports reads outside of an allocation, or of what nothing has written.
#include "common/cuda/cublas_lt.h"

#include <cmath>
#include <cstring>
#include <string>

#include "common/bfloat16.h"
#include "cuda_emulator/emulation.h"
#include "cuda_emulator/memory.h"
#include "cuda_emulator/report.h"

namespace largeout {
namespace {

constexpr int kGood = 0, kInvalidValue = 7, kNotSupported = 15;  // cublasStatus_t

bool refuses = false;
int64_t products = 0;

struct Desc {
  int compute_type, transposed[2] = {0, 0};
};
struct Layout {
  int type;
  int64_t rows, columns, stride;

  size_t element() const { return type == kCublasFloat ? sizeof(float) : sizeof(bfloat16); }
  // From the first element to the last one.
  size_t bytes() const { return ((columns - 1) * stride + rows) * element(); }
  const char* At(const void* data, int64_t row, int64_t column) const {
    return static_cast<const char*>(data) + (column * stride + row) * element();
  }
  float Get(const void* data, int64_t row, int64_t column) const {
    const char* const at = At(data, row, column);
    if (type == kCublasFloat) return *reinterpret_cast<const float*>(at);
    return ToFloat(*reinterpret_cast<const bfloat16*>(at));
  }
  void Set(void* data, int64_t row, int64_t column, float value) const {
    char* const at = const_cast<char*>(At(data, row, column));
    if (type == kCublasFloat) {
      *reinterpret_cast<float*>(at) = value;
    } else {
      FromFloat(value, reinterpret_cast<bfloat16*>(at));
    }
  }
};
struct Preference {
  uint64_t workspace_bytes = 0;
  uint32_t reductions = 7, alignment[4] = {256, 256, 256, 256};  // of A, B, C, D
};

// TF32 has 10 bits behind the point.
float InTf32(float x) {
  if (!std::isfinite(x)) return x;
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  bits = (bits + 0xfff + (bits >> 13 & 1)) & ~uint32_t{0x1fff};
  std::memcpy(&x, &bits, sizeof(bits));
  return x;
}

template <typename X, typename... Arguments>
int New(void** made, Arguments... arguments) {
  *made = new X{arguments...};
  return kGood;
}
template <typename X>
int Delete(void* made) {
  delete static_cast<X*>(made);
  return kGood;
}
int Copy(void* to, const void* value, size_t bytes, size_t wanted) {
  if (value == nullptr || bytes != wanted) return kInvalidValue;
  std::memcpy(to, value, bytes);
  return kGood;
}

int Create(void** handle) { return New<int>(handle, 0); }

int MatmulDescCreate(void** desc, int compute_type, int scale_type) {
  return scale_type == kCublasFloat ? New<Desc>(desc, compute_type) : kInvalidValue;
}

int MatmulDescSetAttribute(void* desc, int attribute, const void* value, size_t bytes) {
  if (attribute != kCublasTransposeA && attribute != kCublasTransposeB) return kInvalidValue;
  return Copy(&static_cast<Desc*>(desc)->transposed[attribute - kCublasTransposeA], value, bytes,
              sizeof(int));
}

int MatrixLayoutCreate(void** layout, int type, uint64_t rows, uint64_t columns, int64_t stride) {
  return New<Layout>(layout, type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), stride);
}

int MatmulPreferenceCreate(void** preference) { return New<Preference>(preference); }

int MatmulPreferenceSetAttribute(void* preference, int attribute, const void* value, size_t bytes) {
  Preference* const p = static_cast<Preference*>(preference);
  if (attribute == kCublasWorkspaceBytes)
    return Copy(&p->workspace_bytes, value, bytes, sizeof(p->workspace_bytes));
  if (attribute == kCublasReductions) return Copy(&p->reductions, value, bytes, sizeof(p->reductions));
  if (attribute < kCublasAlignmentOfA || attribute > kCublasAlignmentOfD) return kInvalidValue;
  return Copy(&p->alignment[attribute - kCublasAlignmentOfA], value, bytes, sizeof(uint32_t));
}

int MatmulAlgoGetHeuristic(void*, void* desc, void* a, void* b, void* c, void* d, void* preference,
                           int wanted, CublasLtHeuristic* results, int* found) {
  const Desc* const of = static_cast<Desc*>(desc);
  const Layout &A = *static_cast<Layout*>(a), &B = *static_cast<Layout*>(b), &C = *static_cast<Layout*>(c),
               &D = *static_cast<Layout*>(d);
  *found = 0;
  for (const Layout* one : {&A, &B, &C, &D}) {
    if (one->rows < 1 || one->columns < 1 || one->stride < one->rows) return kInvalidValue;
  }
  const bool floats = A.type == kCublasFloat;
  const int64_t depth = of->transposed[0] ? A.rows : A.columns;
  if ((of->transposed[0] ? A.columns : A.rows) != D.rows ||
      (of->transposed[1] ? B.rows : B.columns) != D.columns ||
      (of->transposed[1] ? B.columns : B.rows) != depth || C.rows != D.rows || C.columns != D.columns)
    return kInvalidValue;
  if (refuses || A.type != B.type || C.type != D.type || (floats && D.type != kCublasFloat) ||
      of->compute_type != (floats ? kCublasInTf32 : kCublasIn32F))
    return kNotSupported;
  const Preference& p = *static_cast<Preference*>(preference);
  if (wanted < 1 || p.reductions != 0 || p.workspace_bytes == 0) return kInvalidValue;
  results[0] = CublasLtHeuristic();
  for (int i = 0; i < 4; ++i) results[0].algorithm.data[i] = p.alignment[i];
  *found = 1;
  return kGood;
}

// Whether the factor may be read, column by column of what the layout has.
bool Readable(const Layout& layout, const void* data, const char* name) {
  using namespace emulation;
  if (!OnDevice(data, layout.bytes())) {
    Report(Format("cublasLtMatmul: %s of %zu bytes is outside of an allocation: ", name, layout.bytes()) +
               Place(reinterpret_cast<uintptr_t>(data)),
           nullptr);
    return false;
  }
  for (int64_t column = 0; column < layout.columns; ++column) {
    if (AllWritten(layout.At(data, 0, column), layout.rows * layout.element())) continue;
    Report(Format("cublasLtMatmul: column %lld of %s has elements that nothing has written",
                  static_cast<long long>(column), name),
           nullptr);
    return false;
  }
  return true;
}

int Matmul(void*, void* desc, const void* alpha, const void* a, void* a_layout, const void* b, void* b_layout,
           const void* beta, const void* c, void* c_layout, void* d, void* d_layout,
           const CublasLtAlgorithm* algorithm, void* workspace, size_t workspace_bytes, GpuStream) {
  const Desc& of = *static_cast<Desc*>(desc);
  const Layout &A = *static_cast<Layout*>(a_layout), &B = *static_cast<Layout*>(b_layout),
               &C = *static_cast<Layout*>(c_layout), &D = *static_cast<Layout*>(d_layout);
  const float scale = *static_cast<const float*>(alpha), kept = *static_cast<const float*>(beta);
  const void* const data[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) {
    if (reinterpret_cast<uintptr_t>(data[i]) % algorithm->data[i] != 0) return kInvalidValue;
  }
  if (c != d || !emulation::OnDevice(workspace, workspace_bytes)) return kInvalidValue;
  if (!Readable(A, a, "A") || !Readable(B, b, "B") || (kept != 0.f && !Readable(C, c, "C")) ||
      !emulation::OnDevice(d, D.bytes()))
    return kInvalidValue;
  const auto factor = [&](float x) { return of.compute_type == kCublasInTf32 ? InTf32(x) : x; };
  const int64_t depth = of.transposed[0] ? A.rows : A.columns;
  for (int64_t column = 0; column < D.columns; ++column) {
    for (int64_t row = 0; row < D.rows; ++row) {
      float sum = 0.f;
      for (int64_t k = 0; k < depth; ++k) {
        sum += factor(of.transposed[0] ? A.Get(a, k, row) : A.Get(a, row, k)) *
               factor(of.transposed[1] ? B.Get(b, column, k) : B.Get(b, k, column));
      }
      D.Set(d, row, column, scale * sum + (kept != 0.f ? kept * C.Get(c, row, column) : 0.f));
    }
    emulation::CopiedTo(D.At(d, 0, column), nullptr, D.rows * D.element());
  }
  ++products;
  return kGood;
}

}  // namespace

namespace emulation {
void RefuseProducts(bool refuse) { refuses = refuse; }
int64_t Products() { return products; }
}  // namespace emulation

const CublasLt* LoadedCublasLt() {
  static const CublasLt library{Create,
                                MatmulDescCreate,
                                MatmulDescSetAttribute,
                                Delete<Desc>,
                                MatrixLayoutCreate,
                                Delete<Layout>,
                                MatmulPreferenceCreate,
                                MatmulPreferenceSetAttribute,
                                Delete<Preference>,
                                MatmulAlgoGetHeuristic,
                                Matmul};
  return &library;
}

}  // namespace largeout
