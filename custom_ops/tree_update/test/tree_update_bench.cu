// A training step (loss, gradient, SGD on the touched rows, in two passes and in one) and top-k at sizes up to 10
// million words x 304 and 40 thousand tokens, next to what the GPU's memory and float32 units allow; wide trees in
// TF32 and with hidden vectors of bfloat16 too, and those with a wide root also by products of cuBLASLt, where it
// is found. A size that does not fit is left out.
#include <functional>
#include <type_traits>

#include "common/cuda/launch.cuh"
#include "common/test/cuda_bench.cuh"
#include "tree_softmax/cuda/tree_softmax_plan.h"
#include "tree_softmax/test/tree_softmax_testing.h"
#include "tree_update/tree_update.h"

namespace largeout {
namespace {

constexpr int64_t kSets = 3;
enum Parts { kLoss, kGradient, kTwoPasses, kOnePass };

// log of the weight of what is below a row: with this bias the model's distribution is the targets' own.
std::vector<float> FrequencyBias(const TestTree& tree) {
  std::vector<double> weight(tree.row_child.size());
  std::vector<float> bias(weight.size());
  for (int64_t n = static_cast<int64_t>(tree.node_row.size()) - 1; n >= 0; --n) {
    double sum = 0.0;
    for (int64_t r = tree.node_start[n]; r < tree.node_start[n + 1]; ++r) {
      if (tree.row_child[r] >= 0) weight[r] = 1.0 / (tree.row_child[r] + 1.0);
      sum += weight[r];
      bias[r] = static_cast<float>(std::log(weight[r]));
    }
    if (n > 0) weight[tree.node_row[n]] = sum;
  }
  return bias;
}

struct Case {
  std::string name;
  int64_t dim, tokens;
  std::vector<int64_t> queries;  // batches of top-k
  int repeats = 30;
  bool wide = false;       // also in TF32 and with hidden vectors of bfloat16
  bool wide_root = false;  // these also by products of cuBLASLt
};

// T: the type of the table, H: of hidden vectors. tf32: factors of float32 are rounded to TF32. library: products
// of the root are those of cuBLASLt.
template <typename T, typename H = float>
void Run(Bench* bench, const Case& what, const std::function<const TestTree&()>& make, bool tf32 = false,
         bool library = false) {
  const int64_t dim = what.dim, tokens = what.tokens;
  const bool short_table = sizeof(T) == 2, short_hidden = sizeof(H) == 2;
  const std::string name = what.name +
                           (short_hidden  ? short_table ? ", all bfloat16" : ", mixed"
                            : short_table ? ", bfloat16"
                            : tf32        ? ", TF32"
                                          : "") +
                           (library ? ", cuBLASLt" : "");
  if (!bench->Runs(name)) return;
  const TestTree& tree = make();
  const TreeArrays sizes = tree.arrays();
  int32_t widest = 0;
  for (size_t n = 1; n < tree.node_start.size(); ++n)
    widest = std::max(widest, tree.node_start[n] - tree.node_start[n - 1]);
  // The table, gradients of all rows at the most, hidden vectors, a slice of the widest node's logits in each
  // direction, tree and other scratch memory.
  const double need = 2.1 * sizes.rows * dim * 4.0 + tokens * dim * 20.0 + 2 * 64.0 * widest * 4.0 +
                      (bench->quick() ? 1e8 : 3e9);
  if (need > 0.9 * bench->free_bytes()) {
    std::printf("%-14s %-34s left out: %.1f GB are free\n", "tree_softmax", name.c_str(),
                bench->free_bytes() * 1e-9);
    return;
  }
  BenchArena memory(static_cast<int64_t>(need));
  if (library && !bench->HasLibrary(name, &memory)) return;
  const TreeArrays arrays{BenchUpload(&memory, tree.class_row),
                          BenchUpload(&memory, tree.node_start),
                          BenchUpload(&memory, tree.node_row),
                          BenchUpload(&memory, tree.node_parent),
                          BenchUpload(&memory, tree.row_hint),
                          sizes.classes,
                          sizes.nodes,
                          sizes.rows};
  const int32_t* row_child = BenchUpload(&memory, tree.row_child);
  const std::vector<float> host_bias = FrequencyBias(tree);
  T* table_data = BenchFilled<T>(&memory, sizes.rows * dim, 1, 0.05f);
  float* bias = memory.Take<float>(sizes.rows);
  BENCH_OK(cudaMemcpy(bias, host_bias.data(), host_bias.size() * sizeof(float), cudaMemcpyHostToDevice));
  const TreeTable<T> table{table_data, bias, dim};
  H *hidden[kSets], *d_hidden = memory.Take<H>(tokens * dim);
  float* grad_loss = memory.Take<float>(tokens);
  float* loss = memory.Take<float>(tokens);
  int32_t* targets[kSets];
  for (int64_t s = 0; s < kSets; ++s) {
    hidden[s] = BenchFilled<H>(&memory, tokens * dim, 100 + s, 0.5f);
    const std::vector<int64_t> ids = PowerLawIds(tokens, sizes.classes, 1.0001, 7 + s, false);
    targets[s] = BenchUpload(&memory, std::vector<int32_t>(ids.begin(), ids.end()));
  }
  BENCH_OK(Launch(BenchFill, 256, 256, 0, nullptr, grad_loss, tokens, 3, 1.f / tokens));
  float* hyper = memory.Take<float>(8);
  const float host_hyper[8] = {0.1f};
  BENCH_OK(cudaMemcpy(hyper, host_hyper, sizeof(host_hyper), cudaMemcpyHostToDevice));

  const int64_t base = memory.used();
  double touched = 0, products = 0, pairs = 0, groups = 0;
  int64_t likely_pairs = 0;
  const auto step = [&](int i, Parts parts) {
    const int64_t s = i % kSets;
    memory.Reset(base);
    ArenaScratch scratch(&memory);
    TreeUpdateGpu device({nullptr, &scratch, nullptr, tf32, library});
    TreePaths paths;
    BENCH_OK(device.FindPaths(arrays, targets[s], nullptr, tokens, dim, likely_pairs, &scratch, &paths));
    likely_pairs = paths.pairs + paths.pairs / 16;
    const bool save = !library && paths.probs * 4 <= int64_t{256} << 20;
    const TreeLossOutputs out{loss,
                              memory.Take<int32_t>(paths.pairs),
                              memory.Take<int32_t>(paths.pairs),
                              memory.Take<int32_t>(paths.groups),
                              memory.Take<int32_t>(paths.groups + 1),
                              memory.Take<float>(paths.pairs),
                              save ? memory.Take<float>(paths.probs) : nullptr};
    BENCH_OK(device.Loss(arrays, table, hidden[s], nullptr, tokens, out, int64_t{256} << 20));
    products = static_cast<double>(paths.probs), pairs = static_cast<double>(paths.pairs);
    groups = static_cast<double>(paths.groups);
    if (parts == kLoss) return;
    const TreeSaved saved{out.pair_token, out.pair_row, out.group_node, out.group_start,
                          out.pair_lse,   out.probs,    paths.pairs,    paths.groups};
    TreeTouched found = device.Resume(device.GradientPlan());
    if (!device.CanResume<T>(device.GradientPlan(), save))
      BENCH_OK(device.Check<T>(arrays, saved, tokens, dim, &found));
    const int64_t unique = found.rows;
    int64_t* rows = memory.Take<int64_t>(unique);
    touched = static_cast<double>(unique);
    float* bias_grads = memory.Take<float>(unique);
    const TreeStep<T> sgd{UpdateRule::kSgd, table_data, nullptr, hyper};
    if (parts == kOnePass) {
      BENCH_OK(device.Update(arrays, table, hidden[s], nullptr, grad_loss, tokens, saved, int64_t{256} << 20,
                             unique, sgd, d_hidden, rows, bias_grads));
      return;
    }
    T* row_grads = memory.Take<T>(unique * dim);
    BENCH_OK(device.Gradient(arrays, table, hidden[s], nullptr, grad_loss, tokens, saved, int64_t{256} << 20,
                             d_hidden, rows, row_grads, bias_grads));
    if (parts == kGradient) return;
    BadIndex bad;
    BENCH_OK(RowUpdateGpu({nullptr, &scratch})
                 .Update(sgd.rule, table_data, sizes.rows, dim, sgd.slots, rows, unique, row_grads,
                         sgd.numbers, &bad));
  };
  const int repeats = what.repeats;
  step(0, kGradient);  // counts
  const double row_bytes = dim * sizeof(T), hidden_bytes = 1.0 * tokens * dim * sizeof(H);
  std::printf("%-14s %-34s %.0f pairs, %.0f nodes, %.0f rows touched\n", "tree_softmax", name.c_str(), pairs,
              groups, touched);
  const double loss_bytes = touched * row_bytes + hidden_bytes,
               grad_bytes = 2 * touched * row_bytes + 2 * hidden_bytes;
  const double flops = 2 * products * dim;
  const auto report = [&](const char* part, Parts parts, double bytes, double of_flops) {
    bench->Report(name, part, bench->Time([&](int i) { step(i, parts); }, repeats), bytes, of_flops);
  };
  report("loss", kLoss, loss_bytes, flops);
  report("loss + gradient", kGradient, loss_bytes + grad_bytes, 3 * flops);
  const double update_bytes = 3 * touched * row_bytes;
  report("loss + gradient + SGD", kTwoPasses, loss_bytes + grad_bytes + update_bytes, 3 * flops);
  // A row is read by the loss, and read and written by the step.
  report("loss + gradient + SGD, one pass", kOnePass, loss_bytes + grad_bytes, 3 * flops);
  if (library) return;  // top-k takes none of its products
  for (const int64_t batch : what.queries) {
    const Times top = bench->Time(
        [&](int i) {
          memory.Reset(base);
          ArenaScratch scratch(&memory);
          float* log_probs = memory.Take<float>(batch * 10);
          int32_t* ids = memory.Take<int32_t>(batch * 10);
          bool ok;
          BENCH_OK(TreeSoftmaxGpu({nullptr, &scratch, nullptr, tf32})
                       .TopK(arrays, row_child, table, hidden[i % kSets], batch, int64_t{10}, log_probs, ids,
                             &ok));
        },
        repeats);
    // How much of a tree a query has to look at depends on the query; of one node, all.
    const bool flat = sizes.nodes == 1;
    bench->Report(name, "top 10 of " + std::to_string(batch), top, flat ? sizes.rows * row_bytes : 0.0,
                  flat ? 2.0 * batch * sizes.rows * dim : 0.0);
  }
}

template <typename Make>
void RunAll(Bench* bench, const Case& what, const Make& make) {
  TestTree tree;
  const auto made = [&]() -> const TestTree& {
    if (tree.node_start.empty()) tree = make();
    return tree;
  };
  Run<float>(bench, what, made);
  Run<bfloat16>(bench, what, made);
  if (!what.wide) return;
  for (const bool library : {false, true}) {
    if (library && !what.wide_root) return;
    Run<float>(bench, what, made, true, library);
    Run<float, bfloat16>(bench, what, made, false, library);
    Run<bfloat16, bfloat16>(bench, what, made, false, library);
  }
}

}  // namespace
}  // namespace largeout

int main(int argc, char** argv) {
  using namespace largeout;
  if (!Bench::HasGpu()) return 77;
  Bench bench("tree_softmax", argc, argv);
  if (bench.quick()) {
    RunAll(&bench, {"1K words, Huffman 8", 36, 100, {1, 32}}, [] { return HuffmanTree(1000, 8); });
    RunAll(&bench, {"1K words, 40 + 8, then 8", 36, 100, {1, 32}, 30, true, true},
           [] { return HeadTailTree(1000, 40, 8, 8); });
    RunAll(&bench, {"1K words, flat", 36, 100, {1, 32}, 30, true, true}, [] { return FlatTree(1000); });
    return 0;
  }
  const int64_t dim = 304, tokens = 40960;
  RunAll(&bench, {"10M words, Huffman 8", dim, tokens, {1, 32, 256}, 15},
         [] { return HuffmanTree(10000000, 8); });
  RunAll(&bench, {"10M words, 448 + 64, then 16", dim, tokens, {1, 32, 256}, 15, true},
         [] { return HeadTailTree(10000000, 448, 64, 16); });
  RunAll(&bench, {"9M words, 3000 x 3000", dim, tokens, {1, 32}, 15, true, true},
         [] { return TwoLevelTree(9000000, 3000); });
  RunAll(&bench, {"100K words, flat", dim, tokens, {1, 32, 256}, 7, true, true},
         [] { return FlatTree(100000); });
  const auto run = [&](const Case& what, auto make) {
    TestTree tree;
    Run<float>(&bench, what, [&]() -> const TestTree& { return tree = make(); });
  };
  run({"10M words, flat, 64 tokens", dim, 64, {1, 8}, 7}, [] { return FlatTree(10000000); });
  run({"1M words, Huffman 8", dim, tokens, {1, 32, 256}}, [] { return HuffmanTree(1000000, 8); });
  run({"100K words, Huffman 8", dim, tokens, {}}, [] { return HuffmanTree(100000, 8); });
  return 0;
}
