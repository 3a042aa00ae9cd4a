#include "common/cuda/cublas_lt.h"

#include <dlfcn.h>

#include <cstring>

namespace largeout {
namespace {

// From the libraries that this one is linked with (TensorFlow has the functions of cuBLASLt, and loads the
// library when one is called), or from `library`.
bool Find(void* library, CublasLt* found) {
  bool all = true;
  const auto find = [&](const char* name, auto* function) {
    void* const symbol = dlsym(library, name);
    all = all && symbol != nullptr;
    std::memcpy(function, &symbol, sizeof(symbol));
  };
  find("cublasLtCreate", &found->Create);
  find("cublasLtMatmulDescCreate", &found->MatmulDescCreate);
  find("cublasLtMatmulDescSetAttribute", &found->MatmulDescSetAttribute);
  find("cublasLtMatmulDescDestroy", &found->MatmulDescDestroy);
  find("cublasLtMatrixLayoutCreate", &found->MatrixLayoutCreate);
  find("cublasLtMatrixLayoutDestroy", &found->MatrixLayoutDestroy);
  find("cublasLtMatmulPreferenceCreate", &found->MatmulPreferenceCreate);
  find("cublasLtMatmulPreferenceSetAttribute", &found->MatmulPreferenceSetAttribute);
  find("cublasLtMatmulPreferenceDestroy", &found->MatmulPreferenceDestroy);
  find("cublasLtMatmulAlgoGetHeuristic", &found->MatmulAlgoGetHeuristic);
  find("cublasLtMatmul", &found->Matmul);
  return all;
}

}  // namespace

const CublasLt* LoadedCublasLt() {
  static const CublasLt* const library = []() -> const CublasLt* {
    static CublasLt found;
    if (Find(RTLD_DEFAULT, &found)) return &found;
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}) {
      void* const opened = dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (opened != nullptr && Find(opened, &found)) return &found;
    }
    return nullptr;
  }();
  return library;
}

}  // namespace largeout
