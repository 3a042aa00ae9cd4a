// The gradients of the logits, a few rows at a time: given ones, or those of a loss. Internal to the family.
#ifndef LARGEOUT_FAN_IN_FAN_IN_GRADIENTS_H_
#define LARGEOUT_FAN_IN_FAN_IN_GRADIENTS_H_

#include <cstring>

#include "fan_in/fan_in_kernels.h"
#include "fan_in/fan_in_loss_terms.h"
#include "fan_in/fan_in_ranges.h"

namespace largeout {

// Rows whose gradients are known: positions in a chunk, and a tile of their gradients.
struct GradientTile {
  int32_t rows[kFanInTile];
  int64_t count;
  float values[kFanInTile * kFanInMaxWidth];
};

template <typename T, typename Id>
class BlockGradients {
 public:
  // The gradients of one block, from row `first` on.
  BlockGradients(const FanInLayer<T, Id>& layer, const FanInBatch& batch, const float* blocks,
                 const FanInGradients& from, int64_t block, int64_t first)
      : layer_(layer),
        from_(from),
        width_(batch.width),
        example_(block * batch.width),
        lanes_(std::min<int64_t>(batch.width, batch.size - example_)),
        inputs_(blocks + block * batch.inputs * batch.width),
        active_(from.active == nullptr ? nullptr : from.active + block * ((layer.classes + 7) / 8)),
        cursor_(from.positives == nullptr ? None() : *from.positives, from.positives == nullptr ? 0 : block,
                first) {
    if (from.logits != nullptr) return;
    for (int64_t lane = 0; lane < lanes_; ++lane) {
      grad_loss_[lane] = scale_[lane] = from.grad_loss[example_ + lane];
      if (from.loss == FanInLoss::kSoftmax) {
        scale_[lane] *= from.mass[example_ + lane];
        lse_[lane] = from.lse[example_ + lane];
      }
    }
  }

  const float* inputs() const { return inputs_; }

  // Whether any of the rows [row, row + n) of a chunk may have a gradient.
  bool Any(int64_t row, int64_t n) const {
    bool any = active_ == nullptr;
    for (int64_t byte = row / 8; !any && byte < (row + n + 7) / 8; ++byte) any = active_[byte] != 0;
    return any;
  }

  // Goes through the rows [row, row + n) of a chunk, in ascending order: use(tile) for those with a gradient.
  template <typename Use>
  void Chunk(int64_t row, int64_t n, Use use) {
    const FanInPositive *label, *last;
    cursor_.Until(row + n, &label, &last);
    GradientTile tile;
    tile.count = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (active_ != nullptr && (active_[(row + i) / 8] >> ((row + i) % 8) & 1) == 0) continue;
      tile.rows[tile.count++] = static_cast<int32_t>(i);
      if (tile.count == kFanInTile) Flush(row, &label, last, &tile, use);
    }
    if (tile.count > 0) Flush(row, &label, last, &tile, use);
  }

 private:
  static const FanInPositives& None() {
    static const FanInPositives none{{}, {0, 0}};
    return none;
  }

  template <typename Use>
  void Flush(int64_t row, const FanInPositive** label, const FanInPositive* last, GradientTile* tile,
             Use use) {
    if (from_.logits != nullptr) {
      Given(row, tile);
    } else {
      OfLoss(row, label, last, tile);
    }
    const uint32_t nonzero = loss_kernels_.nonzero(tile->values, tile->count, width_);
    int64_t kept = 0;
    for (int64_t i = 0; i < tile->count; ++i) {
      if ((nonzero >> i & 1) == 0) continue;
      if (kept != i)
        std::memcpy(tile->values + kept * width_, tile->values + i * width_, width_ * sizeof(float));
      tile->rows[kept++] = tile->rows[i];
    }
    tile->count = kept;
    if (kept > 0) use(*tile);
    tile->count = 0;
  }

  void Given(int64_t row, GradientTile* tile) const {
    for (int64_t i = 0; i < tile->count; ++i) {
      const float* at = from_.logits + example_ * layer_.classes + row + tile->rows[i];
      for (int lane = 0; lane < width_; ++lane)
        tile->values[i * width_ + lane] = lane < lanes_ ? at[lane * layer_.classes] : 0.f;
    }
  }

  void OfLoss(int64_t row, const FanInPositive** label, const FanInPositive* last, GradientTile* tile) const {
    const int64_t at = row * layer_.fan_in;
    kernels_.logits(layer_.weights + at, layer_.indices + at,
                    layer_.bias == nullptr ? nullptr : layer_.bias + row, layer_.fan_in,
                    {tile->rows, tile->count}, inputs_, width_, tile->values);
    struct Term {
      float* at;
      float gradient;
    } terms[kFanInTile * kFanInMaxWidth];
    int count = 0;
    for (int64_t i = 0; i < tile->count; ++i) {
      const int64_t class_row = row + tile->rows[i];
      while (*label != last && (*label)->row < class_row) ++*label;
      for (; *label != last && (*label)->row == class_row; ++*label) {
        const int64_t lane = (*label)->example - example_;
        float* z = tile->values + i * width_ + lane;
        const float weight = (*label)->weight * grad_loss_[lane];
        if (from_.loss == FanInLoss::kSoftmax) {
          terms[count++] = {z, -weight};
        } else {
          terms[count++] = {z, static_cast<float>(weight * PositiveGradient(from_.loss, *z))};
          *z = kNoTerm;
        }
      }
    }
    switch (from_.loss) {
      case FanInLoss::kSquaredHinge:
        loss_kernels_.hinge_grad(tile->values, tile->count, width_, scale_);
        break;
      case FanInLoss::kBinaryCrossentropy:
        loss_kernels_.entropy_grad(tile->values, tile->count, width_, scale_);
        break;
      case FanInLoss::kSoftmax:
        loss_kernels_.softmax_grad(tile->values, tile->count, width_, scale_, lse_);
        break;
    }
    for (int i = 0; i < count; ++i) *terms[i].at += terms[i].gradient;
  }

  const FanInKernels<T, Id>& kernels_ = SelectFanIn<T, Id>();
  const FanInLossKernels& loss_kernels_ = LARGEOUT_SELECT(kFanInLoss);
  const FanInLayer<T, Id> layer_;
  const FanInGradients& from_;
  const int width_;
  const int64_t example_, lanes_;
  const float* inputs_;
  const uint8_t* active_;
  PositiveCursor cursor_;
  float grad_loss_[kFanInMaxWidth] = {}, scale_[kFanInMaxWidth] = {}, lse_[kFanInMaxWidth] = {};
};

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_GRADIENTS_H_
