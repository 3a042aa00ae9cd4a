// CUDA's vector types, and where a thread is.
#ifndef LARGEOUT_CUDA_EMULATOR_TYPES_H_
#define LARGEOUT_CUDA_EMULATOR_TYPES_H_

#define LARGEOUT_VECTORS(T, name, wide)                              \
  struct alignas(2 * sizeof(T)) name##2 { T x, y; };                 \
  struct name##3 { T x, y, z; };                                     \
  struct alignas(wide) name##4 { T x, y, z, w; };                    \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }         \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; } \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
LARGEOUT_VECTORS(int, int, 16)
LARGEOUT_VECTORS(unsigned, uint, 16)
LARGEOUT_VECTORS(float, float, 16)
LARGEOUT_VECTORS(short, short, 8)
LARGEOUT_VECTORS(unsigned short, ushort, 8)
LARGEOUT_VECTORS(char, char, 4)
LARGEOUT_VECTORS(unsigned char, uchar, 4)
LARGEOUT_VECTORS(long long, longlong, 16)
LARGEOUT_VECTORS(unsigned long long, ulonglong, 16)
LARGEOUT_VECTORS(double, double, 16)
#undef LARGEOUT_VECTORS

struct dim3 {
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  unsigned x, y, z;
};

namespace largeout {
namespace emulation {

using Dim3 = dim3;

struct Indices {
  uint3 thread{0, 0, 0}, block{0, 0, 0};
  dim3 threads, blocks;
};
extern Indices now;

}  // namespace emulation
}  // namespace largeout

#endif  // LARGEOUT_CUDA_EMULATOR_TYPES_H_
