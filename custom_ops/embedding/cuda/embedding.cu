// Lookup and the gradient of the weights. The gradient of the table: embedding_grad.cu.
#include <type_traits>

#include "common/cuda/cuda_warp.cuh"
#include "common/cuda/late_report.cuh"
#include "common/cuda/launch.cuh"
#include "embedding/cuda/embedding_plan.h"
#include "embedding/cuda/embedding_sums.cuh"

namespace largeout {
namespace {

template <typename Id>
__global__ void CheckIds(const Id* ids, int64_t n, int64_t rows, unsigned long long* first) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < n && static_cast<uint64_t>(ids[i]) >= static_cast<uint64_t>(rows)) {
    atomicMin(first, static_cast<unsigned long long>(i));
  }
}

__global__ void CheckSplits(const int64_t* splits, int64_t count, int64_t num_ids, unsigned long long* first) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= count) return;
  const int64_t split = splits[i];
  const bool ordered = i == 0 ? split == 0 : split >= splits[i - 1];
  if (!ordered || split > num_ids || (i == count - 1 && split != num_ids)) {
    atomicMin(first, static_cast<unsigned long long>(i));
  }
}

// The rules that ids and row_splits break.
enum LateBagRule { kIdInRange, kSplitsInOrder };

template <typename Id>
__global__ void ReportBad(Bags<Id> bags, int64_t rows, const int64_t* first, LateFinding* late) {
  if (first[0] >= 0) {
    Post(late, kSplitsInOrder, first[0], bags.row_splits[first[0]], bags.num_ids);
  } else if (first[1] >= 0) {
    Post(late, kIdInRange, first[1], static_cast<int64_t>(bags.ids[first[1]]), rows);
  }
}

// checks: the first bad split, and the first bad id; -1: none.
template <typename Id>
int FindBad(const Bags<Id>& bags, int64_t rows, int64_t* checks, GpuStream stream) {
  auto* first = reinterpret_cast<unsigned long long*>(checks);
  LARGEOUT_CUDA_RETURN(cudaMemsetAsync(first, 0xff, 2 * sizeof(int64_t), stream));  // -1, and more than any position
  if (bags.row_splits != nullptr) {
    LARGEOUT_RETURN_IF_ERROR(Launch(CheckSplits, BlocksFor(bags.num_bags + 1), kThreads, 0, stream,
                                    bags.row_splits, bags.num_bags + 1, bags.num_ids, first));
  }
  if (rows < 0 || bags.num_ids == 0) return 0;
  return Launch(CheckIds<Id>, BlocksFor(bags.num_ids), kThreads, 0, stream, bags.ids, bags.num_ids, rows, first + 1);
}

// The begin of the row of a bag's id in the table; -1 where it is out of range or there is none. And its weight,
// which then is 0.
template <bool kWeighted>
struct BagRow {
  int64_t first = -1;
  float weight = 0.f;

  template <typename Id>
  static __device__ __forceinline__ BagRow At(const Bags<Id>& bags, uint32_t position, uint32_t end,
                                              int64_t rows,
                                              int64_t dim) {
    BagRow row;
    if (position >= end) return row;
    const int64_t id = static_cast<int64_t>(bags.ids[position]);
    if (static_cast<uint64_t>(id) >= static_cast<uint64_t>(rows)) return row;
    row.first = id * dim;
    if constexpr (kWeighted) row.weight = bags.weights[position];
    return row;
  }
  __device__ __forceinline__ BagRow From(const Lanes& lanes, int lane) const {
    BagRow row;
    row.first = lanes.From(first, lane);
    if constexpr (kWeighted) row.weight = lanes.From(weight, lane);
    return row;
  }
};

// One team of `lanes` lanes a bag. Each lane reads one of the next ids, and hands it to the others (kShares; else each
// reads all of them). Rows that are missing add zeros: nothing branches between the loads of kRows rows and their sums.
template <typename T, typename Id, int kPack, int kVectors, bool kWeighted, bool kShares>
__global__ void __launch_bounds__(kThreads, kVectors == 1 && kShares && !kWeighted ? 4 : 1) LookupBags(const T* table, int64_t rows, int64_t dim,
                                                       Bags<Id> bags, Combiner combiner, T* out, int lanes) {
  using OneTile = Tile<T, kPack, kVectors>;
  constexpr int kRows = kFlight<kVectors>;
  const int64_t bag = Team(lanes);
  if (bag >= bags.num_bags) return;
  const Lanes team(lanes);
  const uint32_t most = kShares ? lanes : kRows;
  const Positions positions = PositionsOf(bags, bag);
  // Below 2^31; and a few beyond them are not below 0.
  const uint32_t begin = static_cast<uint32_t>(positions.begin), end = static_cast<uint32_t>(positions.end);
  const int64_t step = int64_t{lanes} * kPack;
  for (int64_t first = 0; first < dim; first += step * kVectors) {
    const int64_t column = first + team.own * kPack, left = dim - column;
    OneTile tile;
    tile.Clear();
    float divisor = 0.f;
    for (uint32_t p = begin; p < end; p += most) {
      BagRow<kWeighted> own;
      if (kShares) own = own.At(bags, p + team.own, end, rows, dim);
      if (!kWeighted && kShares && combiner != Combiner::kSum) {
        divisor += static_cast<float>(__popc(__ballot_sync(team.mask, own.first >= 0)));
      }
      for (uint32_t t = 0; t < most && p + t < end; t += kRows) {
        typename OneTile::Piece piece[kRows][kVectors];
        float weight[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const auto row = kShares ? own.From(team, t + r) : own.At(bags, p + r, end, rows, dim);
          weight[r] = row.weight;
          OneTile::LoadOrZero(table + column + row.first, step, row.first >= 0 ? left : 0, piece[r]);
          if (!kWeighted && !kShares) divisor += row.first >= 0 ? 1.f : 0.f;
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          if constexpr (kWeighted) {
            tile.AddTimes(weight[r], piece[r]);
            divisor += combiner == Combiner::kMean ? weight[r] : weight[r] * weight[r];
          } else {
            tile.AddOnce(piece[r]);
          }
        }
      }
    }
    if (combiner != Combiner::kSum) {
      if (combiner == Combiner::kSqrtn) divisor = sqrtf(divisor);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
#pragma unroll
        for (int i = 0; i < kPack; ++i) tile.sum[v][i] = divisor == 0.f ? 0.f : tile.sum[v][i] / divisor;
      }
    }
    tile.Store(out + bag * dim + column, step, left);
  }
}

// Bags of one id without weights: rows are copied as they are. A team copies kCopyRows rows that are `teams` apart.
constexpr int kCopyRows = 4;
template <typename Id, typename Piece>
__global__ void __launch_bounds__(kThreads) CopyRows(const Piece* table, int64_t rows, int64_t pieces, const Id* ids,
                                                     int64_t n, int64_t teams, Piece* out, int lanes) {
  const int64_t team = Team(lanes);
  if (team >= teams) return;
  int64_t id[kCopyRows];
#pragma unroll
  for (int r = 0; r < kCopyRows; ++r) {
    id[r] = team + r * teams < n ? static_cast<int64_t>(ids[team + r * teams]) : -1;
  }
  for (int64_t i = threadIdx.x % lanes; i < pieces; i += lanes) {
    Piece piece[kCopyRows];
#pragma unroll
    for (int r = 0; r < kCopyRows; ++r) {
      const bool valid = static_cast<uint64_t>(id[r]) < static_cast<uint64_t>(rows);
      piece[r] = valid ? table[id[r] * pieces + i] : Piece{};
    }
#pragma unroll
    for (int r = 0; r < kCopyRows; ++r) {
      if (team + r * teams < n) out[(team + r * teams) * pieces + i] = piece[r];
    }
  }
}

template <typename Id, typename Piece>
int Copy(const void* table, int64_t rows, int64_t row_bytes, const Bags<Id>& bags, void* out, GpuStream stream) {
  const int64_t pieces = row_bytes / static_cast<int64_t>(sizeof(Piece));
  const int64_t teams = (bags.num_ids + kCopyRows - 1) / kCopyRows;
  const int lanes = TeamLanes(pieces);
  return Launch(CopyRows<Id, Piece>, BlocksFor(teams * lanes), kThreads, 0, stream,
                static_cast<const Piece*>(table), rows, pieces, bags.ids, bags.num_ids, teams,
                static_cast<Piece*>(out), lanes);
}

// One warp a bag: the dots first, then their weighted mean, which is grad . out[bag].
template <typename T, typename Id, int kPack>
__global__ void __launch_bounds__(kThreads)
    BagWeightsGrad(const T* table, int64_t rows, int64_t dim, Bags<Id> bags, Combiner combiner, const T* grad,
                   float* weights_grad) {
  using Piece = Pack<T, kPack>;
  const int64_t thread = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const int64_t bag = thread / 32, lane = thread % 32;
  if (bag >= bags.num_bags) return;
  const auto [begin, end] = PositionsOf(bags, bag);
  float total = 0.f, divisor = 0.f;
  for (int64_t p = begin; p < end; ++p) {
    const int64_t id = static_cast<int64_t>(bags.ids[p]);
    const bool valid = static_cast<uint64_t>(id) < static_cast<uint64_t>(rows);
    const float weight = bags.weights != nullptr ? bags.weights[p] : 1.f;
    float dot = 0.f;
    for (int64_t column = lane * kPack; valid && column < dim; column += 32 * kPack) {
      float x[kPack], g[kPack];
      reinterpret_cast<const Piece*>(table + id * dim + column)->Floats(x);
      reinterpret_cast<const Piece*>(grad + bag * dim + column)->Floats(g);
#pragma unroll
      for (int i = 0; i < kPack; ++i) dot = fmaf(x[i], g[i], dot);
    }
    dot = WarpSum(dot);
    if (valid) {
      total += weight * dot;
      divisor += combiner == Combiner::kMean ? weight : weight * weight;
    }
    if (lane == 0) weights_grad[p] = dot;
  }
  if (combiner == Combiner::kSum || lane != 0) return;
  if (combiner == Combiner::kSqrtn) divisor = sqrtf(divisor);
  const float mean = combiner == Combiner::kMean ? total / divisor : total / divisor / divisor;
  for (int64_t p = begin; p < end; ++p) {
    if (divisor == 0.f || static_cast<uint64_t>(bags.ids[p]) >= static_cast<uint64_t>(rows)) {
      weights_grad[p] = 0.f;
    } else {
      const float weight = combiner == Combiner::kMean || bags.weights == nullptr ? 1.f : bags.weights[p];
      weights_grad[p] = (weights_grad[p] - weight * mean) / divisor;
    }
  }
}

}  // namespace

template <>
template <typename Id>
int EmbeddingGpu::Check(const Bags<Id>& bags, int64_t rows, BadBags* bad) {
  *bad = {};
  LateReport* const late = call_.late;
  const GpuStream stream = call_.stream;
  LateFinding earlier;
  if (late != nullptr && late->Take(&earlier)) {
    (earlier.rule == kIdInRange ? bad->id : bad->split) = earlier.position;
    bad->value = earlier.value, bad->late = true, bad->limit = earlier.limit;
    return 0;
  }
  if ((rows < 0 || bags.num_ids == 0) && bags.row_splits == nullptr) return 0;
  int64_t* checks = call_.scratch->Take<int64_t>(2);
  if (checks == nullptr) return kNoMemory;
  LateFinding* slot;
  if (late != nullptr) LARGEOUT_RETURN_IF_ERROR(late->Open(&slot));
  LARGEOUT_RETURN_IF_ERROR(FindBad(bags, rows, checks, stream));
  if (late != nullptr) return Launch(ReportBad<Id>, 1, 1, 0, stream, bags, rows, checks, slot);
  int64_t found[2];
  LARGEOUT_RETURN_IF_ERROR(CopyToHostCuda(checks, sizeof(found), found, stream));
  bad->split = found[0];
  if (bad->split >= 0)
    return CopyToHostCuda(bags.row_splits + bad->split, sizeof(bad->value), &bad->value, stream);
  bad->id = found[1];
  if (bad->id < 0) return 0;
  Id id = 0;
  LARGEOUT_RETURN_IF_ERROR(CopyToHostCuda(bags.ids + bad->id, sizeof(id), &id, stream));
  bad->value = id;
  return 0;
}

template <>
template <typename T, typename Id>
int EmbeddingGpu::Lookup(const T* table, int64_t rows, int64_t dim, const Bags<Id>& bags, Combiner combiner,
                         T* out) {
  if (bags.num_bags == 0 || dim == 0) return 0;
  if (bags.row_splits == nullptr && bags.bag_size == 1 && bags.weights == nullptr) {
    const int64_t bytes = dim * static_cast<int64_t>(sizeof(T));
    if (Packs<T>(dim, table, out)) return Copy<Id, uint4>(table, rows, bytes, bags, out, call_.stream);
    return Copy<Id, T>(table, rows, bytes, bags, out, call_.stream);
  }
  return WithTile<T>(dim, Packs<T>(dim, table, out), [&](auto pack, auto vectors, int lanes) {
    constexpr int kPack = decltype(pack)::value, kVectors = decltype(vectors)::value;
    auto* kernel = bags.weights != nullptr ? LookupBags<T, Id, kPack, kVectors, true, true>
                                           : LookupBags<T, Id, kPack, kVectors, false, true>;
    if constexpr (kVectors == 1) {  // else a row takes all lanes of a warp
      if (lanes < kFlight<1>) {
        kernel = bags.weights != nullptr ? LookupBags<T, Id, kPack, 1, true, false>
                                         : LookupBags<T, Id, kPack, 1, false, false>;
      }
    }
    return Launch(kernel, BlocksFor(bags.num_bags * lanes), kThreads, 0, call_.stream, table, rows, dim, bags,
                  combiner, out, lanes);
  });
}

template <>
template <typename T, typename Id>
int EmbeddingGpu::WeightsGrad(const T* table, int64_t rows, int64_t dim, const Bags<Id>& bags,
                              Combiner combiner, const T* grad, float* weights_grad) {
  if (bags.num_bags == 0 || bags.num_ids == 0) return 0;
  if (bags.row_splits != nullptr) {  // where they are bad, no bag may have a position
    LARGEOUT_CUDA_RETURN(cudaMemsetAsync(weights_grad, 0, bags.num_ids * sizeof(float), call_.stream));
  }
  const unsigned blocks = BlocksFor(bags.num_bags * 32);
  constexpr int kFull = 16 / sizeof(T);
  return Launch(Packs<T>(dim, table, grad) ? BagWeightsGrad<T, Id, kFull> : BagWeightsGrad<T, Id, 1>, blocks,
                kThreads, 0, call_.stream, table, rows, dim, bags, combiner, grad, weights_grad);
}

#define LARGEOUT_INSTANTIATE(T, Id)                                                                    \
  template int EmbeddingGpu::Lookup<T, Id>(const T*, int64_t, int64_t, const Bags<Id>&, Combiner, T*); \
  template int EmbeddingGpu::WeightsGrad<T, Id>(const T*, int64_t, int64_t, const Bags<Id>&, Combiner, \
                                                const T*, float*);
LARGEOUT_INSTANTIATE(float, int32_t)
LARGEOUT_INSTANTIATE(float, int64_t)
LARGEOUT_INSTANTIATE(bfloat16, int32_t)
LARGEOUT_INSTANTIATE(bfloat16, int64_t)
#undef LARGEOUT_INSTANTIATE
template int EmbeddingGpu::Check<int32_t>(const Bags<int32_t>&, int64_t, BadBags*);
template int EmbeddingGpu::Check<int64_t>(const Bags<int64_t>&, int64_t, BadBags*);

}  // namespace largeout
