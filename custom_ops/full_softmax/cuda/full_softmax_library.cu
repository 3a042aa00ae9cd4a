// Bounds: 2 x tokens x classes x dim flops for the numbers and 6 for the gradients, at the rate of the library. Bytes
// beside its own: each logit is written and read once in float32 for the numbers; for the gradients it is written and
// read, and its gradient written once and read twice, in float32 or bfloat16.
#include "full_softmax/cuda/full_softmax_library.cuh"

#include <type_traits>

#include "common/cuda/gemm/softmax_terms.cuh"
#include "common/cuda/launch.cuh"

namespace largeout {
namespace {

constexpr int kRowThreads = 256;     // of a block, which takes the logits of a token
constexpr int kColumnThreads = 128;  // of a block, which takes kTokens tokens and four columns for each thread
constexpr int kTokens = kColumnThreads;
constexpr int kWarps = kRowThreads / 32;

// The first `count` of four neighbouring elements. Indices are constants, so that the four stay in registers.
__device__ __forceinline__ void LoadEach(const float* p, int count, float (&v)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) v[j] = j < count ? p[j] : 0.f;
}
template <typename X>
__device__ __forceinline__ void StoreEach(const float (&v)[4], int count, X* p) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (j < count) GpuFromFloat(v[j], p + j);
  }
}
// p is aligned to 16 bytes.
__device__ __forceinline__ void LoadFour(const float* p, int count, float (&v)[4]) {
  if (count == 4) return LoadVec<4>(p, v);
  LoadEach(p, count, v);
}

__device__ __forceinline__ SoftmaxTotal Joined(const SoftmaxTotal& a, const SoftmaxTotal& b) {
  SoftmaxTotal all;
  all.high = fmaxf(a.high, b.high);
  all.total = a.total * expf(a.high - all.Shift()) + b.total * expf(b.high - all.Shift());
  return all;
}

// The terms of one chunk of classes, the range-th: a block for each token. bias: of the chunk, or null.
__global__ void __launch_bounds__(kRowThreads)
    RowTerms(const float* logits, int64_t stride, int64_t width, int64_t first, const float* bias,
             const int32_t* targets, bool skip_target, int64_t range, int64_t tokens, PartialTerms out) {
  __shared__ float high[kWarps], total[kWarps], sums[kWarps];
  const int64_t t = blockIdx.x;
  const float* const row = logits + t * stride;
  const int64_t at = targets[t] - first;  // the column of the target
  SoftmaxTotal mine;
  float sum = 0.f;
  for (int64_t c = 4 * threadIdx.x; c < width; c += 4 * kRowThreads) {
    const int count = c + 4 <= width ? 4 : static_cast<int>(width - c);
    float x[4];
    LoadFour(row + c, count, x);
    float top = -INFINITY;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j >= count) {
        x[j] = -INFINITY;
        continue;
      }
      if (bias != nullptr) x[j] += bias[c + j];
      sum += x[j];
      if (c + j == at) {
        if (skip_target) {
          x[j] = -INFINITY;
        } else {
          out.picked[t] = x[j];
        }
      }
      top = fmaxf(top, x[j]);
    }
    mine.Raise(top);
#pragma unroll
    for (int j = 0; j < 4; ++j) mine.total += expf(x[j] - mine.Shift());
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const SoftmaxTotal other{__shfl_xor_sync(0xffffffffu, mine.high, distance),
                             __shfl_xor_sync(0xffffffffu, mine.total, distance)};
    mine = Joined(mine, other);
    sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  }
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) high[warp] = mine.high, total[warp] = mine.total, sums[warp] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int n = 1; n < kWarps; ++n) mine = Joined(mine, SoftmaxTotal{high[n], total[n]}), sum += sums[n];
  const int64_t to = range * tokens + t;
  out.high[to] = mine.high, out.total[to] = mine.total, out.sum[to] = sum;
}

// The logits of a chunk become their gradients; chunk.gradient may be the same memory. bias: of the chunk, or null.
template <typename H>
__global__ void __launch_bounds__(kColumnThreads)
    TurnLogits(const float* logits, SoftmaxChunk<H> chunk, const float* bias, TokenGradients of) {
  __shared__ TokenGradient tokens[kTokens];
  const int64_t token_tiles = CeilDiv(chunk.count, int64_t{kTokens}), tile = blockIdx.x % token_tiles;
  const int64_t token = tile * kTokens, c = (blockIdx.x / token_tiles * kColumnThreads + threadIdx.x) * 4;
  const int rows = static_cast<int>(min(chunk.count - token, int64_t{kTokens}));
  if (threadIdx.x < rows) tokens[threadIdx.x] = of.At(chunk.token + token + threadIdx.x);
  __syncthreads();
  if (c >= chunk.width) return;
  const int count = c + 4 <= chunk.width ? 4 : static_cast<int>(chunk.width - c);
  float offset[4] = {}, sums[4] = {};
  if (bias != nullptr) LoadEach(bias + c, count, offset);
#pragma unroll 4
  for (int r = 0; r < rows; ++r) {
    const int64_t at = (token + r) * chunk.stride + c;
    const TokenGradient& one = tokens[r];
    const int64_t of_target = one.target - chunk.first - c;  // which of the four is the target, if one is
    float x[4];
    LoadFour(logits + at, count, x);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      x[j] = one.Of(x[j] + offset[j], j == of_target);
      sums[j] += x[j];
    }
    if (count == 4) {
      StoreVec<4>(chunk.gradient + at, x);
    } else {
      StoreEach(x, count, chunk.gradient + at);
    }
  }
  if (chunk.column_sums == nullptr) return;
  StoreEach(sums, count, chunk.column_sums + tile * chunk.stride + c);
}

// One call: its chunks, its memory, and the products.
template <typename T, typename H>
class LibraryCall {
 public:
  LibraryCall(const SoftmaxRows<T>& table, const SoftmaxBatch<H, int32_t>& batch, const GpuCall& call)
      : table_(table),
        batch_(batch),
        call_(call),
        tokens_(EvenPiece(batch.count, SoftmaxTuning::kMostTokens, kTokens)),
        width_(EvenPiece(table.classes, SoftmaxTuning::kChunkLogits / tokens_ / kUnit * kUnit, kUnit)) {}

  int Terms(const SoftmaxTerms& terms) {
    if (!Opened()) return kNoProduct;
    const int64_t ranges = CeilDiv(table_.classes, width_);
    const PartialTerms parts{Take<float>(ranges * tokens_), Take<float>(ranges * tokens_),
                             Take<float>(ranges * tokens_), Take<float>(tokens_)};
    LARGEOUT_RETURN_IF_ERROR(Reserve());
    for (int64_t token = 0; token < batch_.count; token += tokens_) {
      const int64_t count = std::min(tokens_, batch_.count - token);
      const int32_t* const targets = batch_.targets + token;
      for (int64_t range = 0; range < ranges; ++range) {
        const SoftmaxChunk<H> chunk = Chunk(token, range * width_);
        LARGEOUT_RETURN_IF_ERROR(Logits(chunk, true));
        LARGEOUT_RETURN_IF_ERROR(Launch(RowTerms, static_cast<unsigned>(count), kRowThreads, 0, call_.stream,
                                        logits_, width_, chunk.width, chunk.first, Bias(chunk), targets,
                                        batch_.skip_target, range, count, parts));
      }
      LARGEOUT_RETURN_IF_ERROR(JoinTerms(parts, ranges, targets, count, batch_.skip_target,
                                         {terms.lse + token, terms.ce + token, terms.sum + token},
                                         call_.stream));
    }
    return 0;
  }

  int Gradient(const TokenGradients& of, const SoftmaxBatchGradients<H, T>& out, float* d_hidden) {
    if (!Opened()) return kNoProduct;
    if (out.bias != nullptr) column_sums_ = Take<float>(CeilDiv(tokens_, int64_t{kTokens}) * width_);
    hidden_ = d_hidden;
    if constexpr (std::is_same_v<H, float>) {
      if (hidden_ == nullptr) hidden_ = out.hidden;
    } else {
      if (out.hidden != nullptr) hidden_ = Take<float>(batch_.count * table_.dim);
      gradient_ = Take<H>(tokens_ * width_);
    }
    // Rows of bfloat16 are not rounded before all tokens are in.
    if (out.rows != nullptr && !std::is_same_v<T, float>) row_sums_ = Take<float>(width_ * table_.dim);
    LARGEOUT_RETURN_IF_ERROR(Reserve());
    if constexpr (std::is_same_v<H, float>) gradient_ = logits_;
    for (int64_t first = 0; first < table_.classes; first += width_) {
      for (int64_t token = 0; token < batch_.count; token += tokens_)
        LARGEOUT_RETURN_IF_ERROR(GradientOf(Chunk(token, first), of, out));
    }
    if constexpr (!std::is_same_v<H, float>) {
      if (out.hidden != nullptr)
        return RoundCuda(hidden_, batch_.count * table_.dim, out.hidden, call_.stream);
    }
    return 0;
  }

 private:
  static constexpr int64_t kUnit = 128;  // rows of logits are aligned to 512 bytes
  static constexpr bool kRounds = std::is_same_v<T, float> && !std::is_same_v<H, float>;

  bool Opened() {
    if (std::is_same_v<H, float> && !call_.tf32) return false;
    if (!call_.library || table_.dim == 0 || table_.classes == 0) return false;
    blas_ = Blas::OfDevice(call_);
    return blas_ != nullptr;
  }

  template <typename X>
  X* Take(int64_t n) {
    X* const taken = call_.scratch->Take<X>(n);
    lacks_memory_ = lacks_memory_ || taken == nullptr;
    return taken;
  }

  int Reserve() {
    logits_ = Take<float>(tokens_ * width_);
    workspace_ = Take<char>(Blas::kWorkspaceBytes);
    if constexpr (kRounds) rounded_ = Take<bfloat16>(width_ * table_.dim);
    return lacks_memory_ ? kNoMemory : 0;
  }

  SoftmaxChunk<H> Chunk(int64_t token, int64_t first) const {
    return {token, std::min(tokens_, batch_.count - token),   first, std::min(width_, table_.classes - first),
            width_, gradient_, column_sums_};
  }
  const float* Bias(const SoftmaxChunk<H>& chunk) const {
    return table_.bias == nullptr ? nullptr : table_.bias + chunk.first;
  }
  BlasFactor<H> Hidden(const SoftmaxChunk<H>& chunk) const {
    return {batch_.hidden + chunk.token * table_.dim, table_.dim, false};
  }
  // The rows of the chunk, of the type of hidden vectors.
  BlasFactor<H> Rows(const SoftmaxChunk<H>& chunk, bool transposed) const {
    if constexpr (kRounds) {
      return {rounded_, table_.dim, transposed};
    } else {
      return {table_.rows + chunk.first * table_.dim, table_.dim, transposed};
    }
  }

  template <typename O>
  int Multiply(const BlasSizes& sizes, const BlasFactor<H>& a, const BlasFactor<H>& b, bool add, O* out,
               int64_t stride) {
    return blas_->Multiply(sizes, a, b, add, out, stride, workspace_, call_.stream);
  }

  // Without biases. new_rows: other classes than those of the chunk before.
  int Logits(const SoftmaxChunk<H>& chunk, bool new_rows) {
    if constexpr (kRounds) {
      if (new_rows) {
        LARGEOUT_RETURN_IF_ERROR(RoundCuda(table_.rows + chunk.first * table_.dim, chunk.width * table_.dim,
                                           rounded_, call_.stream));
      }
    }
    return Multiply({chunk.count, chunk.width, table_.dim}, Hidden(chunk), Rows(chunk, true), false, logits_,
                    width_);
  }

  int GradientOf(const SoftmaxChunk<H>& chunk, const TokenGradients& of, const SoftmaxBatchGradients<H, T>& out) {
    const int64_t dim = table_.dim;
    const bool first_tokens = chunk.token == 0, last_tokens = chunk.token + chunk.count == batch_.count;
    LARGEOUT_RETURN_IF_ERROR(Logits(chunk, first_tokens));
    const int64_t blocks =
        CeilDiv(chunk.count, int64_t{kTokens}) * CeilDiv(chunk.width, int64_t{4 * kColumnThreads});
    LARGEOUT_RETURN_IF_ERROR(Launch(TurnLogits<H>, static_cast<unsigned>(blocks), kColumnThreads, 0,
                                    call_.stream, logits_, chunk, Bias(chunk), of));
    if (out.bias != nullptr) {
      LARGEOUT_RETURN_IF_ERROR(Launch(JoinColumns<H>, ElementBlocks(chunk.width), kElementThreads, 0,
                                      call_.stream, chunk, kTokens, !first_tokens, out.bias + chunk.first));
    }
    const BlasFactor<H> gradient{chunk.gradient, width_, false}, turned{chunk.gradient, width_, true};
    if (out.rows != nullptr) {
      T* const d_rows = out.rows + chunk.first * dim;
      float* sums = row_sums_;
      if constexpr (std::is_same_v<T, float>) sums = d_rows;
      LARGEOUT_RETURN_IF_ERROR(
          Multiply({chunk.width, dim, chunk.count}, turned, Hidden(chunk), !first_tokens, sums, dim));
      if constexpr (!std::is_same_v<T, float>) {
        if (last_tokens) LARGEOUT_RETURN_IF_ERROR(RoundCuda(sums, chunk.width * dim, d_rows, call_.stream));
      }
    }
    if (hidden_ == nullptr) return 0;
    return Multiply({chunk.count, dim, chunk.width}, gradient, Rows(chunk, false), chunk.first > 0,
                    hidden_ + chunk.token * dim, dim);
  }

  const SoftmaxRows<T>& table_;
  const SoftmaxBatch<H, int32_t>& batch_;
  const GpuCall& call_;
  const int64_t tokens_, width_;  // of a chunk
  Blas* blas_ = nullptr;
  float *logits_ = nullptr, *column_sums_ = nullptr, *row_sums_ = nullptr, *hidden_ = nullptr;
  H* gradient_ = nullptr;
  bfloat16* rounded_ = nullptr;
  char* workspace_ = nullptr;
  bool lacks_memory_ = false;
};

template <typename T, typename H>
constexpr bool kHasProducts = std::is_same_v<T, float> || !std::is_same_v<H, float>;

}  // namespace

template <typename T, typename H>
int LibraryTerms(const SoftmaxRows<T>& table, const SoftmaxBatch<H, int32_t>& batch, const SoftmaxTerms& terms,
                 const GpuCall& call) {
  if constexpr (kHasProducts<T, H>) return LibraryCall<T, H>(table, batch, call).Terms(terms);
  return kNoProduct;
}

template <typename T, typename H>
int LibraryGradient(const SoftmaxRows<T>& table, const SoftmaxBatch<H, int32_t>& batch, const TokenGradients& of,
                    const SoftmaxBatchGradients<H, T>& out, float* d_hidden,
                    const GpuCall& call) {
  if constexpr (kHasProducts<T, H>) return LibraryCall<T, H>(table, batch, call).Gradient(of, out, d_hidden);
  return kNoProduct;
}

#define LARGEOUT_LIBRARY(T, H)                                                                                 \
  template int LibraryTerms(const SoftmaxRows<T>&, const SoftmaxBatch<H, int32_t>&, const SoftmaxTerms&,       \
                            const GpuCall&);                                                                   \
  template int LibraryGradient(const SoftmaxRows<T>&, const SoftmaxBatch<H, int32_t>&, const TokenGradients&, \
                               const SoftmaxBatchGradients<H, T>&, float*, const GpuCall&);
LARGEOUT_LIBRARY(float, float)
LARGEOUT_LIBRARY(float, bfloat16)
LARGEOUT_LIBRARY(bfloat16, float)
LARGEOUT_LIBRARY(bfloat16, bfloat16)

}  // namespace largeout
