// Fixed fan-in: an output layer in which every class has exactly K incoming connections.
//
//   logit[b, c] = bias[c] + sum over k of weights[c, k] * x[b, indices[c, k]]
//
// A training step needs no [batch, classes] logits and, with its optimizer fused, no [classes, K] gradient:
// classes are gone through in chunks (logits, loss, gradient of the logits, of the weights, update, gradient
// of the inputs).
//
//   FanInBatch batch(32, inputs);                            // how a batch is laid out
//   SortLabels(labels, batch, classes, &positives, &at);     // checks labels; duplicates count once
//   FanInCpu device(call, batch);                            // or FanInGpu
//   device.LayOut(x);                                        // a connection then reads one run of floats
//   device.LossForward(layer, loss, positives, out, &bad);
//   device.Backward(layer, gradients, step, /*input_gradient=*/true, &bad);  // updates in place
//   device.LayBack(d_x);
//
// Bounds of the speed: per class K (weight + index) bytes from memory, and K gathers of batch floats (bfloat16
// on a GPU whose inputs are) from the cache that holds the inputs; the gradient of the inputs is a
// read-modify-write of as many floats. T is float or bfloat16 (arithmetic is float32), Id uint16_t or
// uint32_t. Arrays are in the memory of the device, except labels (FanInPositives), which are sorted on the
// host. Results do not depend on the number of threads; on a GPU every run gives the same bits (no float
// atomics: every sum has an order that depends on the sizes and on how much shared memory a block may have),
// equal to a CPU's up to float32 rounding.
#ifndef LARGEOUT_FAN_IN_FAN_IN_H_
#define LARGEOUT_FAN_IN_FAN_IN_H_

#include <cstdint>
#include <vector>

#include "common/bfloat16.h"
#include "common/scratch.h"

namespace largeout {

template <typename T, typename Id>
struct FanInLayer {
  const T* weights;   // [classes, fan_in]
  const Id* indices;  // [classes, fan_in]
  const float* bias;  // [classes], or null
  int64_t classes, fan_in, inputs;
};

// A batch is cut into blocks of `width` examples (the last one is filled up with zeros); blocks are [blocks,
// inputs, width].
struct FanInBatch {
  FanInBatch(int64_t size, int64_t inputs)
      : size(size), inputs(inputs), width(size <= 16 ? 16 : 32), blocks((size + width - 1) / width) {}
  int64_t floats() const { return blocks * inputs * width; }
  int64_t padded() const { return blocks * width; }
  int64_t size, inputs;
  int width;
  int64_t blocks;
};

// ---- Losses ----

enum class FanInLoss { kSquaredHinge, kBinaryCrossentropy, kSoftmax };
constexpr int kFanInLosses = 3;
constexpr const char* kFanInLossNames[kFanInLosses] = {"squared_hinge", "binary_crossentropy", "softmax"};

// Labels of example b: ids[row_splits[b] .. row_splits[b + 1]), in any order; -1 is no label.
template <typename Label>
struct FanInLabels {
  const Label* ids;           // [count], in [-1, num_classes)
  const int64_t* row_splits;  // [batch + 1]
  const float* weights;       // [count], the weight of the positive term; or null: 1
  int64_t count;
  int64_t first_class,
      num_classes;  // the layer's row 0 is class first_class; labels of other rows are skipped
};

struct FanInPositive {
  int32_t row, example;
  float weight;
};

// The labels by block, row and example; each once, with the weight of its first occurrence.
struct FanInPositives {
  std::vector<FanInPositive> sorted;
  std::vector<int64_t> block_start;  // [blocks + 1]
};

enum class FanInLabelStatus { kOk, kBadSplits, kBadLabel };

// kBadLabel: *position is that of the first label out of range; kBadSplits: row_splits does not ascend from 0
// to count.
template <typename Label>
FanInLabelStatus SortLabels(const FanInLabels<Label>& labels, const FanInBatch& batch, int64_t classes,
                            FanInPositives* positives, int64_t* position);

// Bytes of `active`: a bit for every block and row.
inline int64_t FanInActiveBytes(const FanInBatch& batch, int64_t classes) {
  return batch.blocks * ((classes + 7) / 8);
}

struct FanInLossOutputs {
  float* loss;      // [size], sum over the layer's classes
  float* lse;       // [size] logsumexp of the logits; softmax only, else null
  float* mass;      // [size] sum of the weights of the labels; softmax only, else null
  uint8_t* active;  // [FanInActiveBytes] rows that may have a gradient other than zero; squared hinge only,
                    // else null
};

// ---- Backward ----

// The gradients of the logits: given, or those of a loss, whose logits are recomputed.
struct FanInGradients {
  const float* logits = nullptr;  // [size, classes]; null: of a loss
  FanInLoss loss = FanInLoss::kSquaredHinge;
  const FanInPositives* positives = nullptr;
  const float* grad_loss = nullptr;  // [size]
  const float* lse = nullptr;        // [size], over all classes wherever they are; softmax
  const float* mass = nullptr;       // [size], likewise
  const uint8_t* active = nullptr;   // from FanInLossForward, or null: any row
};

// kAdam moves every class in every step; kLazyAdam leaves classes without gradient alone, their moments too.
enum class FanInRule { kNone, kSgd, kAdagrad, kAdam, kLazyAdam };
constexpr int kFanInRules = 5;
constexpr int kFanInMaxSlots = 2;
struct FanInRuleInfo {
  const char* name;
  int slots, hyper;  // how many; `hyper` as in row_update/row_update.h
};
constexpr FanInRuleInfo kFanInRuleInfo[kFanInRules] = {
    {"none", 0, 0}, {"sgd", 0, 2}, {"adagrad", 1, 3}, {"adam", 2, 5}, {"lazy_adam", 2, 5}};
bool FindFanInRule(const char* name, FanInRule* rule);
bool FindFanInLoss(const char* name, FanInLoss* loss);

// The step that follows the gradients of weights and bias: writes them (kNone), or updates in place. Rows
// without gradient are left alone, except by kAdam and where weights decay (decay: of weights only). bfloat16
// weights are rounded stochastically, by fan_in_random.h: random numbers of (key, first_class * K + element).
template <typename T>
struct FanInStep {
  FanInRule rule = FanInRule::kNone;
  T* weights = nullptr;  // kNone: [classes, K], the gradient; else the layer's weights
  // [classes], likewise; null without bias. kNone with both null: they get no gradient.
  float* bias = nullptr;
  float* slots[kFanInMaxSlots] = {};
  float* bias_slots[kFanInMaxSlots] = {};
  const float* hyper = nullptr;
  uint64_t key = 0;
  int64_t first_class = 0;

  bool HasNone() const { return rule == FanInRule::kNone && weights == nullptr && bias == nullptr; }
};

// ---- Calls ----

// One call of an op on its batch: LayOut, then one of the other methods. C: CpuCall (fan_in*.cc) or GpuCall
// (cuda/fan_in*.cu). Methods return 0 or an error (common/scratch.h).
//
// *bad: -1, or the row of a class with an index outside [0, inputs): its chunk of classes is left out then
// (nothing is ever read or written out of bounds), and the outputs mean nothing. A GPU waits for the stream
// once, to learn it. With the call's `late` training does not wait: *bad of logits and losses is then what an
// earlier call has found, in place of this one, and *bad of the backward pass is -1.
template <typename C>
class FanIn {
 public:
  using Call = C;
  FanIn(const Call& call, const FanInBatch& batch) : call_(call), batch_(batch) {}

  // inputs [size, inputs]; X: float or bfloat16, which has the results of the same values in float.
  template <typename X>
  int LayOut(const X* inputs);

  // logits [size, classes].
  template <typename T, typename Id>
  int Logits(const FanInLayer<T, Id>& layer, float* logits, int64_t* bad);

  // The k largest logits of every example, never holding all: scores [size, k] descending, rows [size, k]; of
  // equal scores the smaller row comes first, NaN counts as lower than all. k <= classes.
  template <typename T, typename Id, typename Out>
  int TopK(const FanInLayer<T, Id>& layer, int64_t k, float* scores, Out* rows, int64_t* bad);

  // With w the weight of a label and z the logits, the loss of an example is the sum over its labels of w *
  // max(0, 1 - z)^2 and over all other classes of max(0, 1 + z)^2 (squared hinge); likewise w * softplus(-z)
  // and softplus(z) (binary cross-entropy); the sum over its labels of w * (lse - z) (softmax).
  template <typename T, typename Id>
  int LossForward(const FanInLayer<T, Id>& layer, FanInLoss loss, const FanInPositives& positives,
                  const FanInLossOutputs& out, int64_t* bad);

  // With input_gradient LayBack may follow, which writes the gradient of the inputs.
  template <typename T, typename Id>
  int Backward(const FanInLayer<T, Id>& layer, const FanInGradients& gradients, const FanInStep<T>& step,
               bool input_gradient, int64_t* bad);
  template <typename X>
  int LayBack(X* d_inputs);

  // d_weights [rows, count]: the gradient that weights of connections to candidates [rows, count] would have;
  // they belong to the classes of rows first_row .. first_row + rows. *bad_candidate: -1, or the row (of
  // candidates) that names an input that does not exist.
  template <typename T, typename Id>
  int CandidateGradient(const FanInLayer<T, Id>& layer, const FanInGradients& gradients,
                        const int32_t* candidates, int64_t first_row, int64_t rows, int64_t count,
                        float* d_weights, int64_t* bad, int64_t* bad_candidate);

 private:
  const Call call_;
  const FanInBatch batch_;
  float *blocks_ = nullptr, *d_blocks_ = nullptr;  // [blocks, inputs, width]
  bfloat16* narrow_blocks_ = nullptr;  // in the place of `blocks_`, on a GPU whose inputs are bfloat16
};

using FanInCpu = FanIn<CpuCall>;
using FanInGpu = FanIn<GpuCall>;

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_H_
