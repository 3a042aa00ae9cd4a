// Times of loss and gradient for the trees that heads use, next to what the machine can do.
//
//   tree_softmax_bench [threads] [case name]
#include <sys/mman.h>
#include <time.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "common/huge_pages.h"
#include "common/isa.h"
#include "common/test/kept_scratch.h"
#include "tree_softmax/test/tree_softmax_testing.h"
#include "tree_softmax/tree_softmax.h"
#include "tree_softmax/tree_softmax_kernels.h"

namespace largeout {
namespace {

// With one thread the time of the processor, which other processes do not disturb; else that of the clock.
bool processor_time = false;

double Now() {
  if (processor_time) {
    timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Zero-filled pages of the system, as a large tensor has them.
template <typename T>
struct Pages {
  explicit Pages(int64_t n) : bytes(n * sizeof(T) + 1) {
    data = static_cast<T*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    // As the package allocates its tables and the op its gradients. Not where touched pages alone should take memory.
    if (bytes < size_t{4} << 30) AdviseHugePages(data, bytes);
  }
  ~Pages() { munmap(data, bytes); }
  size_t bytes;
  T* data;
};

double CopyGBs(Parallel* parallel) {
  const int64_t n = 64 << 20;
  Pages<char> a(n), b(n);
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const double start = Now();
    parallel->For(n >> 16, 1 << 16, [&](int64_t begin, int64_t end) {
      std::memcpy(b.data + (begin << 16), a.data + (begin << 16), (end - begin) << 16);
    });
    best = std::min(best, Now() - start);
  }
  return 2e-9 * n / best;
}

// The rate of the row-sum kernel on data in L1: nearly all of it is multiply-adds.
double PeakGFlops() {
  std::vector<float> a(16 * 64, 1e-3f), b(64 * 96, 1.f), c(16 * 96);
  std::vector<const float*> bp(64);
  std::vector<float*> cp(16);
  for (int i = 0; i < 64; ++i) bp[i] = b.data() + i * 96;
  for (int i = 0; i < 16; ++i) cp[i] = c.data() + i * 96;
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    const double start = Now();
    for (int i = 0; i < 300; ++i) LARGEOUT_SELECT(kTreeSum).from_float(12, 64, 96, a.data(), 64, 1, bp.data(), cp.data(), false);
    best = std::min(best, (Now() - start) / 300);
  }
  return 2e-9 * 12 * 64 * 96 / best;
}

struct Batch {
  int64_t tokens, dim;
  double exponent;
  int64_t max_saved_bytes = 256 << 20;
  bool fresh = false;  // row gradients in new memory every step: a page fault every 4 KB
};

// H: the type of hidden vectors.
template <typename H = float>
void Run(const char* name, const TestTree& tree, const Batch& batch, Parallel* parallel) {
  const TreeArrays arrays = tree.arrays();
  const int64_t tokens = batch.tokens, dim = batch.dim;
  Pages<float> table(arrays.rows * dim), bias(arrays.rows);
  std::vector<H> hidden(tokens * dim), d_hidden(tokens * dim);
  std::vector<float> grad_loss(tokens, 1.f / tokens), loss(tokens);
  Random random(7);
  for (H& x : hidden) FromFloat(random.Normalish(), &x);
  const auto sample = [&] {
    std::vector<int32_t> targets(tokens);
    for (int32_t& t : targets) t = static_cast<int32_t>(std::min<double>(arrays.classes - 1, std::pow(arrays.classes + 1.0, random.Unit()) - 1.0));
    return targets;
  };
  const auto targets = sample();
  KeptScratch scratch;
  bool filled = false;
  std::unique_ptr<Pages<float>> row_grads;
  double pair_time = 1e9, loss_time = 1e9, grad_time = 1e9, flops = 0, bytes = 0, total = 0;
  int64_t pair_count = 0, unique = 0;
  const int rounds = arrays.rows * dim > (int64_t{1} << 31) ? 3 : 13;
  for (int round = 0; round < rounds; ++round) {
    const double t0 = Now();
    scratch.Reset();
    TreeSoftmaxCpu device({parallel, &scratch});
    TreePaths paths;
    device.FindPaths(arrays, targets.data(), nullptr, tokens, dim, 0, &scratch, &paths);
    if (paths.status != TreeStatus::kOk) std::abort();
    const double t1 = Now();
    pair_count = paths.pairs;
    const bool save = paths.probs * 4 <= batch.max_saved_bytes;
    std::unique_ptr<float[]> probs(save ? new float[paths.probs] : nullptr), lse(new float[pair_count]);
    std::vector<int32_t> token(pair_count), row(pair_count), node(paths.groups), start(paths.groups + 1);
    const TreeTable<float> rows{table.data, bias.data, dim};
    device.Loss(arrays, rows, hidden.data(), nullptr, tokens,
                {loss.data(), token.data(), row.data(), node.data(), start.data(), lse.get(), probs.get()},
                batch.max_saved_bytes);
    if (!filled) {  // memory that no step touches stays unmapped
      for (const int32_t n : node) {
        for (int64_t i = arrays.node_start[n] * dim; i < arrays.node_start[n + 1] * dim; ++i)
          table.data[i] = random.Normalish();
      }
      filled = true;
      continue;
    }
    const double t2 = Now();
    const TreeSaved saved{token.data(), row.data(),  node.data(), start.data(),
                          lse.get(),    probs.get(), pair_count,  paths.groups};
    TreeTouched touched;
    device.Check<float>(arrays, saved, tokens, dim, &touched);
    if (!touched.ok) std::abort();
    unique = touched.rows;
    {
      if (!row_grads || batch.fresh) row_grads.reset(), row_grads.reset(new Pages<float>(unique * dim));
      std::unique_ptr<float[]> bias_grads(new float[unique]);
      std::unique_ptr<int64_t[]> ids(new int64_t[unique]);
      device.Gradient(arrays, rows, hidden.data(), nullptr, grad_loss.data(), tokens, saved,
                      batch.max_saved_bytes, d_hidden.data(), ids.get(), row_grads->data, bias_grads.get());
    }
    const double t3 = Now();
    flops = 2.0 * paths.probs * dim * (save ? 3 : 4);
    bytes = 4.0 * unique * dim * 3;
    pair_time = std::min(pair_time, t1 - t0), loss_time = std::min(loss_time, t2 - t1), grad_time = std::min(grad_time, t3 - t2);
    total = pair_time + loss_time + grad_time;
  }
  std::printf("%-34s %7.2f ms (pairs %5.2f, loss %7.2f, grad %8.2f)  %6ld pairs %8ld rows  %6.1f GFLOP/s  %5.1f GB/s\n", name,
              1e3 * total, 1e3 * pair_time, 1e3 * loss_time, 1e3 * grad_time, static_cast<long>(pair_count),
              static_cast<long>(unique), 1e-9 * flops / total, 1e-9 * bytes / total);
}

// Logits of standard deviation 3: about as peaked as those of a trained model.
void RunTopK(const char* name, const TestTree& tree, int64_t k, int64_t queries, Parallel* parallel) {
  const TreeArrays arrays = tree.arrays();
  const int64_t dim = 304;
  Pages<float> table(arrays.rows * dim);
  Random random(9);
  for (int64_t i = 0; i < arrays.rows * dim; ++i) table.data[i] = random.Normalish();
  std::vector<float> hidden(queries * dim), log_probs(queries * k);
  for (float& x : hidden) x = random.Normalish() * 9.f / std::sqrt(static_cast<float>(dim));
  std::vector<int32_t> ids(queries * k);
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    const double start = Now();
    bool ok;
    TreeSoftmaxCpu({parallel, nullptr})
        .TopK(arrays, tree.row_child.data(), TreeTable<float>{table.data, nullptr, dim}, hidden.data(),
              queries, k, log_probs.data(), ids.data(), &ok);
    if (!ok) std::abort();
    best = std::min(best, Now() - start);
  }
  std::printf("%-34s %7.1f microseconds a query (k = %ld, %ld queries)\n", name, 1e6 * best / queries, static_cast<long>(k),
              static_cast<long>(queries));
}

}  // namespace
}  // namespace largeout

int main(int argc, char** argv) {
  using namespace largeout;
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const std::string only = argc > 2 ? argv[2] : "";
  processor_time = threads == 1;
  ThreadParallel parallel(threads);
  std::printf("%s, %d threads; copy %.1f GB/s; multiply-add peak %.0f GFLOP/s a thread\n", IsaName(CurrentIsa()), threads, CopyGBs(&parallel), PeakGFlops());
  const auto wanted = [&](const char* name) { return only.empty() || std::string(name).find(only) != std::string::npos; };
  const Batch lm{3200, 304, 1.0};
  if (wanted("huffman2 100K")) Run("huffman2 100K", HuffmanTree(100000, 2), lm, &parallel);
  if (wanted("huffman8 100K")) Run("huffman8 100K", HuffmanTree(100000, 8), lm, &parallel);
  if (wanted("huffman8 100K")) Run("huffman8 100K, fresh memory", HuffmanTree(100000, 8), {3200, 304, 1.0, 256 << 20, true}, &parallel);
  if (wanted("huffman64 100K")) Run("huffman64 100K", HuffmanTree(100000, 64), lm, &parallel);
  if (wanted("huffman8 1M")) Run("huffman8 1M", HuffmanTree(1000000, 8), lm, &parallel);
  if (wanted("headtail 448+64/16 100K")) Run("headtail 448+64/16 100K", HeadTailTree(100000, 448, 64, 16), lm, &parallel);
  if (wanted("twolevel 316 100K")) Run("twolevel 316 100K", TwoLevelTree(100000, 316), lm, &parallel);
  if (wanted("flat 512")) Run("flat 512", TwoLevelTree(512, 1), lm, &parallel);
  // Float32 products where the machine has none of bfloat16.
  if (wanted("bfloat16 headtail"))
    Run<bfloat16>("bfloat16 headtail 448+64/16 100K", HeadTailTree(100000, 448, 64, 16), lm, &parallel);
  if (wanted("bfloat16 twolevel"))
    Run<bfloat16>("bfloat16 twolevel 316 100K", TwoLevelTree(100000, 316), lm, &parallel);
  if (wanted("bfloat16 flat")) Run<bfloat16>("bfloat16 flat 512", TwoLevelTree(512, 1), lm, &parallel);
  for (const int64_t dim : {64, 256, 300, 1024, 4096}) {
    const std::string name = "flat 512, dim " + std::to_string(dim);
    if (wanted(name.c_str())) Run(name.c_str(), TwoLevelTree(512, 1), {1000, dim, 1.0}, &parallel);
  }
  if (wanted("top-k huffman8 100K")) RunTopK("top-k huffman8 100K", HuffmanTree(100000, 8), 10, 256, &parallel);
  if (wanted("top-k headtail 100K")) RunTopK("top-k headtail 100K", HeadTailTree(100000, 448, 64, 16), 10, 256, &parallel);
  if (wanted("top-k twolevel 100K")) RunTopK("top-k twolevel 100K", TwoLevelTree(100000, 316), 10, 32, &parallel);
  if (only == "huffman8 10M") Run("huffman8 10M", HuffmanTree(10000000, 8), lm, &parallel);
  if (only == "twolevel 1000 1M") {  // probabilities saved, and not, with so much scratch memory
    for (const int64_t megabytes : {256, 32, 16, 8}) {
      const std::string name = "twolevel 1000 1M, " + std::to_string(megabytes) + " MB";
      Run(name.c_str(), TwoLevelTree(1000000, 1000), {20000, 304, 1.0, megabytes << 20}, &parallel);
    }
  }
  if (only == "twolevel 3000 9M") Run("twolevel 3000 9M, dim 64", TwoLevelTree(9000000, 3000), {40000, 64, 1.0}, &parallel);
  return 0;
}
