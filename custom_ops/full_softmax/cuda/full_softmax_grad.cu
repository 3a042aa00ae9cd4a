// The gradients: logits are computed again, for a chunk of classes and of tokens at a time, and become their
// own gradient in scratch memory. Two products with it follow. That with the hidden vectors is the gradient
// of the chunk's rows; that with the rows adds to the gradient of the hidden vectors, in parts that are
// joined at the end.
//
// Bounds: 6 x tokens x classes x dim flops. Bytes, for each chunk of up to 8192 tokens: the rows twice and
// their gradient once; and 4 (2 with hidden vectors of bfloat16) for each of the chunk's logits, written once
// and read by both products, for every 128 elements of a row.
#include <algorithm>
#include <type_traits>

#include "common/cuda/launch.cuh"
#include "full_softmax/cuda/full_softmax_library.cuh"
#include "full_softmax/cuda/full_softmax_products.cuh"

namespace largeout {
namespace {

constexpr int64_t kHiddenBlocks = 1024;     // that the product with the rows should have

// The chunks and parts into which the work is cut.
struct GradPlan {
  GradPlan(int64_t classes, int64_t count, int64_t dim) {
    tokens = EvenPiece(count, SoftmaxTuning::kMostTokens, kTileRows);
    const int64_t token_tiles = std::max<int64_t>(1, CeilDiv(tokens, kTileRows));
    const int64_t fit = SoftmaxTuning::kChunkLogits / (token_tiles * kTileRows) / kTileColumns * kTileColumns;
    width = EvenPiece(classes, fit, kTileColumns);
    const int64_t tiles = std::max<int64_t>(1, token_tiles * CeilDiv(dim, kTileColumns));
    parts = std::max<int64_t>(1, std::min(kHiddenBlocks / tiles, width / kTileColumns));
    of_part = CeilDiv(CeilDiv(width, parts), kTileColumns) * kTileColumns;
    parts = std::max<int64_t>(1, CeilDiv(width, of_part));
  }
  int64_t tokens, width;   // of a chunk; multiples of the tiles
  int64_t parts, of_part;  // of the gradient of the hidden vectors; the classes of each, within a chunk
};

template <typename T, typename H>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    LogitGradients(SoftmaxRows<T> table, const H* hidden, TokenGradients of, SoftmaxChunk<H> chunk,
                   CopiedRows copied, bool tf32) {
  using Shape = SoftmaxTile<T, H>;
  static_assert(kLogitBytes<T, H> >= Shape::kDown * kTileColumns * static_cast<int>(sizeof(float)),
                "room for sums");
  float* shared = DynamicShared<float>();
  const int64_t token_tiles = CeilDiv(chunk.count, kTileRows);
  const int64_t token_tile = blockIdx.x % token_tiles;
  // Within the chunk.
  const int64_t token = token_tile * kTileRows, first = blockIdx.x / token_tiles * kTileColumns;
  const SoftmaxRows<T> rows{table.rows + chunk.first * table.dim,
                            table.bias == nullptr ? nullptr : table.bias + chunk.first, chunk.width,
                            table.dim};
  float acc[Shape::kTM][Shape::kTN] = {};
  MultiplyLogits(hidden + chunk.token * table.dim, chunk.count, rows, token, first, copied, tf32,
                 DynamicShared<char>(), acc);
#pragma unroll
  for (int i = 0; i < Shape::kTM; ++i) {
    const bool exists = token + Shape::Row(i) < chunk.count;
    const TokenGradient one = of.At(exists ? chunk.token + token + Shape::Row(i) : 0);
    const int64_t at = one.target - chunk.first - first;  // the column of the target
#pragma unroll
    for (int j = 0; j < Shape::kTN; ++j) {
      const int column = Shape::Column(j);
      const float gradient = one.Of(acc[i][j], column == at);
      acc[i][j] = exists && first + column < chunk.width ? gradient : 0.f;
    }
  }
  // The memory has whole tiles.
  H* out = chunk.gradient + token * chunk.stride + first;
#pragma unroll
  for (int i = 0; i < Shape::kTM; ++i) {
#pragma unroll
    for (int j = 0; j < Shape::kTN; j += Shape::kRun) {
      float run[Shape::kRun];
#pragma unroll
      for (int n = 0; n < Shape::kRun; ++n) run[n] = acc[i][j + n];
      StoreVec<Shape::kRun>(out + Shape::Row(i) * chunk.stride + Shape::Column(j), run);
    }
  }
  if (chunk.column_sums == nullptr) return;
  __syncthreads();
#pragma unroll
  for (int j = 0; j < Shape::kTN; ++j) {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < Shape::kTM; ++i) sum += acc[i][j];
    shared[Shape::Down() * kTileColumns + Shape::Column(j)] = sum;
  }
  __syncthreads();
  if (threadIdx.x >= kTileColumns) return;
  float sum = 0.f;
#pragma unroll
  for (int n = 0; n < Shape::kDown; ++n) sum += shared[n * kTileColumns + threadIdx.x];
  chunk.column_sums[token_tile * chunk.stride + first + threadIdx.x] = sum;
}

// Adds the parts up in their order. out may be the only part.
template <typename X>
__global__ void JoinParts(const float* parts, int64_t count, int64_t n, X* out) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= n) return;
  float sum = 0.f;
  for (int64_t part = 0; part < count; ++part) sum += parts[part * n + i];
  GpuFromFloat(sum, out + i);
}

template <typename X>
int SetZero(X* data, int64_t n, GpuStream stream) {
  if (data == nullptr || n == 0) return 0;
  return static_cast<int>(cudaMemsetAsync(data, 0, n * sizeof(X), stream));
}

// The launches of one call.
template <typename T, typename H>
class Gradients {
 public:
  Gradients(const SoftmaxRows<T>& table, const SoftmaxBatch<H, int32_t>& batch,
            const SoftmaxBatchGradients<H, T>& out, const GpuCall& call)
      : table_(table),
        batch_(batch),
        out_(out),
        stream_(call.stream),
        tf32_(call.tf32),
        dim_(table.dim),
        plan_(table.classes, batch.count, dim_),
        rows_(out.rows != nullptr && dim_ > 0),
        hidden_(out.hidden != nullptr && dim_ > 0) {}

  int Reserve(Scratch* scratch) {
    const auto take = [&](int64_t n, float** to) {
      *to = scratch->Take<float>(n);
      return *to != nullptr;
    };
    gradient_ = scratch->Take<H>(plan_.tokens * plan_.width);
    bool all = gradient_ != nullptr;
    if (out_.bias != nullptr)
      all = all && take(CeilDiv(plan_.tokens, kTileRows) * plan_.width, &column_sums_);
    if (hidden_ && KeepsHidden()) {
      if constexpr (std::is_same<H, float>::value) parts_ = out_.hidden;
    } else if (hidden_) {
      all = all && take(plan_.parts * batch_.count * dim_, &parts_);
    }
    // Rows of bfloat16 are not rounded before all tokens are in.
    if (rows_ && !std::is_same<T, float>::value && plan_.tokens < batch_.count) {
      all = all && take(plan_.width * dim_, &row_sums_);
    }
    return all ? 0 : kNoMemory;
  }

  int Run(const TokenGradients& of) {
    for (int64_t first = 0; first < table_.classes; first += plan_.width) {
      for (int64_t token = 0; token < batch_.count; token += plan_.tokens) {
        const int64_t count = std::min(plan_.tokens, batch_.count - token),
                      width = std::min(plan_.width, table_.classes - first);
        LARGEOUT_RETURN_IF_ERROR(
            RunChunk({token, count, first, width, plan_.width, gradient_, column_sums_}, of));
      }
    }
    if (!hidden_ || KeepsHidden()) return 0;
    const int64_t n = batch_.count * dim_;
    return Launch(JoinParts<H>, ElementBlocks(n), kElementThreads, 0, stream_, parts_, plan_.parts, n, out_.hidden);
  }

 private:
  // Whether d_hidden is the only part.
  bool KeepsHidden() const { return std::is_same<H, float>::value && plan_.parts == 1; }

  int RunChunk(const SoftmaxChunk<H>& chunk, const TokenGradients& of) {
    const int64_t columns = CeilDiv(dim_, kTileColumns);
    LARGEOUT_RETURN_IF_ERROR(Launch(
        LogitGradients<T, H>, Grid(CeilDiv(chunk.count, kTileRows) * CeilDiv(chunk.width, kTileColumns)),
        kTileThreads, kLogitBytes<T, H>, stream_, table_, batch_.hidden, of, chunk,
        CopiedRows::Of(dim_, batch_.hidden, table_.rows), tf32_));
    if (out_.bias != nullptr) {
      LARGEOUT_RETURN_IF_ERROR(Launch(JoinColumns<H>, ElementBlocks(chunk.width), kElementThreads, 0,
                                      stream_, chunk, kTileRows, chunk.token > 0,
                                      out_.bias + chunk.first));
    }
    if (rows_) {
      T* d_rows = out_.rows + chunk.first * dim_;
      RowSums sums{row_sums_, chunk.token > 0, chunk.token + chunk.count == batch_.count};
      if constexpr (std::is_same<T, float>::value) sums.sums = d_rows;
      LARGEOUT_RETURN_IF_ERROR(Launch(RowGradients<T, H>, Grid(CeilDiv(chunk.width, kTileRows) * columns),
                                      kTileThreads, kRowBytes<T, H>, stream_, chunk, batch_.hidden, dim_,
                                      sums, d_rows, RowsCopied(dim_, batch_.hidden),
                                      RowsAligned(dim_, d_rows, sums.sums), tf32_));
    }
    if (hidden_) {
      LARGEOUT_RETURN_IF_ERROR(
          Launch(HiddenGradients<T, H>, Grid(CeilDiv(chunk.count, kTileRows) * columns * plan_.parts),
                 kTileThreads, kHiddenBytes<T, H>, stream_, chunk, table_, plan_.of_part, batch_.count,
                 chunk.first > 0, parts_, RowsCopied(dim_, table_.rows), RowsAligned(dim_, parts_, nullptr),
                 tf32_));
    }
    return 0;
  }

  static unsigned Grid(int64_t blocks) { return static_cast<unsigned>(blocks); }

  const SoftmaxRows<T> table_;
  const SoftmaxBatch<H, int32_t> batch_;
  const SoftmaxBatchGradients<H, T> out_;
  const GpuStream stream_;
  const bool tf32_;
  const int64_t dim_;
  const GradPlan plan_;
  const bool rows_, hidden_;  // wanted, and not empty
  H* gradient_ = nullptr;
  float *column_sums_ = nullptr, *row_sums_ = nullptr, *parts_ = nullptr;
};

}  // namespace

template <>
template <typename T, typename H, typename Id>
int FullSoftmaxGpu::Gradient(const SoftmaxRows<T>& table, const SoftmaxBatch<H, Id>& asked, const float* lse,
                             const SoftmaxUpstream& upstream, const SoftmaxBatchGradients<H, T>& out,
                             BadTarget* bad) {
  SoftmaxBatch<H, int32_t> batch;
  *bad = {};
  LARGEOUT_RETURN_IF_ERROR(
      CheckBatch(asked, table.classes, call_, &batch, call_.late == nullptr ? bad : nullptr));
  if (bad->found()) return 0;
  const GpuStream stream = call_.stream;
  if (batch.count == 0 || table.classes == 0) {
    LARGEOUT_RETURN_IF_ERROR(SetZero(out.hidden, batch.count * table.dim, stream));
    LARGEOUT_RETURN_IF_ERROR(SetZero(out.rows, table.classes * table.dim, stream));
    return SetZero(out.bias, table.classes, stream);
  }
  const TokenGradients of{batch.targets, lse, upstream, batch.skip_target};
  const int by_library = LibraryGradient(table, batch, of, out, nullptr, call_);
  if (by_library != kNoProduct) return by_library;
  Gradients<T, H> work(table, batch, out, call_);
  LARGEOUT_RETURN_IF_ERROR(work.Reserve(call_.scratch));
  return work.Run(of);
}

#define LARGEOUT_GRADIENT(T, H, Id)                                                                  \
  template int FullSoftmaxGpu::Gradient<T, H, Id>(const SoftmaxRows<T>&, const SoftmaxBatch<H, Id>&, \
                                                  const float*, const SoftmaxUpstream&,              \
                                                  const SoftmaxBatchGradients<H, T>&, BadTarget*);
#define LARGEOUT_GRADIENT_OF(T, H) \
  LARGEOUT_GRADIENT(T, H, int32_t) \
  LARGEOUT_GRADIENT(T, H, int64_t)
LARGEOUT_GRADIENT_OF(float, float)
LARGEOUT_GRADIENT_OF(float, bfloat16)
LARGEOUT_GRADIENT_OF(bfloat16, float)
LARGEOUT_GRADIENT_OF(bfloat16, bfloat16)

}  // namespace largeout
