// A training step of an embedding that waits for nothing: bad batches do no harm, and are named by a later
// call.
#include "common/test/on_stream.cuh"
#include "embedding/cuda/embedding_plan.h"
#include "embedding_update/embedding_update.h"
#include "embedding_update/test/embedding_update_cases.h"
#include "row_update/row_update.h"

namespace largeout {
namespace {

struct LateStep {
  BadBags bad;
  std::vector<float> out;
  UpdateState<float> state;
};

// Lookup, the gradient of weights, and the step, as the ops call them in a graph.
LateStep Take(OnStream* on, const FusedProblem<float, int64_t>& p, const Batch<int64_t>& batch) {
  const OnGpu<float> table(p.start.table), grad(p.grad), hyper(p.hyper), out(p.c.bags * p.c.dim);
  const OnGpu<float> slot0(p.start.slots[0]), slot1(p.start.slots[1]), weights_grad(batch.size());
  const BagsOnDevice<EmbeddingGpu, int64_t> on_device(batch);
  float* slots[] = {slot0.get(), slot1.get()};
  LateStep step;
  EmbeddingUpdateGpu device(on->call());
  const int64_t waits = OnStream::Waits();
  CUDA_OK(device.Check(on_device.bags, p.c.rows, &step.bad));
  CUDA_OK(device.Lookup(table.get(), p.c.rows, p.c.dim, on_device.bags, p.c.combiner, out.get()));
  CUDA_OK(device.WeightsGrad(table.get(), p.c.rows, p.c.dim, on_device.bags, p.c.combiner, grad.get(),
                             weights_grad.get()));
  CUDA_OK(device.Update(on_device.bags, p.c.combiner, grad.get(), p.rule, table.get(), p.c.rows, p.c.dim,
                        slots, hyper.get()));
  CHECK_TRUE(OnStream::Waits() == waits);
  on->Wait();
  step.out = out.Host();
  step.state = {table.Host(), {slot0.Host(), slot1.Host()}};
  return step;
}

LARGEOUT_TEST(AStepOnAStreamThatWaitsForNothing) {
  OnStream on;
  for (UpdateRule rule : {UpdateRule::kSgd, UpdateRule::kRowWiseAdagrad, UpdateRule::kLazyAdam}) {
    const FusedProblem<float, int64_t> p({60, -1, 40, 20, true, Combiner::kMean}, rule, 0.01f,
                                         3);  // ids out of range
    Batch<int64_t> batch = p.batch;
    for (int64_t& id : batch.ids) id = std::min<int64_t>(std::max<int64_t>(id, 0), 39);
    const LateStep step = Take(&on, p, batch);
    CHECK_TRUE(!step.bad.late && step.bad.id < 0 && step.bad.split < 0);
    FusedProblem<float, int64_t> valid = p;
    valid.batch = batch;
    const UpdateState<float> want = InOnePass<EmbeddingUpdateCpu>(valid);
    for (size_t i = 0; i < want.table.size(); ++i) CHECK_CLOSE(step.state.table[i], want.table[i], 2e-5);
  }
}

LARGEOUT_TEST(BadIdsAreDroppedAndNamedLater) {
  OnStream on;
  const FusedProblem<float, int64_t> p({60, 3, 40, 20, false, Combiner::kSum}, UpdateRule::kLazyAdam, 0.f, 4);
  Batch<int64_t> batch = p.batch;
  for (int64_t& id : batch.ids) id = (id + 2) % 40;
  const Batch<int64_t> valid = batch;
  batch.ids[7] = 40, batch.ids[100] = int64_t{1} << 60, batch.ids[101] = -1;
  const LateStep first = Take(&on, p, batch), second = Take(&on, p, valid), third = Take(&on, p, valid);
  CHECK_TRUE(!first.bad.late && first.bad.id < 0);
  CHECK_TRUE(second.bad.late && second.bad.id == 7 && second.bad.value == 40 && second.bad.limit == 40);
  CHECK_TRUE(!third.bad.late);
  FusedProblem<float, int64_t> dropped = p;
  dropped.batch = batch;
  const UpdateState<float> want = InOnePass<EmbeddingUpdateCpu>(dropped);
  for (size_t i = 0; i < want.table.size(); ++i) CHECK_CLOSE(first.state.table[i], want.table[i], 2e-5);
}

// Kernels neither read nor write out of bounds, nor what nobody wrote: the emulation would say so.
LARGEOUT_TEST(BadSplitsDoNoHarmAndAreNamedLater) {
  OnStream on;
  const int64_t far = int64_t{1} << 40;
  const std::vector<std::pair<std::vector<int64_t>, int64_t>> cases = {{{0, far, 12}, 1}, {{-far, 5, 12}, 0},
                                                                       {{3, 5, 12}, 0},   {{0, 5, 11}, 2},
                                                                       {{0, 12, far}, 2}, {{0, -1, 12}, 1}};
  for (const auto& [splits, position] : cases) {
    for (bool weighted : {false, true}) {
      FusedProblem<float, int64_t> p({2, 6, 40, 20, weighted, Combiner::kMean}, UpdateRule::kAdagrad, 0.f, 5);
      for (int64_t& id : p.batch.ids) id = (id + 2) % 40;
      Batch<int64_t> batch = p.batch;
      batch.splits = splits, batch.bag_size = 0;
      const LateStep first = Take(&on, p, batch), second = Take(&on, p, p.batch);
      CHECK_TRUE(!first.bad.late);
      CHECK_TRUE(second.bad.late && second.bad.split == position && second.bad.id < 0);
      CHECK_TRUE(second.bad.value == splits[position] && second.bad.limit == 12);
    }
  }
}

// Arrays that begin between 16-byte pieces are read and written value by value.
LARGEOUT_TEST(MisalignedArrays) {
  const FusedProblem<float, int64_t> p({60, 3, 40, 8, false, Combiner::kSum}, UpdateRule::kAdagrad, 0.f, 6);
  const UpdateState<float> want = InOnePass<EmbeddingUpdateCpu>(p);
  const auto shifted = [](const std::vector<float>& values) {
    std::vector<float> longer(1, 0.f);
    longer.insert(longer.end(), values.begin(), values.end());
    return longer;
  };
  for (int which = 0; which < 3; ++which) {
    const OnGpu<float> table(which == 0 ? shifted(p.start.table) : p.start.table);
    const OnGpu<float> slot(which == 1 ? shifted(p.start.slots[0]) : p.start.slots[0]);
    const OnGpu<float> grad(which == 2 ? shifted(p.grad) : p.grad), hyper(p.hyper);
    const BagsOnDevice<EmbeddingGpu, int64_t> on_device(p.batch);
    float* slots[] = {slot.get() + (which == 1), nullptr};
    TestCall<GpuCall> call;
    CUDA_OK(EmbeddingUpdateGpu(call.get())
                .Update(on_device.bags, p.c.combiner, grad.get() + (which == 2), p.rule,
                        table.get() + (which == 0), p.c.rows, p.c.dim, slots, hyper.get()));
    const std::vector<float> got = table.Host();
    for (size_t i = 0; i < want.table.size(); ++i) CHECK_CLOSE(got[i + (which == 0)], want.table[i], 2e-5);
  }
}

}  // namespace
}  // namespace largeout
