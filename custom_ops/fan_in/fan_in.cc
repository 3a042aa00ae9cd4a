// The layout of a batch, and plain logits.
#include "fan_in/fan_in.h"

#include <cstring>

#include "common/huge_pages.h"
#include "fan_in/fan_in_kernels.h"
#include "fan_in/fan_in_ranges.h"
#include "fan_in/fan_in_write.h"

namespace largeout {
namespace {

constexpr int64_t kColumns = 16;  // inputs that are turned together: one cache line of an example

}  // namespace

bool FindFanInRule(const char* name, FanInRule* rule) {
  for (int i = 0; i < kFanInRules; ++i) {
    if (std::strcmp(name, kFanInRuleInfo[i].name) == 0) {
      *rule = static_cast<FanInRule>(i);
      return true;
    }
  }
  return false;
}

bool FindFanInLoss(const char* name, FanInLoss* loss) {
  for (int i = 0; i < kFanInLosses; ++i) {
    if (std::strcmp(name, kFanInLossNames[i]) == 0) {
      *loss = static_cast<FanInLoss>(i);
      return true;
    }
  }
  return false;
}

template <>
template <typename X>
int FanInCpu::LayOut(const X* inputs) {
  blocks_ = call_.scratch->Take<float>(batch_.floats());
  if (blocks_ == nullptr) return kNoMemory;
  const int64_t count = batch_.inputs, strips = (count + kColumns - 1) / kColumns;
  const int width = batch_.width;
  call_.parallel->For(batch_.blocks * strips, kColumns * width, [&](int64_t begin, int64_t end) {
    for (int64_t strip = begin; strip < end; ++strip) {
      const int64_t block = strip / strips, first = strip % strips * kColumns;
      const int64_t columns = std::min(kColumns, count - first), example = block * width;
      float turned[kColumns * kFanInMaxWidth] = {};
      for (int lane = 0; lane < width && example + lane < batch_.size; ++lane) {
        const X* from = inputs + (example + lane) * count + first;
        for (int64_t i = 0; i < columns; ++i) turned[i * width + lane] = ToFloat(from[i]);
      }
      std::memcpy(blocks_ + (block * count + first) * width, turned, columns * width * sizeof(float));
    }
  });
  return 0;
}

template <>
template <typename X>
int FanInCpu::LayBack(X* d_inputs) {
  const int64_t inputs = batch_.inputs, strips = (inputs + kColumns - 1) / kColumns;
  const int width = batch_.width;
  call_.parallel->For(batch_.blocks * strips, kColumns * width, [&](int64_t begin, int64_t end) {
    for (int64_t strip = begin; strip < end; ++strip) {
      const int64_t block = strip / strips, first = strip % strips * kColumns;
      const int64_t columns = std::min(kColumns, inputs - first), example = block * width;
      const float* from = d_blocks_ + (block * inputs + first) * width;
      for (int lane = 0; lane < width && example + lane < batch_.size; ++lane) {
        X* to = d_inputs + (example + lane) * inputs + first;
        for (int64_t i = 0; i < columns; ++i) FromFloat(from[i * width + lane], to + i);
      }
    }
  });
  return 0;
}

template <>
template <typename T, typename Id>
int FanInCpu::Logits(const FanInLayer<T, Id>& layer, float* logits, int64_t* bad) {
  AdviseHugePages(logits, batch_.size * layer.classes * sizeof(float));
  const FanInKernels<T, Id>& kernels = SelectFanIn<T, Id>();
  const FanInRanges ranges = ForwardRanges(layer.classes);
  const int width = batch_.width;
  const bool stream = batch_.size * layer.classes * static_cast<int64_t>(sizeof(float)) > kFanInCached;
  FirstBadRow bad_rows;
  call_.parallel->For(
      batch_.blocks * ranges.count, FanInCost(ranges.rows, layer.fan_in, width),
      [&](int64_t begin, int64_t end) {
        float tile[kFanInRun * kFanInMaxWidth];
        for (int64_t task = begin; task < end; ++task) {
          const int64_t block = task / ranges.count, range = task % ranges.count, example = block * width;
          const int lanes = static_cast<int>(std::min<int64_t>(width, batch_.size - example));
          for (int64_t row = ranges.begin(range); row < ranges.end(range); row += kFanInRun) {
            const int64_t n = std::min(kFanInRun, ranges.end(range) - row), at = row * layer.fan_in;
            const int64_t wrong =
                FindBadRow(kernels.max_index, layer.indices + at, n, layer.fan_in, layer.inputs);
            if (wrong >= 0) {
              bad_rows.Found(row + wrong);
              continue;
            }
            kernels.logits(layer.weights + at, layer.indices + at,
                           layer.bias == nullptr ? nullptr : layer.bias + row, layer.fan_in, {nullptr, n},
                           blocks_ + block * layer.inputs * width, width, tile);
            WriteTurned(tile, n, width, lanes, logits + example * layer.classes + row, layer.classes, stream);
          }
        }
        if (stream) EndOfStream();
      });
  *bad = bad_rows.get();
  return 0;
}

#define LARGEOUT_LAYOUT(X)                    \
  template int FanInCpu::LayOut<X>(const X*); \
  template int FanInCpu::LayBack<X>(X*);
LARGEOUT_LAYOUT(float)
LARGEOUT_LAYOUT(bfloat16)
#undef LARGEOUT_LAYOUT

#define LARGEOUT_LOGITS(T, Id) \
  template int FanInCpu::Logits<T, Id>(const FanInLayer<T, Id>&, float*, int64_t*);
LARGEOUT_LOGITS(float, uint16_t)
LARGEOUT_LOGITS(float, uint32_t)
LARGEOUT_LOGITS(bfloat16, uint16_t)
LARGEOUT_LOGITS(bfloat16, uint32_t)
#undef LARGEOUT_LOGITS

}  // namespace largeout
