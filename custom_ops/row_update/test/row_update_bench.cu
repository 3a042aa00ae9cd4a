// Share of the GPU's copy bandwidth that an update of 1 million increasing rows of 128 floats reaches, for
// every rule.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "common/test/check.h"
#include "row_update/cuda/row_update_cuda.h"

namespace {

// Milliseconds of one call, the best of ten.
template <typename Call>
float Time(const Call& call) {
  cudaEvent_t start, stop;
  cudaEventCreate(&start);
  cudaEventCreate(&stop);
  float best = 1e30f;
  for (int round = 0; round < 10; ++round) {
    float milliseconds = 0.f;
    cudaEventRecord(start);
    call();
    cudaEventRecord(stop);
    cudaEventSynchronize(stop);
    cudaEventElapsedTime(&milliseconds, start, stop);
    best = std::min(best, milliseconds);
  }
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  return best;
}

}  // namespace

int main() {
  using namespace largeout;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped: no GPU\n");
    return 77;
  }
  const int64_t rows = 1680000, dim = 128, bytes = rows * dim * 4;
  float *table, *first, *second, *values, *hyper;
  for (float** array : {&table, &first, &second, &values}) {
    cudaMalloc(array, bytes);
    cudaMemset(*array, 0, bytes);
  }
  std::vector<int64_t> ids;
  Random random(1);
  for (int64_t id = 0; id < rows; ++id) {
    if (random.Unit() < 0.625) ids.push_back(id);
  }
  const int64_t n = static_cast<int64_t>(ids.size());
  int64_t* indices;
  cudaMalloc(&indices, n * 8);
  cudaMemcpy(indices, ids.data(), n * 8, cudaMemcpyHostToDevice);
  const float host_hyper[] = {0.1f, 0.f, 0.1f, 0.1f, 0.1f, 0.1f};
  const float ftrl_hyper[] = {0.1f, 0.f, -0.5f, 0.1f, 0.1f, 0.1f};
  cudaMalloc(&hyper, sizeof(host_hyper));
  int error = 0;
  const size_t workspace_bytes = RowUpdateWorkspaceCuda(n, 8, &error);
  void* workspace;
  cudaMalloc(&workspace, workspace_bytes);
  if (error != 0 || cudaGetLastError() != cudaSuccess) {
    std::printf("no memory for the bench\n");
    return 1;
  }
  const float copy = Time([&] { cudaMemcpyAsync(first, table, bytes, cudaMemcpyDeviceToDevice); });
  const double bandwidth = 2.0 * bytes / copy * 1e-6;
  std::printf("copy: %.0f GB/s\n", bandwidth);
  float* slots[] = {first, second};
  for (int rule = 0; rule < kUpdateRules; ++rule) {
    const bool is_ftrl = static_cast<UpdateRule>(rule) == UpdateRule::kFtrl;
    cudaMemcpy(hyper, is_ftrl ? ftrl_hyper : host_hyper, sizeof(host_hyper), cudaMemcpyHostToDevice);
    BadIndex bad;
    const float milliseconds = Time([&] {
      error |= RowUpdateCuda(static_cast<UpdateRule>(rule), table, rows, dim, slots, indices, n, values,
                             hyper, workspace, workspace_bytes, nullptr, &bad);
    });
    const UpdateRuleInfo& info = kUpdateRuleInfo[rule];
    const double moved = static_cast<double>(n) * dim * 4 * (3 + (info.slot_per_row ? 0 : 2 * info.slots));
    std::printf("%-17s %.3f ms, %.0f GB/s, %.0f%% of copy\n", info.name, milliseconds,
                moved / milliseconds * 1e-6, 100.0 * moved / milliseconds * 1e-6 / bandwidth);
  }
  return error;
}
