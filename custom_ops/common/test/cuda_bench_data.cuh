// Data of the CUDA benches: memory that is taken once, random values, ids of several distributions.
#ifndef LARGEOUT_COMMON_CUDA_BENCH_DATA_CUH_
#define LARGEOUT_COMMON_CUDA_BENCH_DATA_CUH_

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <vector>

#include "common/cuda/cuda.h"
#include "common/cuda/launch.cuh"
#include "common/test/check.h"

#define BENCH_OK(call)                                                                              \
  do {                                                                                              \
    const int error_ = static_cast<int>(call);                                                      \
    if (error_ != 0) {                                                                              \
      std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, ::largeout::CudaErrorName(error_)); \
      std::exit(1);                                                                                 \
    }                                                                                               \
  } while (0)

namespace largeout {

// Values in (-scale, scale), the same on every GPU. Random, since zeros can run faster than data.
static __global__ void BenchFill(float* out, int64_t n, uint64_t seed, float scale) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < n;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    uint64_t z = (i + seed) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z ^= z >> 27;
    out[i] = (static_cast<int32_t>(z >> 32) * (1.f / 2147483648.f)) * scale;
  }
}

static __global__ void BenchRound(const float* in, int64_t n, bfloat16* out) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < n;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    GpuFromFloat(in[i], out + i);
  }
}

// Memory that is taken once and handed out from the start again after Reset.
class BenchArena {
 public:
  explicit BenchArena(int64_t bytes) : bytes_(bytes) { BENCH_OK(cudaMalloc(&data_, bytes)); }
  ~BenchArena() { cudaFree(data_); }
  BenchArena(const BenchArena&) = delete;
  void* Take(int64_t bytes) {
    const int64_t at = used_;
    used_ += (bytes + 255) / 256 * 256;
    return used_ > bytes_ ? nullptr : data_ + at;
  }
  template <typename T>
  T* Take(int64_t n) {
    T* p = static_cast<T*>(Take(n * static_cast<int64_t>(sizeof(T))));
    if (p == nullptr) {
      std::printf("the bench's arena of %.1f GB is too small\n", bytes_ * 1e-9);
      std::exit(1);
    }
    return p;
  }
  int64_t used() const { return used_; }
  void Reset(int64_t used = 0) { used_ = used; }

 private:
  char* data_ = nullptr;
  int64_t bytes_, used_ = 0;
};

// The memory of an op's call: what is left of an arena.
class ArenaScratch final : public Scratch {
 public:
  explicit ArenaScratch(BenchArena* arena) : arena_(arena) {}
  void* Allocate(int64_t bytes) override { return arena_->Take(bytes); }

 private:
  BenchArena* arena_;
};

template <typename X>
const char* BenchTypeName() {
  return std::is_same<X, float>::value ? "float32" : "bfloat16";
}

// n random values of a new array. Those of bfloat16 are rounded piece by piece: the arena need not hold all
// as floats.
template <typename X>
X* BenchFilled(BenchArena* memory, int64_t n, uint64_t seed, float scale) {
  X* data = memory->Take<X>(n);
  if constexpr (std::is_same<X, float>::value) {
    BENCH_OK(Launch(BenchFill, 8192, 256, 0, nullptr, data, n, seed, scale));
  } else {
    const int64_t used = memory->used(), most = int64_t{1} << 20;
    float* floats = memory->Take<float>(std::min(n, most));
    for (int64_t at = 0; at < n; at += most) {
      const int64_t piece = std::min(most, n - at);
      BENCH_OK(Launch(BenchFill, 1024, 256, 0, nullptr, floats, piece, seed + at, scale));
      BENCH_OK(Launch(BenchRound, 1024, 256, 0, nullptr, floats, piece, data + at));
    }
    BENCH_OK(cudaDeviceSynchronize());
    memory->Reset(used);
  }
  return data;
}

template <typename X>
X* BenchUpload(BenchArena* memory, const std::vector<X>& values) {
  X* data = memory->Take<X>(static_cast<int64_t>(values.size()));
  BENCH_OK(cudaMemcpy(data, values.data(), values.size() * sizeof(X), cudaMemcpyHostToDevice));
  return data;
}

// Ids of a power law over [0, rows) (exponent `power`, not 1), spread over the table: frequent rows are not
// neighbours.
inline std::vector<int64_t> PowerLawIds(int64_t n, int64_t rows, double power, uint64_t seed,
                                        bool spread = true) {
  Random random(seed);
  std::vector<int64_t> ids(n);
  const double top = std::pow(static_cast<double>(rows) + 1.0, 1.0 - power);
  for (int64_t& id : ids) {
    const double x = std::pow((top - 1.0) * random.Unit() + 1.0, 1.0 / (1.0 - power));
    id = std::min(rows - 1, std::max<int64_t>(0, static_cast<int64_t>(x) - 1));
    // 2654435761 is prime: a bijection unless rows is a multiple of it.
    if (spread)
      id = static_cast<int64_t>(static_cast<uint64_t>(id) * 2654435761ull % static_cast<uint64_t>(rows));
  }
  return ids;
}

enum class BenchIds {
  kPowerLaw,  // of exponent 1.05, spread over the table
  kUniform,
  kPadding,  // kPowerLaw, and every 21st is row 0, as where sequences are filled up
  kTables,   // of ten tables, one after the other: a power law of exponent 1.05 in each, its frequent rows
             // first
};
constexpr const char* kBenchIdsNames[] = {"power-law ids", "uniform ids", "ids, 50K of them one", "ids"};

inline std::vector<int64_t> MakeIds(BenchIds kind, int64_t n, int64_t rows, uint64_t seed) {
  std::vector<int64_t> ids;
  if (kind == BenchIds::kUniform) {
    Random random(seed);
    for (int64_t i = 0; i < n; ++i) ids.push_back(random.Below(rows));
  } else if (kind == BenchIds::kTables) {
    for (int64_t table = 0; table < 10; ++table) {
      for (const int64_t id : PowerLawIds(n / 10, rows / 10, 1.05, seed + 100 * table, false))
        ids.push_back(rows / 10 * table + id);
    }
  } else {
    ids = PowerLawIds(n, rows, 1.05, seed);
    for (int64_t i = 0; kind == BenchIds::kPadding && i < n; i += 21) ids[i] = 0;
  }
  return ids;
}

inline int64_t CountDistinct(std::vector<int64_t> ids) {
  std::sort(ids.begin(), ids.end());
  return std::unique(ids.begin(), ids.end()) - ids.begin();
}

}  // namespace largeout

#endif  // LARGEOUT_COMMON_CUDA_BENCH_DATA_CUH_
