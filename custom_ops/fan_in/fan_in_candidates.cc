// Gradients of connections that do not exist: those of the logits are the layer's, the inputs are the
// candidates'.
#include "fan_in/fan_in_gradients.h"

namespace largeout {

template <>
template <typename T, typename Id>
int FanInCpu::CandidateGradient(const FanInLayer<T, Id>& layer, const FanInGradients& gradients,
                                const int32_t* candidates, int64_t first_row, int64_t rows, int64_t count,
                                float* d_weights, int64_t* bad, int64_t* bad_candidate) {
  const FanInKernels<T, Id>& kernels = SelectFanIn<T, Id>();
  const FanInKernels<float, uint32_t>& candidate_kernels = SelectFanIn<float, uint32_t>();
  const uint32_t* candidate_ids = AsIndices(candidates);
  const int64_t chunks = (rows + kFanInChunk - 1) / kFanInChunk;
  FirstBadRow bad_rows, bad_candidates;
  call_.parallel->For(
      chunks, batch_.blocks * 2 * FanInCost(kFanInChunk, layer.fan_in + count, batch_.width),
      [&](int64_t begin, int64_t end) {
        std::vector<float> own(std::min(kFanInChunk, rows) * count);
        for (int64_t at = begin * kFanInChunk; at < std::min(rows, end * kFanInChunk); at += kFanInChunk) {
          const int64_t n = std::min(kFanInChunk, rows - at), row = first_row + at;
          float* out = d_weights + at * count;
          std::fill_n(out, n * count, 0.f);
          const int64_t wrong = FindBadRow(kernels.max_index, layer.indices + row * layer.fan_in, n,
                                           layer.fan_in, layer.inputs);
          const int64_t unknown =
              FindBadRow(candidate_kernels.max_index, candidate_ids + at * count, n, count, layer.inputs);
          if (wrong >= 0) bad_rows.Found(row + wrong);
          if (unknown >= 0) bad_candidates.Found(at + unknown);
          if (wrong >= 0 || unknown >= 0) continue;
          for (int64_t block = 0; block < batch_.blocks; ++block) {
            BlockGradients<T, Id> source(layer, batch_, blocks_, gradients, block, row);
            source.Chunk(row, n, [&](const GradientTile& tile) {
              candidate_kernels.backward(nullptr, candidate_ids + at * count, count, {tile.rows, tile.count},
                                         source.inputs(), batch_.width, tile.values, own.data(), nullptr,
                                         nullptr);
              for (int64_t i = 0; i < tile.count; ++i) {
                for (int64_t k = tile.rows[i] * count; k < (tile.rows[i] + 1) * count; ++k) out[k] += own[k];
              }
            });
          }
        }
      });
  *bad_candidate = bad_candidates.get();
  *bad = bad_rows.get();
  return 0;
}

#define LARGEOUT_CANDIDATES(T, Id)                                                                   \
  template int FanInCpu::CandidateGradient<T, Id>(const FanInLayer<T, Id>&, const FanInGradients&,   \
                                                  const int32_t*, int64_t, int64_t, int64_t, float*, \
                                                  int64_t*, int64_t*);
LARGEOUT_CANDIDATES(float, uint16_t)
LARGEOUT_CANDIDATES(float, uint32_t)
LARGEOUT_CANDIDATES(bfloat16, uint16_t)
LARGEOUT_CANDIDATES(bfloat16, uint32_t)
#undef LARGEOUT_CANDIDATES

}  // namespace largeout
