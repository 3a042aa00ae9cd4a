// One block's tile of a matrix product in float32: shared memory, FFMA, the next piece on its way to
// registers while the current one is multiplied. Operands are functors, so one routine serves gathered rows,
// the table and probabilities.
#ifndef LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_TILE_CUH_
#define LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_TILE_CUH_

#include <type_traits>

#include "tree_softmax/cuda/tree_softmax_work.cuh"

namespace largeout {

constexpr int kTileThreads = 128;
constexpr int kTileK = 16;

// kM x kN elements by 128 threads, kTM x kTN each.
template <int M, int N, int TM, int TN>
struct TileShape {
  static constexpr bool kTensorCores = false;
  static constexpr int kM = M, kN = N, kTM = TM, kTN = TN;
  static constexpr int kRun = 4;           // neighbouring columns of a thread
  static constexpr int kColumns = N / TN;  // threads side by side
  static_assert(M / TM * kColumns == kTileThreads && TM % 4 == 0 && TN % 4 == 0,
                "128 threads, 16-byte pieces");
  static constexpr int kShared = kTileK * (M + 4 + N + 4);  // floats
  // The thread's i-th row and j-th column. Quads of neighbouring threads are neighbours: no bank conflicts.
  static __device__ int Row(int i) { return i / 4 * (4 * M / TM) + threadIdx.x / kColumns * 4 + i % 4; }
  static __device__ int Column(int j) { return j / 4 * (4 * kColumns) + threadIdx.x % kColumns * 4 + j % 4; }
};

// For tables of type T: Tall for more than 16 rows, Flat for up to 16. bfloat16: tree_softmax_mma_tile.cuh.
constexpr int kFlatRows = 16;
template <typename T>
struct Tiles {
  using Tall = TileShape<64, 128, 8, 8>;
  using Flat = TileShape<kFlatRows, 128, 4, 4>;
};

// Rows (of the table, or hidden vectors through an index) with zeros outside [rows, columns].
template <typename T>
struct RowOperand {
  static constexpr bool kBfloat16 = std::is_same<T, bfloat16>::value;  // its values are
  const T* base;
  int64_t stride;
  const int32_t* index;  // or null: row r is base + r * stride
  int rows, columns;
  bool aligned;
  __device__ __forceinline__ float4 operator()(int row, int column) const {
    float v[4] = {};
    if (row < rows && column < columns) {
      const T* p = base + (index == nullptr ? row : index[row]) * stride + column;
      if (aligned && column + 4 <= columns) {
        LoadVec<4>(p, v);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = column + i < columns ? GpuToFloat(p[i]) : 0.f;
      }
    }
    return make_float4(v[0], v[1], v[2], v[3]);
  }
};

// (probability - 1 at the path's child) * scale, for pairs x children.
struct GradOperand {
  static constexpr bool kBfloat16 = false;
  const float* probs;  // of pair 0, child 0
  const int32_t* pair_row;
  const float* scale;
  int64_t first_row;  // the table row of child 0
  int64_t stride;     // children of the node
  int pairs, children;
  __device__ __forceinline__ float4 operator()(int pair, int child) const {
    float v[4] = {};
    if (pair < pairs) {
      const float* p = probs + pair * stride + child;
      const float s = scale[pair];
      const int64_t target = pair_row[pair] - first_row - child;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (child + i < children) v[i] = (p[i] - (target == i ? 1.f : 0.f)) * s;
      }
    }
    return make_float4(v[0], v[1], v[2], v[3]);
  }
};

// Fetches and stores a kTileK x kSize piece. kAlongK: the operand's second index runs along k (it is
// transposed on its way to shared memory), else its first.
template <int kSize, bool kAlongK, typename Operand>
struct Piece {
  static constexpr int kQuads = kTileK * kSize / 4;
  static constexpr int kEach = (kQuads + kTileThreads - 1) / kTileThreads;
  static constexpr int kStride = kSize + 4;
  float4 quads[kEach];
  __device__ __forceinline__ void Fetch(const Operand& operand, int k) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int q = e * kTileThreads + threadIdx.x;
      if (kQuads % kTileThreads != 0 && q >= kQuads) break;
      quads[e] = kAlongK ? operand(q / (kTileK / 4), k + q % (kTileK / 4) * 4)
                         : operand(k + q / (kSize / 4), q % (kSize / 4) * 4);
    }
  }
  __device__ __forceinline__ void Store(float* shared) const {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int q = e * kTileThreads + threadIdx.x;
      if (kQuads % kTileThreads != 0 && q >= kQuads) break;
      if (kAlongK) {
        float* column = shared + q % (kTileK / 4) * 4 * kStride + q / (kTileK / 4);
        column[0] = quads[e].x, column[kStride] = quads[e].y;
        column[2 * kStride] = quads[e].z, column[3 * kStride] = quads[e].w;
      } else {
        *reinterpret_cast<float4*>(shared + q / (kSize / 4) * kStride + q % (kSize / 4) * 4) = quads[e];
      }
    }
  }
};

// acc[i][j] += sum over k in [begin, end) of A(Row(i), k) * B(Column(j), k), in the order of k. Operands give
// zeros beyond their ends, so `end` is rounded up. each_k sees every piece of A, as a function of (row, k).
template <class Shape, bool kAAlongK, bool kBAlongK, typename A, typename B, typename EachK,
          std::enable_if_t<!Shape::kTensorCores, int> = 0>
__device__ __forceinline__ void MultiplyTile(const A& a, const B& b, int begin, int end, float* shared,
                                             float (&acc)[Shape::kTM][Shape::kTN], const EachK& each_k) {
  float* shared_a = shared;
  float* shared_b = shared + kTileK * (Shape::kM + 4);
  Piece<Shape::kM, kAAlongK, A> piece_a;
  Piece<Shape::kN, kBAlongK, B> piece_b;
  piece_a.Fetch(a, begin);
  piece_b.Fetch(b, begin);
  const int m = threadIdx.x / Shape::kColumns * 4, n = threadIdx.x % Shape::kColumns * 4;
  for (int k = begin; k < end; k += kTileK) {
    __syncthreads();  // the last piece has been used
    piece_a.Store(shared_a);
    piece_b.Store(shared_b);
    __syncthreads();
    if (k + kTileK < end) {
      piece_a.Fetch(a, k + kTileK);
      piece_b.Fetch(b, k + kTileK);
    }
    each_k([&](int row, int kk) { return shared_a[kk * (Shape::kM + 4) + row]; });
#pragma unroll
    for (int kk = 0; kk < kTileK; ++kk) {
      float x[Shape::kTM], y[Shape::kTN];
#pragma unroll
      for (int i = 0; i < Shape::kTM; i += 4) {
        const float4 v = *reinterpret_cast<const float4*>(shared_a + kk * (Shape::kM + 4) + m +
                                                          i / 4 * (4 * Shape::kM / Shape::kTM));
        x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
      }
#pragma unroll
      for (int j = 0; j < Shape::kTN; j += 4) {
        const float4 v = *reinterpret_cast<const float4*>(shared_b + kk * (Shape::kN + 4) + n +
                                                          j / 4 * (4 * Shape::kColumns));
        y[j] = v.x, y[j + 1] = v.y, y[j + 2] = v.z, y[j + 3] = v.w;
      }
#pragma unroll
      for (int i = 0; i < Shape::kTM; ++i) {
#pragma unroll
        for (int j = 0; j < Shape::kTN; ++j) acc[i][j] = fmaf(x[i], y[j], acc[i][j]);
      }
    }
  }
}

struct NothingEachK {
  template <typename Get>
  __device__ __forceinline__ void operator()(const Get&) const {}
};

}  // namespace largeout

#endif  // LARGEOUT_TREE_SOFTMAX_TREE_SOFTMAX_TILE_CUH_
