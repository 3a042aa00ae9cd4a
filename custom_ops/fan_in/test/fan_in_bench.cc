// Times of forward pass, fused step, top-k and rewiring beside what bounds them: bytes of weights, indices
// and slots at the machine's copy bandwidth, and gathered bytes at its measured gather rate.
//
//   fan_in_bench [classes=670091] [fan_in=32] [inputs=32768] [batch=32] [threads=2] [rounds=5]
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "common/huge_pages.h"
#include "common/isa.h"
#include "common/test/check.h"
#include "common/test/kept_scratch.h"
#include "fan_in/fan_in.h"
#include "fan_in/fan_in_random.h"
#include "fan_in/fan_in_rewire.h"

namespace largeout {
namespace {

int64_t rounds = 5;

// With one thread the time of the processor, which other processes disturb less; else that of the clock.
bool processor_time = false;

double Now() {
  if (processor_time) {
    timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Best(const std::function<void()>& body) {
  double best = 1e9;
  for (int64_t round = 0; round < rounds; ++round) {
    const double start = Now();
    body();
    best = std::min(best, Now() - start);
  }
  return best;
}

// Touched pages of the system, large where it has them.
template <typename T>
struct Pages {
  explicit Pages(int64_t n) : bytes(n * sizeof(T) + 64) {
    data = static_cast<T*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    AdviseHugePages(data, bytes);
    std::memset(data, 0, bytes);
  }
  ~Pages() { munmap(data, bytes); }
  size_t bytes;
  T* data;
};

double CopyRate(Parallel* parallel) {
  const int64_t pieces = 4096, piece = 1 << 16;
  Pages<char> from(pieces * piece), to(pieces * piece);
  return 2.0 * pieces * piece / Best([&] {
           parallel->For(pieces, piece, [&](int64_t begin, int64_t end) {
             std::memcpy(to.data + begin * piece, from.data + begin * piece, (end - begin) * piece);
           });
         });
}

// The rate at which inputs are gathered where nothing comes from memory: few classes, again and again.
template <typename T>
double GatherRate(FanInLayer<T, uint16_t> layer, const FanInBatch& batch, FanInCpu* device) {
  layer.classes = std::min<int64_t>(layer.classes, 8192);
  const FanInPositives none{{}, std::vector<int64_t>(batch.blocks + 1)};
  std::vector<float> loss(batch.size);
  int64_t bad;
  const int repeats = 16;
  const double seconds = Best([&] {
    for (int i = 0; i < repeats; ++i) {
      device->LossForward(layer, FanInLoss::kBinaryCrossentropy, none,
                          {loss.data(), nullptr, nullptr, nullptr}, &bad);
    }
  });
  return 4.0 * repeats * layer.classes * layer.fan_in * batch.padded() / seconds;
}

struct Sizes {
  int64_t classes, fan_in, inputs, size;
};

template <typename T>
void Run(const Sizes& s, Parallel* parallel) {
  const FanInBatch batch(s.size, s.inputs);
  const int64_t connections = s.classes * s.fan_in;
  Pages<T> weights(connections);
  Pages<uint16_t> indices(connections);
  Pages<float> bias(s.classes), first(connections), second(connections), bias_first(s.classes),
      bias_second(s.classes);
  Pages<float> x(s.size * s.inputs);
  KeptScratch scratch;
  FanInCpu device({parallel, &scratch}, batch);
  FanInRewireCpu rewiring({parallel, &scratch});
  Random random(1);
  for (int64_t i = 0; i < connections; ++i) FromFloat(0.2f * random.Normalish(), &weights.data[i]);
  for (int64_t i = 0; i < s.size * s.inputs; ++i) x.data[i] = std::max(0.f, random.Normalish());
  const double draw =
      Best([&] { rewiring.Connections(s.classes, s.fan_in, s.inputs, RandomKey(1, 0), 0, indices.data); });
  const double lay_out = Best([&] {
    scratch.Reset();
    device.LayOut(x.data);
  });
  const size_t laid_out = scratch.used();
  const FanInLayer<T, uint16_t> layer{weights.data, indices.data, bias.data, s.classes, s.fan_in, s.inputs};
  const double copy = CopyRate(parallel), gather = GatherRate(layer, batch, &device);
  std::printf("%ld classes x %ld %s weights, %ld inputs, batch %ld; copy %.1f GB/s, gathers %.1f GB/s\n",
              static_cast<long>(s.classes), static_cast<long>(s.fan_in),
              sizeof(T) == 2 ? "bfloat16" : "float32", static_cast<long>(s.inputs), static_cast<long>(s.size),
              1e-9 * copy, 1e-9 * gather);
  std::printf("%-44s %8.2f ms\n%-44s %8.2f ms\n", "drawing all connections", 1e3 * draw,
              "laying out the inputs", 1e3 * lay_out);

  const double layer_bytes = connections * (sizeof(T) + sizeof(uint16_t));
  const double gathered = 4.0 * connections * batch.padded();
  // gathers: how often each connection's inputs are read (a read-modify-write counts twice); moved: bytes to
  // and from memory.
  const auto report = [&](const char* name, double seconds, double gathers, double moved) {
    const double limit = std::max(moved / copy, gathers * gathered / gather);
    std::printf("%-44s %8.2f ms   limit %7.2f ms (memory %6.2f, gathers %6.2f), %3.0f%% of it reached\n",
                name, 1e3 * seconds, 1e3 * limit, 1e3 * moved / copy, 1e3 * gathers * gathered / gather,
                100 * limit / seconds);
  };

  FanInPositives positives;
  std::vector<int64_t> ids, splits(1);
  for (int64_t b = 0; b < s.size; ++b) {
    for (int i = 0; i < 5; ++i) ids.push_back(random.Below(s.classes));
    splits.push_back(static_cast<int64_t>(ids.size()));
  }
  int64_t at;
  SortLabels(FanInLabels<int64_t>{ids.data(), splits.data(), nullptr, static_cast<int64_t>(ids.size()), 0,
                                  s.classes},
             batch, s.classes, &positives, &at);
  std::vector<float> loss(s.size), lse(s.size), mass(s.size), grad_loss(s.size, 1e-6f);
  std::vector<uint8_t> active(FanInActiveBytes(batch, s.classes));
  FanInLossOutputs out{loss.data(), lse.data(), mass.data(), active.data()};
  const auto forward = [&](FanInLoss kind) { device.LossForward(layer, kind, positives, out, &at); };
  const auto backward = [&](FanInLoss kind, FanInRule rule, bool input_gradient) {
    FanInGradients gradients;
    gradients.loss = kind, gradients.positives = &positives, gradients.grad_loss = grad_loss.data();
    gradients.lse = lse.data(), gradients.mass = mass.data();
    gradients.active = kind == FanInLoss::kSquaredHinge ? active.data() : nullptr;
    const float hyper[] = {1e-3f, 0.f, rule == FanInRule::kAdagrad ? 1e-7f : 0.1f, 1e-3f, 1e-7f};
    FanInStep<T> step;
    step.rule = rule, step.weights = weights.data, step.bias = bias.data, step.hyper = hyper;
    step.slots[0] = first.data, step.slots[1] = second.data;
    step.bias_slots[0] = bias_first.data, step.bias_slots[1] = bias_second.data;
    return Best([&] {
      scratch.Reset(laid_out);
      device.Backward(layer, gradients, step, input_gradient, &at);
    });
  };

  for (const float mean : {0.f, -4.f}) {  // all classes within the margin, or hardly any
    std::fill_n(bias.data, s.classes, mean);
    report(mean == 0.f ? "forward, squared hinge, every class active"
                       : "forward, squared hinge, few classes active",
           Best([&] { forward(FanInLoss::kSquaredHinge); }), 1, layer_bytes);
    for (const FanInRule rule :
         {FanInRule::kSgd, FanInRule::kAdagrad, FanInRule::kAdam, FanInRule::kLazyAdam}) {
      const FanInRuleInfo& info = kFanInRuleInfo[static_cast<int>(rule)];
      const std::string name = std::string("  backward and ") + info.name;
      const bool all = mean == 0.f;
      const double slots =
          connections * (2.0 * info.slots * sizeof(float) + sizeof(T));  // the weights are written too
      report(name.c_str(), backward(FanInLoss::kSquaredHinge, rule, true), all ? 3 : 0,
             all ? layer_bytes + slots : (rule == FanInRule::kAdam ? layer_bytes + slots : 0));
    }
  }
  std::fill_n(bias.data, s.classes, 0.f);
  forward(FanInLoss::kSquaredHinge);
  report("  backward and sgd, no input gradient", backward(FanInLoss::kSquaredHinge, FanInRule::kSgd, false),
         1, layer_bytes + connections * sizeof(T));
  report("forward, binary cross-entropy", Best([&] { forward(FanInLoss::kBinaryCrossentropy); }), 1,
         layer_bytes);
  report("  backward and sgd", backward(FanInLoss::kBinaryCrossentropy, FanInRule::kSgd, true), 3,
         layer_bytes + connections * sizeof(T));
  report("forward, softmax", Best([&] { forward(FanInLoss::kSoftmax); }), 1, layer_bytes);
  report("  backward and sgd", backward(FanInLoss::kSoftmax, FanInRule::kSgd, true), 3,
         layer_bytes + connections * sizeof(T));
  {
    Pages<float> logits(s.size * s.classes);
    const double written = 4.0 * s.size * s.classes;
    report("logits", Best([&] { device.Logits(layer, logits.data, &at); }), 1, layer_bytes + written);
  }
  std::vector<float> scores(s.size * 10);
  std::vector<int32_t> rows(s.size * 10);
  report("top 10", Best([&] { device.TopK(layer, 10, scores.data(), rows.data(), &at); }), 1, layer_bytes);
  float* slots[] = {first.data, second.data};
  int64_t changes, step = 0;
  bool bad;
  const double rewire = Best([&] {
    rewiring.Rewire(FanInRewiring<T, uint16_t>{weights.data, indices.data, slots, 2, s.fan_in, s.inputs,
                                               RandomKey(1, ++step), 0, 0, s.classes, s.fan_in / 10, -1,
                                               nullptr, nullptr, 0},
                    &changes, &at, &bad);
  });
  std::printf("%-44s %8.2f ms, %ld connections\n", "rewiring a tenth", 1e3 * rewire,
              static_cast<long>(changes));
}

}  // namespace
}  // namespace largeout

int main(int argc, char** argv) {
  using namespace largeout;
  const auto argument = [&](int i, int64_t fallback) { return argc > i ? std::atoll(argv[i]) : fallback; };
  const Sizes sizes{argument(1, 670091), argument(2, 32), argument(3, 32768), argument(4, 32)};
  if (sizes.inputs > 65536 || sizes.fan_in > sizes.inputs) {
    std::printf("inputs must be at most 65536 (indices are uint16), and fan_in at most inputs\n");
    return 1;
  }
  ThreadParallel parallel(static_cast<int>(argument(5, 2)));
  rounds = argument(6, 5);
  processor_time = parallel.threads() == 1;
  std::printf("%s, %d threads, best of %ld rounds\n", IsaName(CurrentIsa()), parallel.threads(),
              static_cast<long>(rounds));
  Run<float>(sizes, &parallel);
  Run<bfloat16>(sizes, &parallel);
  return 0;
}
