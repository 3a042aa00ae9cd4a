// Tiles of a row, as lanes hold them; and other helpers of the embedding .cu files. Internal. A team of `lanes` lanes
// holds kPack * kVectors * lanes columns at a time, lane l the columns (v * lanes + l) * kPack ...: neighbouring lanes
// read neighbouring 16 bytes.
#ifndef LARGEOUT_EMBEDDING_EMBEDDING_TILE_CUH_
#define LARGEOUT_EMBEDDING_EMBEDDING_TILE_CUH_

#include <algorithm>
#include <type_traits>

#include "common/arena.h"
#include "common/cuda/cuda.h"
#include "embedding/embedding.h"

namespace largeout {

constexpr int kThreads = 256;

// kPack neighbouring elements, in words where they fill some: elements of bfloat16 by themselves would be taken apart
// and put together again wherever a register is chosen.
template <typename T, int kPack>
struct alignas(sizeof(T) * kPack) Pack {
  static constexpr bool kPairs = sizeof(T) == 2 && kPack % 2 == 0;
  using Part = std::conditional_t<kPairs, uint32_t, T>;
  Part part[sizeof(T) * kPack / sizeof(Part)];

  __device__ __forceinline__ void Floats(float (&out)[kPack]) const {
    if constexpr (kPairs) {
#pragma unroll
      for (int i = 0; i < kPack / 2; ++i)
        out[2 * i] = __uint_as_float(part[i] << 16), out[2 * i + 1] = __uint_as_float(part[i] & 0xffff0000u);
    } else {
#pragma unroll
      for (int i = 0; i < kPack; ++i) out[i] = GpuToFloat(part[i]);
    }
  }
  __device__ __forceinline__ static Pack Of(const float (&values)[kPack]) {
    Pack pack;
    if constexpr (kPairs) {
#pragma unroll
      for (int i = 0; i < kPack / 2; ++i) {
        bfloat16 low, high;
        GpuFromFloat(values[2 * i], &low), GpuFromFloat(values[2 * i + 1], &high);
        pack.part[i] = low.bits | static_cast<uint32_t>(high.bits) << 16;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kPack; ++i) GpuFromFloat(values[i], &pack.part[i]);
    }
    return pack;
  }
};

// Sums of a lane's columns.
template <typename T, int kPack, int kVectors>
struct Tile {
  using Piece = Pack<T, kPack>;
  float sum[kVectors][kPack];

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum[v][i] = 0.f;
    }
  }
  // row: of this lane's first column; step: columns between its vectors; left: columns from its first one to the end.
  __device__ __forceinline__ static void Load(const T* row, int64_t step, int64_t left, Piece (&piece)[kVectors]) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (v * step < left) piece[v] = *reinterpret_cast<const Piece*>(row + v * step);
    }
  }
  // Zeros beyond `left`.
  __device__ __forceinline__ static void LoadOrZero(const T* row, int64_t step, int64_t left,
                                                    Piece (&piece)[kVectors]) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
      piece[v] = v * step < left ? *reinterpret_cast<const Piece*>(row + v * step) : Piece{};
  }
  __device__ __forceinline__ void Add(float factor, int64_t step, int64_t left, const Piece (&piece)[kVectors]) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (v * step < left) AddTimes(factor, v, piece[v]);
    }
  }
  // Without looking what is beyond a row's end.
  __device__ __forceinline__ void AddTimes(float factor, const Piece (&piece)[kVectors]) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) AddTimes(factor, v, piece[v]);
  }
  __device__ __forceinline__ void AddTimes(float factor, int v, const Piece& piece) {
    float x[kPack];
    piece.Floats(x);
#pragma unroll
    for (int i = 0; i < kPack; ++i) sum[v][i] = fmaf(factor, x[i], sum[v][i]);
  }
  __device__ __forceinline__ void AddOnce(const Piece (&piece)[kVectors]) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      float x[kPack];
      piece[v].Floats(x);
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum[v][i] += x[i];
    }
  }
  template <typename Out>
  __device__ __forceinline__ void Store(Out* row, int64_t step, int64_t left) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (v * step >= left) continue;
      *reinterpret_cast<Pack<Out, kPack>*>(row + v * step) = Pack<Out, kPack>::Of(sum[v]);
    }
  }
};

// The positions of a bag, inside [0, num_ids) whatever row_splits says: nobody may have waited to learn that it is bad.
struct Positions {
  int64_t begin, end;
};
template <typename Id>
__device__ __forceinline__ Positions PositionsOf(const Bags<Id>& bags, int64_t bag) {
  Positions p = {bags.begin(bag), bags.begin(bag + 1)};
  if (bags.row_splits != nullptr) {
    p.begin = min(max(p.begin, int64_t{0}), bags.num_ids);
    p.end = min(max(p.end, p.begin), bags.num_ids);
  }
  return p;
}

// Rows in flight a lane: as many as registers allow at full occupancy.
template <int kVectors>
constexpr int kFlight = kVectors == 1 ? 8 : (kVectors == 2 ? 4 : 2);

// The number of this thread's team in the grid; lanes divides kThreads.
__device__ __forceinline__ int64_t Team(int lanes) {
  return blockIdx.x * int64_t{kThreads / static_cast<unsigned>(lanes)} + threadIdx.x / static_cast<unsigned>(lanes);
}

inline unsigned BlocksFor(int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

inline bool Aligned16(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

// Whether rows of dim elements of T can be read in 16-byte pieces.
template <typename T>
bool Packs(int64_t dim, const void* a, const void* b) {
  return dim % static_cast<int64_t>(16 / sizeof(T)) == 0 && Aligned16(a) && Aligned16(b);
}

// The lanes of a team: the least power of two that holds a row, at most a warp.
inline int TeamLanes(int64_t pieces) {
  int lanes = 1;
  while (lanes < 32 && lanes < pieces) lanes *= 2;
  return lanes;
}

// Calls body(std::integral_constant<int, kPack>, std::integral_constant<int, kVectors>, lanes) for rows of dim elements.
template <typename T, typename Body>
int WithTile(int64_t dim, bool packs, const Body& body) {
  constexpr int kFull = 16 / sizeof(T);
  using Full = std::integral_constant<int, kFull>;
  using One = std::integral_constant<int, 1>;
  using Two = std::integral_constant<int, 2>;
  using Four = std::integral_constant<int, 4>;
  const int64_t pieces = packs ? dim / kFull : dim;
  const int lanes = TeamLanes(pieces);
  if (!packs) return pieces <= 32 ? body(One(), One(), lanes) : body(One(), Four(), lanes);
  if (pieces <= 32) return body(Full(), One(), lanes);
  return pieces <= 64 ? body(Full(), Two(), lanes) : body(Full(), Four(), lanes);
}

}  // namespace largeout

#endif  // LARGEOUT_EMBEDDING_EMBEDDING_TILE_CUH_
