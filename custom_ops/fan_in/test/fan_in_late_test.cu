// A training step of fan-in classes that waits for nothing: a class with an index out of range is left out,
// and a later call names it.
#include "common/test/on_stream.cuh"
#include "fan_in/fan_in.h"
#include "fan_in/test/fan_in_step.h"

namespace largeout {
namespace {

struct LateStep {
  int64_t of_logits, of_loss, of_step;  // what each says of indices
  std::vector<float> weights;
};

// Logits, loss and a fused step, as the ops call them in a graph; each op keeps what comes late to it.
LateStep Take(OnStream* of_logits, OnStream* of_loss, OnStream* of_step,
              const FanInProblem<float, uint32_t>& p, FanInLoss loss) {
  const FanInBatch& batch = p.batch;
  const LayerOn<FanInGpu, float, uint32_t> on(p);
  const OnGpu<float> logits(batch.size * p.classes), losses(batch.size), lse(batch.size), mass(batch.size),
      hyper(std::vector<float>{0.1f, 0.f}), d_x(batch.size * p.inputs);
  const OnGpu<uint8_t> active(FanInActiveBytes(batch, p.classes));
  FanInGradients gradients = on.gradients(loss);
  gradients.lse = lse.get(), gradients.mass = mass.get();
  if (loss == FanInLoss::kSquaredHinge) gradients.active = active.get();
  FanInStep<float> step;
  step.rule = FanInRule::kSgd, step.hyper = hyper.get();
  step.weights = on.weights.get(), step.bias = on.bias.get();
  LateStep s;
  const int64_t waits = OnStream::Waits();
  FanInGpu plain(of_logits->call(), batch), forward(of_loss->call(), batch), backward(of_step->call(), batch);
  CUDA_OK(plain.LayOut(on.x.get()));
  CUDA_OK(plain.Logits(on.layer, logits.get(), &s.of_logits));
  CUDA_OK(forward.LayOut(on.x.get()));
  CUDA_OK(forward.LossForward(on.layer, loss, on.positives,
                              {losses.get(), lse.get(), mass.get(), active.get()}, &s.of_loss));
  CHECK_TRUE(OnStream::Waits() == waits);
  of_loss->Wait();  // the step of another stream reads what this one wrote
  const int64_t before = OnStream::Waits();
  CUDA_OK(backward.LayOut(on.x.get()));
  CUDA_OK(backward.Backward(on.layer, gradients, step, true, &s.of_step));
  CUDA_OK(backward.LayBack(d_x.get()));
  CHECK_TRUE(OnStream::Waits() == before);
  of_logits->Wait(), of_step->Wait();
  s.weights = on.weights.Host();
  return s;
}

// What a later call of the loss says.
int64_t Told(OnStream* stream, const FanInProblem<float, uint32_t>& p, FanInLoss loss) {
  const LayerOn<FanInGpu, float, uint32_t> on(p);
  const OnGpu<float> losses(p.batch.size), lse(p.batch.size), mass(p.batch.size);
  const OnGpu<uint8_t> active(FanInActiveBytes(p.batch, p.classes));
  FanInGpu device(stream->call(), p.batch);
  int64_t bad;
  CUDA_OK(device.LayOut(on.x.get()));
  CUDA_OK(device.LossForward(on.layer, loss, on.positives,
                             {losses.get(), lse.get(), mass.get(), active.get()}, &bad));
  stream->Wait();
  return bad;
}

LARGEOUT_TEST(AStepWaitsForNothingAndBadIndicesAreNamedLater) {
  for (const FanInLoss loss : kFanInAllLosses) {
    for (const int64_t size : {5, 40}) {  // one gather with all sums; chunks of classes
      OnStream a, b, c;
      const FanInProblem<float, uint32_t> good(200, 4, 20, size, 1);
      FanInProblem<float, uint32_t> bad = good;
      bad.indices[150 * 4 + 2] = 20, bad.indices[170 * 4] = UINT32_MAX;
      const LateStep want = Take(&a, &b, &c, good, loss);
      CHECK_TRUE(want.of_logits == -1 && want.of_loss == -1 && want.of_step == -1);
      const LateStep first = Take(&a, &b, &c, bad, loss);
      CHECK_TRUE(first.of_logits == -1 && first.of_loss == -1 && first.of_step == -1);
      for (const int64_t row : {150, 170})
        CHECK_TRUE(std::equal(&first.weights[row * 4], &first.weights[row * 4 + 4], &good.weights[row * 4]));
      if (loss != FanInLoss::kSoftmax) {  // the other classes do not know of it
        for (int64_t row = 0; row < 200; ++row) {
          CHECK_TRUE(
              row == 150 || row == 170 ||
              std::equal(&first.weights[row * 4], &first.weights[row * 4 + 4], &want.weights[row * 4]));
        }
      }
      // What the later calls would write is not looked at: the ops raise in their place.
      CHECK_TRUE(Told(&a, good, loss) == 150);
      CHECK_TRUE(Told(&b, good, loss) == 150);
      CHECK_TRUE(Told(&c, good, loss) == -1);
      CHECK_TRUE(Told(&b, good, loss) == -1);
    }
  }
}

}  // namespace
}  // namespace largeout
