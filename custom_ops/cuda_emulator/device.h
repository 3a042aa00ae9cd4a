// Functions of device code: barriers, those of a warp, atomics, bits and arithmetic.
#ifndef LARGEOUT_CUDA_EMULATOR_DEVICE_H_
#define LARGEOUT_CUDA_EMULATOR_DEVICE_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cuda_emulator/types.h"

#define threadIdx (::largeout::emulation::now.thread)
#define blockIdx (::largeout::emulation::now.block)
#define blockDim (::largeout::emulation::now.threads)
#define gridDim (::largeout::emulation::now.blocks)
constexpr int warpSize = 32;

namespace largeout {
namespace emulation {

int Barrier(int vote, const char* file, int line);
void SyncWarp(unsigned mask, const char* file, int line);
unsigned Ballot(unsigned mask, int vote, const char* file, int line);
enum class From { kLane, kXor, kUp, kDown };
void Shuffle(From from, unsigned mask, const void* in, void* out, size_t bytes, int by, int width,
             const char* file, int line);
unsigned ActiveMask();

// old = *address; *address = the result. T: int, unsigned, unsigned long long, float, double.
enum class Atomic { kAdd, kMin, kMax, kOr, kAnd, kXor, kExchange, kCompare };
template <typename T>
T Atomically(Atomic what, T* address, T value, T compare = T());

template <typename T>
T ShuffleOf(From from, unsigned mask, T value, int by, int width, const char* file, int line) {
  T out;
  Shuffle(from, mask, &value, &out, sizeof(T), by, width, file, line);
  return out;
}

}  // namespace emulation
}  // namespace largeout

#define LARGEOUT_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(LARGEOUT_SITE) { largeout::emulation::Barrier(0, file, line); }
inline int __syncthreads_or(int vote, LARGEOUT_SITE) {
  return largeout::emulation::Barrier(vote != 0, file, line);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, LARGEOUT_SITE) {
  largeout::emulation::SyncWarp(mask, file, line);
}
inline unsigned __ballot_sync(unsigned mask, int vote, LARGEOUT_SITE) {
  return largeout::emulation::Ballot(mask, vote != 0, file, line);
}
inline int __any_sync(unsigned mask, int vote, LARGEOUT_SITE) {
  return largeout::emulation::Ballot(mask, vote != 0, file, line) != 0;
}
inline int __all_sync(unsigned mask, int vote, LARGEOUT_SITE) {
  return largeout::emulation::Ballot(mask, vote == 0, file, line) == 0;
}
inline unsigned __activemask() { return largeout::emulation::ActiveMask(); }

#define LARGEOUT_SHUFFLE(name, from)                                                                     \
  template <typename T>                                                                                  \
  T name(unsigned mask, T value, int by, int width = 32, LARGEOUT_SITE) {                                \
    return largeout::emulation::ShuffleOf(largeout::emulation::From::from, mask, value, by, width, file, \
                                          line);                                                         \
  }
LARGEOUT_SHUFFLE(__shfl_sync, kLane)
LARGEOUT_SHUFFLE(__shfl_xor_sync, kXor)
LARGEOUT_SHUFFLE(__shfl_up_sync, kUp)
LARGEOUT_SHUFFLE(__shfl_down_sync, kDown)
#undef LARGEOUT_SHUFFLE
#undef LARGEOUT_SITE

// The value is converted to the type of the memory.
#define LARGEOUT_ATOMIC(name, what)                                                            \
  template <typename T>                                                                        \
  T name(T* address, std::common_type_t<T> value) {                                            \
    return largeout::emulation::Atomically(largeout::emulation::Atomic::what, address, value); \
  }
LARGEOUT_ATOMIC(atomicAdd, kAdd)
LARGEOUT_ATOMIC(atomicMin, kMin)
LARGEOUT_ATOMIC(atomicMax, kMax)
LARGEOUT_ATOMIC(atomicOr, kOr)
LARGEOUT_ATOMIC(atomicAnd, kAnd)
LARGEOUT_ATOMIC(atomicXor, kXor)
LARGEOUT_ATOMIC(atomicExch, kExchange)
#undef LARGEOUT_ATOMIC
template <typename T>
T atomicCAS(T* address, std::common_type_t<T> compare, std::common_type_t<T> value) {
  return largeout::emulation::Atomically(largeout::emulation::Atomic::kCompare, address, value, compare);
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }
template <typename T>
T __ldg(const T* address) {
  return *address;
}

#define LARGEOUT_BITS(name, From, To) \
  inline To name(From x) {            \
    To y;                             \
    std::memcpy(&y, &x, sizeof(y));   \
    return y;                         \
  }
LARGEOUT_BITS(__float_as_uint, float, unsigned)
LARGEOUT_BITS(__uint_as_float, unsigned, float)
LARGEOUT_BITS(__float_as_int, float, int)
LARGEOUT_BITS(__int_as_float, int, float)
LARGEOUT_BITS(__double_as_longlong, double, long long)
LARGEOUT_BITS(__longlong_as_double, long long, double)
#undef LARGEOUT_BITS

inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }

#define LARGEOUT_MIN_MAX(A, B, R)                                                         \
  inline R min(A a, B b) {                                                                \
    return static_cast<R>(a) < static_cast<R>(b) ? static_cast<R>(a) : static_cast<R>(b); \
  }                                                                                       \
  inline R max(A a, B b) {                                                                \
    return static_cast<R>(a) > static_cast<R>(b) ? static_cast<R>(a) : static_cast<R>(b); \
  }
LARGEOUT_MIN_MAX(int, int, int)
LARGEOUT_MIN_MAX(unsigned, unsigned, unsigned)
LARGEOUT_MIN_MAX(int, unsigned, unsigned)
LARGEOUT_MIN_MAX(unsigned, int, unsigned)
LARGEOUT_MIN_MAX(long, long, long)
LARGEOUT_MIN_MAX(unsigned long, unsigned long, unsigned long)
LARGEOUT_MIN_MAX(long, unsigned long, unsigned long)
LARGEOUT_MIN_MAX(unsigned long, long, unsigned long)
LARGEOUT_MIN_MAX(long long, long long, long long)
LARGEOUT_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
#undef LARGEOUT_MIN_MAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

#endif  // LARGEOUT_CUDA_EMULATOR_DEVICE_H_
