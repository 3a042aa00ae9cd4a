// The backward pass. A task goes through a range of classes for one block of examples: gradients of logits,
// of weights, and the sum of the gradients of the inputs, which it alone adds to.
//
// With one block, gradients of weights live for one chunk: the task applies them at once. With several blocks
// they are sums over blocks: classes are gone through in *spans*, so many that the gradients of all blocks
// fit the scratch memory; after the tasks of a span, its gradients are summed and applied.
#include <cstring>

#include "fan_in/fan_in_apply.h"
#include "fan_in/fan_in_gradients.h"

namespace largeout {
namespace {

// The sums of input gradients, one a range and block: at least 4 tasks, and 16 where they do not take more
// than 64 MB.
constexpr int64_t kMostTasks = 16, kLeastTasks = 4, kSumFloats = int64_t{16} << 20;
constexpr int64_t kSpanFloats = int64_t{4} << 20;

struct Plan {
  Plan(int64_t classes, int64_t fan_in, const FanInBatch& batch, bool input_gradient)
      : blocks(batch.blocks), sum_floats(input_gradient ? batch.inputs * batch.width : 0) {
    const int64_t fitting = sum_floats == 0 ? 64 : kSumFloats / sum_floats;
    const int64_t tasks = std::clamp(fitting, kLeastTasks, input_gradient ? kMostTasks : 64);
    ranges = std::max<int64_t>(1, tasks / std::max<int64_t>(1, blocks));
    ranges = std::min(ranges, std::max<int64_t>(1, classes / 1024));
    // Clearing and adding a sum takes about as long as 2 connections for each of its inputs.
    if (input_gradient) {
      ranges =
          std::min(ranges, std::max<int64_t>(1, classes * fan_in / (8 * std::max<int64_t>(1, batch.inputs))));
    }
    span = classes;
    if (blocks > 1) {
      span = std::max(ranges, kSpanFloats / (blocks * (fan_in + 1)) / kFanInChunk) * kFanInChunk;
      span_floats = blocks * std::min(span, classes) * (fan_in + 1);
    }
  }
  int64_t blocks, ranges, span, span_floats = 0;
  int64_t sum_floats;  // of one sum of input gradients; 0 without
};

template <typename T, typename Id>
class BackwardPass {
 public:
  BackwardPass(const FanInLayer<T, Id>& layer, const FanInBatch& batch, const float* blocks,
               const FanInGradients& gradients, const FanInStep<T>& step, const Plan& plan, float* scratch)
      : layer_(layer),
        batch_(batch),
        blocks_(blocks),
        gradients_(gradients),
        apply_(step, layer.fan_in),
        plan_(plan),
        sums_(scratch),
        partial_(scratch + plan.ranges * plan.blocks * plan.sum_floats),
        touched_(plan.ranges * plan.blocks, 0) {}

  int64_t Run(float* d_blocks, Parallel* parallel) {
    FirstBadRow bad;
    for (int64_t first = 0; first < layer_.classes; first += plan_.span) {
      Span span(first, std::min(plan_.span, layer_.classes - first), plan_);
      parallel->For(span.ranges.count * plan_.blocks,
                    4 * FanInCost(span.ranges.rows, layer_.fan_in, batch_.width),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t task = begin; task < end; ++task) Task(task, &span, &bad);
                    });
      if (plan_.blocks > 1 && apply_.wanted()) ApplySpan(span, parallel);
    }
    if (d_blocks != nullptr) AddSums(d_blocks, parallel);
    return bad.get();
  }

 private:
  struct Span {
    Span(int64_t first, int64_t rows, const Plan& plan)
        : first(first),
          rows(rows),
          ranges(rows, plan.ranges, 1),
          found(plan.blocks > 1 ? plan.blocks * rows : 0) {}
    int64_t first, rows;
    FanInRanges ranges;
    std::vector<uint8_t> found;  // [blocks, rows] whether there is a gradient; with several blocks only
  };

  void Task(int64_t task, Span* span, FirstBadRow* bad) {
    const int64_t block = task / span->ranges.count, range = task % span->ranges.count,
                  fan_in = layer_.fan_in;
    const bool single = plan_.blocks == 1;
    const int64_t chunk = std::min(kFanInChunk, layer_.classes);
    std::vector<float> own_weights(single ? chunk * fan_in : 0), own_bias(single ? chunk : 0);
    float* sum = plan_.sum_floats == 0 ? nullptr : sums_ + (range * plan_.blocks + block) * plan_.sum_floats;
    uint8_t own_found[kFanInChunk];
    BlockGradients<T, Id> source(layer_, batch_, blocks_, gradients_, block,
                                 span->first + span->ranges.begin(range));
    for (int64_t at = span->ranges.begin(range); at < span->ranges.end(range); at += kFanInChunk) {
      const int64_t n = std::min(kFanInChunk, span->ranges.end(range) - at), row = span->first + at;
      float* d_weights = single ? own_weights.data() : PartialWeights(*span, block) + at * fan_in;
      float* d_bias = single ? own_bias.data() : PartialBias(*span, block) + at;
      uint8_t* found = single ? own_found : span->found.data() + block * span->rows + at;
      std::memset(found, 0, n);
      const Id* indices = layer_.indices + row * fan_in;
      const bool any = source.Any(row, n);
      const int64_t wrong = any ? FindBadRow(kernels_.max_index, indices, n, fan_in, layer_.inputs) : -1;
      if (wrong >= 0) {
        bad->Found(row + wrong);
        continue;
      }
      if (any && (sum != nullptr || apply_.wanted()))
        source.Chunk(row, n, [&](const GradientTile& tile) {
          for (int64_t i = 0; i < tile.count; ++i) found[tile.rows[i]] = 1;
          if (sum != nullptr && !touched_[range * plan_.blocks + block]) {
            touched_[range * plan_.blocks + block] = 1;
            std::memset(sum, 0, plan_.sum_floats * sizeof(float));
          }
          kernels_.backward(layer_.weights + row * fan_in, indices, fan_in, {tile.rows, tile.count},
                            source.inputs(), batch_.width, tile.values, apply_.wanted() ? d_weights : nullptr,
                            apply_.wanted() ? d_bias : nullptr, sum);
        });
      if (single) apply_.Chunk(row, n, found, d_weights, d_bias);
    }
  }

  // Sums the blocks' gradients in the place of the first one's, and applies them.
  void ApplySpan(Span& span, Parallel* parallel) {
    const int64_t chunks = (span.rows + kFanInChunk - 1) / kFanInChunk, fan_in = layer_.fan_in;
    parallel->For(chunks, kFanInChunk * fan_in * (plan_.blocks + 4), [&](int64_t begin, int64_t end) {
      for (int64_t at = begin * kFanInChunk; at < std::min(span.rows, end * kFanInChunk); at += kFanInChunk) {
        const int64_t n = std::min(kFanInChunk, span.rows - at);
        float* weights = PartialWeights(span, 0) + at * fan_in;
        float* bias = PartialBias(span, 0) + at;
        uint8_t* found = span.found.data() + at;
        for (int64_t block = 1; block < plan_.blocks; ++block) {
          const float* more = PartialWeights(span, block) + at * fan_in;
          for (int64_t i = 0; i < n; ++i) {
            if (!span.found[block * span.rows + at + i]) continue;
            if (!found[i]) {
              std::memset(weights + i * fan_in, 0, fan_in * sizeof(float));
              bias[i] = 0.f;
              found[i] = 1;
            }
            for (int64_t k = i * fan_in; k < (i + 1) * fan_in; ++k) weights[k] += more[k];
            bias[i] += PartialBias(span, block)[at + i];
          }
        }
        apply_.Chunk(span.first + at, n, found, weights, bias);
      }
    });
  }

  // The sums of all ranges, in their order. d_blocks may be where the sums of the first range are.
  void AddSums(float* d_blocks, Parallel* parallel) {
    constexpr int64_t kStrip = 4096;
    const int64_t strips = (plan_.sum_floats + kStrip - 1) / kStrip;
    parallel->For(plan_.blocks * strips, plan_.ranges * kStrip / 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t block = i / strips, first = i % strips * kStrip,
                      n = std::min(kStrip, plan_.sum_floats - first);
        float total[kStrip] = {};
        for (int64_t range = 0; range < plan_.ranges; ++range) {
          if (!touched_[range * plan_.blocks + block]) continue;
          const float* sum = sums_ + (range * plan_.blocks + block) * plan_.sum_floats + first;
          for (int64_t j = 0; j < n; ++j) total[j] += sum[j];
        }
        std::memcpy(d_blocks + block * plan_.sum_floats + first, total, n * sizeof(float));
      }
    });
  }

  float* PartialWeights(const Span& span, int64_t block) const {
    return partial_ + block * span.rows * (layer_.fan_in + 1);
  }
  float* PartialBias(const Span& span, int64_t block) const {
    return PartialWeights(span, block) + span.rows * layer_.fan_in;
  }

  const FanInKernels<T, Id>& kernels_ = SelectFanIn<T, Id>();
  const FanInLayer<T, Id> layer_;
  const FanInBatch batch_;
  const float* blocks_;
  const FanInGradients& gradients_;
  const ApplyGradients<T> apply_;
  const Plan plan_;
  float *sums_, *partial_;
  std::vector<uint8_t> touched_;  // [ranges, blocks] whether a sum of input gradients was begun
};

}  // namespace

template <>
template <typename T, typename Id>
int FanInCpu::Backward(const FanInLayer<T, Id>& layer, const FanInGradients& gradients,
                       const FanInStep<T>& step, bool input_gradient, int64_t* bad) {
  *bad = -1;
  if (batch_.size == 0) {  // no block, no task; but Adam moves, and gradients are written
    const ApplyGradients<T> apply(step, layer.fan_in);
    std::vector<float> zeros(std::min(kFanInChunk, layer.classes) * (layer.fan_in + 1));
    const uint8_t found[kFanInChunk] = {};
    for (int64_t row = 0; row < layer.classes; row += kFanInChunk) {
      const int64_t n = std::min(kFanInChunk, layer.classes - row);
      apply.Chunk(row, n, found, zeros.data(), zeros.data() + n * layer.fan_in);
    }
    return 0;
  }
  const Plan plan(layer.classes, layer.fan_in, batch_, input_gradient);
  float* sums = call_.scratch->Take<float>(plan.ranges * plan.blocks * plan.sum_floats + plan.span_floats);
  if (sums == nullptr) return kNoMemory;
  d_blocks_ = input_gradient ? sums : nullptr;  // the sums of all ranges become the first one
  *bad =
      BackwardPass<T, Id>(layer, batch_, blocks_, gradients, step, plan, sums).Run(d_blocks_, call_.parallel);
  return 0;
}

#define LARGEOUT_BACKWARD(T, Id)                                                          \
  template int FanInCpu::Backward<T, Id>(const FanInLayer<T, Id>&, const FanInGradients&, \
                                         const FanInStep<T>&, bool, int64_t*);
LARGEOUT_BACKWARD(float, uint16_t)
LARGEOUT_BACKWARD(float, uint32_t)
LARGEOUT_BACKWARD(bfloat16, uint16_t)
LARGEOUT_BACKWARD(bfloat16, uint32_t)
#undef LARGEOUT_BACKWARD

}  // namespace largeout
