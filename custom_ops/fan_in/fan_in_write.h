// Writing a tile of logits to where its examples are, each in its own run. Internal to the family.
#ifndef LARGEOUT_FAN_IN_FAN_IN_WRITE_H_
#define LARGEOUT_FAN_IN_FAN_IN_WRITE_H_

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace largeout {

// The classes of a run: long enough that its cache lines are whole but for the first and the last one.
constexpr int64_t kFanInRun = 256;
// Logits of more bytes go past the caches, which could not hold them for whoever reads them next.
constexpr int64_t kFanInCached = int64_t{8} << 20;

// Copies n floats past the caches: the inputs that are gathered meanwhile would be driven out of them.
inline void StreamFloats(const float* from, int64_t n, float* to) {
#if defined(__SSE2__)
  const int64_t ahead =
      std::min<int64_t>(n, (64 - (reinterpret_cast<uintptr_t>(to) & 63)) % 64 / sizeof(float));
  std::memcpy(to, from, ahead * sizeof(float));
  int64_t i = ahead;
  for (; i + 16 <= n; i += 16) {
    for (int j = 0; j < 16; j += 4) _mm_stream_ps(to + i + j, _mm_loadu_ps(from + i + j));
  }
  std::memcpy(to + i, from + i, (n - i) * sizeof(float));
#else
  std::memcpy(to, from, n * sizeof(float));
#endif
}

// What StreamFloats has written is seen by whoever is handed it after this.
inline void EndOfStream() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// out[lane * stride + i] = tile[i * width + lane] for n <= kFanInRun classes and `lanes` <= width examples;
// width is a multiple of 4. stream: past the caches.
inline void WriteTurned(const float* tile, int64_t n, int width, int lanes, float* out, int64_t stride,
                        bool stream) {
  float runs[4][kFanInRun];
  for (int lane = 0; lane < lanes; lane += 4) {
    int64_t i = 0;
#if defined(__SSE2__)
    for (; i + 4 <= n; i += 4) {
      const float* from = tile + i * width + lane;
      __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + width), c = _mm_loadu_ps(from + 2 * width),
             d = _mm_loadu_ps(from + 3 * width);
      _MM_TRANSPOSE4_PS(a, b, c, d);
      _mm_storeu_ps(runs[0] + i, a);
      _mm_storeu_ps(runs[1] + i, b);
      _mm_storeu_ps(runs[2] + i, c);
      _mm_storeu_ps(runs[3] + i, d);
    }
#endif
    for (; i < n; ++i) {
      for (int j = 0; j < 4; ++j) runs[j][i] = tile[i * width + lane + j];
    }
    for (int j = 0; j < 4 && lane + j < lanes; ++j) {
      float* to = out + (lane + j) * stride;
      if (stream) {
        StreamFloats(runs[j], n, to);
      } else {
        std::memcpy(to, runs[j], n * sizeof(float));
      }
    }
  }
}

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_WRITE_H_
